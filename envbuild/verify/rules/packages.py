"""Every other package: its version, its files, and whether it is there."""

from collections.abc import Iterator

from envbuild.errors import counted
from envbuild.verify.findings import Finding, Severity
from envbuild.verify.rules.catalogue import (
    MADE,
    about_packages,
    agree,
    anew,
    brings_all,
    differs,
    listing,
    with_pin,
)
from envbuild.verify.rules.frameworks import builds, family
from envbuild.verify.rules.versions import is_foreign, is_nvidia, label, minor, same_release
from envbuild.verify.sources import Package, Side

_NUMERIC = """
    h5py jaxlib keras lightgbm ml-dtypes numba numexpr numpy onnxruntime onnxruntime-gpu opencv-python
    opencv-python-headless pandas pillow polars protobuf pyarrow scikit-learn scipy tensorflow-addons
    tensorflow-probability tensorflow-text tf-keras tokenizers torchaudio torchvision transformers xgboost
"""
NUMERIC = frozenset(_NUMERIC.split())
"""Packages that compute, parse or prepare what a model gets, so that another build of them can move numbers."""
_CUT = 12
TOOLS = frozenset({"pip", "uv", "wheel"})
"""They install; no model runs through them."""
_OF_TOOLS = "It only installs other packages, and no prediction goes through it."
_MOVES_NUMBERS = "It computes, parses or prepares what the model gets, and its results change from release to release."
_NO_NVIDIA = "CUDA came with the run's wheels; without them it has to come with the base or the system."
Pair = tuple[Package, Package]


def same_files(one: Package, other: Package) -> bool | None:
    """Whether both were installed from the same files; None where that cannot be told."""
    if one.content and other.content:
        return one.content == other.content
    if one.wheels and other.wheels:
        return not one.wheels.isdisjoint(other.wheels)
    return one.build == other.build if one.build and other.build else None


def packages_with_other_files(wanted: Side, found: Side, same: list[Pair]) -> Iterator[Finding]:
    """Each package that has other files; files of another Python or machine are others anyway, and tell nothing."""
    for one, other in same:
        if label(f"{one.version}") != label(f"{other.version}") and not family(one.name):
            yield _other_label(found, one, other)
    alike = bool(minor(wanted.python)) and minor(wanted.python) == minor(found.python)
    if not (alike and wanted.machine and wanted.machine == found.machine):
        return
    alike_labels = [pair for pair in same if label(f"{pair[0].version}") == label(f"{pair[1].version}")]
    told = [(pair, same_files(*pair)) for pair in alike_labels]
    yield from (_other_files(found, *pair) for pair, said in told if said is False)
    if agreeing := sum(said is True for _, said in told):
        yield agree("package-build", "files of packages", f"{counted(agreeing, 'package')} from the same files")


def _other_label(found: Side, one: Package, other: Package) -> Finding:
    """A variant that was asked for is no surprise."""
    severity: Severity | None = (
        "note" if found.variant == "cpu" and not label(f"{other.version}").startswith("cu") else None
    )
    todo = with_pin(found, f"{one.name}=={one.version}")
    return _differing(one, other, f"{one.version}", f"{other.version}", todo, severity)


def _other_files(found: Side, one: Package, other: Package) -> Finding:
    severity: Severity | None = "error" if one.name in NUMERIC or family(one.name) else None
    wanted, there = _files(one, other)
    todo = with_pin(found, f"{one.name}=={one.version} from the file that the run had")
    return _differing(one, other, f"{one.version} {wanted}", f"{other.version} {there}", todo, severity)


def _differing(one: Package, other: Package, wanted: str, there: str, todo: str, severity: Severity | None) -> Finding:
    finding = differs("package-build", one.name, wanted=wanted, found=there, todo=todo, severity=severity)
    return about_packages(finding, f"{other.name} {other.version}")


def _files(one: Package, other: Package) -> tuple[str, str]:
    """What tells the two apart: digests cut as everywhere, or builds as conda writes them."""
    if one.content and other.content:
        return f"with files {one.content[:_CUT]}", f"with files {other.content[:_CUT]}"
    if one.wheels and other.wheels:
        return f"from {_wheel(one)}", f"from {_wheel(other)}"
    return f"build {one.build}", f"build {other.build}"


def _wheel(package: Package) -> str:
    first, *more = sorted(package.wheels)
    return f"sha256:{first[:_CUT]}" + (f" or {len(more)} more" if more else "")


def packages(wanted: Side, found: Side) -> Iterator[Finding]:
    """Versions of the packages that both have, where no rule of frameworks asks; then one line for all the same."""
    if brings_all(wanted, found):
        return
    pairs = list(_pairs(wanted, found))
    moved = [pair for pair in pairs if not _same_version(*pair)]
    yield from (_moved(found, *pair) for pair in moved if not family(pair[0].name))
    same = [pair for pair in pairs if _same_version(*pair)]
    if same:
        yield agree("package", "packages", _all_same(same))


def _moved(found: Side, one: Package, other: Package) -> Finding:
    wanted, there, todo = _identity(one), _identity(other), with_pin(found, _pin(one))
    severity, why = _of_tool(one)
    why = why or (_MOVES_NUMBERS if one.name in NUMERIC else "")
    finding = differs("package", one.name, wanted=wanted, found=there, todo=todo, severity=severity, why=why)
    return about_packages(finding, f"{other.name} {there}")


def _of_tool(package: Package) -> tuple[Severity | None, str]:
    return ("note", _OF_TOOLS) if package.name in TOOLS else (None, "")


def package_build(wanted: Side, found: Side) -> Iterator[Finding]:
    """The files of packages of the same version, where both were installed for the same Python and machine."""
    if brings_all(wanted, found):
        return
    same = [pair for pair in _pairs(wanted, found) if _same_version(*pair)]
    yield from packages_with_other_files(wanted, found, same)


def missing(wanted: Side, found: Side) -> Iterator[Finding]:
    """Packages that are not there, where all that is there is known."""
    if brings_all(wanted, found) or wanted.packages is None or found.packages is None or not found.complete:
        return
    lacking = [one for name, one in sorted(wanted.packages.items()) if name not in found.packages and not family(name)]
    lacking = [one for one in lacking if not (is_foreign(one.name) and found.kind in MADE)]
    left_out = [one for one in lacking if one.name in found.slim]
    if left_out:
        yield _left_out(left_out)
    dropped = [one for name, one in sorted(wanted.packages.items()) if name in found.dropped - found.packages.keys()]
    if dropped:
        yield _dropped(dropped)
    lacking = [one for one in lacking if one not in (*left_out, *dropped)]
    of_nvidia = [one for one in lacking if is_nvidia(one.name)]
    none = of_nvidia and not any(is_nvidia(name) for name in found.packages)
    if none and not _for_cpu(found):
        yield _without_nvidia(found, of_nvidia)
    for one in lacking:
        if one not in of_nvidia or not (none or _for_cpu(found)):
            yield _missing(found, one)


def extra(wanted: Side, found: Side) -> Iterator[Finding]:
    """Packages that only the other side has, in one line."""
    if brings_all(wanted, found) or wanted.packages is None or found.packages is None or not wanted.complete:
        return
    frameworks = builds(wanted)
    more = [
        f"{name} {_identity(it)}"
        for name, it in sorted(found.packages.items())
        if name not in wanted.packages and family(name) not in frameworks
    ]
    if more:
        says = f"{counted(len(more), 'package')} more: {listing(more)}"
        todo = "nothing if a server or a tool was added on purpose; else leave it out"
        finding = differs("package-extra", "packages", says, wanted="", found=listing(more), todo=todo)
        yield about_packages(finding, *more)


def _pairs(wanted: Side, found: Side) -> Iterator[tuple[Package, Package]]:
    here, there = wanted.packages or {}, found.packages or {}
    for name in sorted(here.keys() & there.keys()):
        if _known(here[name], there[name]):
            yield here[name], there[name]


def _known(one: Package, other: Package) -> bool:
    """Whether both say enough: a version, or else a commit."""
    return bool(one.version and other.version) or bool(
        not one.version and not other.version and one.build and other.build
    )


def _same_version(one: Package, other: Package) -> bool:
    if one.version and other.version:
        return same_release(one.version, other.version)
    return one.build == other.build


def _identity(package: Package) -> str:
    return package.version or package.build[:12] or "unknown"


def _pin(package: Package) -> str:
    return f"{package.name}=={package.version}" if package.version else f"{package.name} at {package.build[:12]}"


def _all_same(same: list[tuple[Package, Package]]) -> str:
    told = [same_files(*pair) for pair in same]
    many = "is the same" if len(same) == 1 else "are the same"
    return f"{counted(len(same), 'package')} {many}" + (
        f", {told.count(True)} of them the same files" if True in told else ""
    )


def _for_cpu(found: Side) -> bool:
    return found.variant == "cpu" or any(build.device == "cpu" for build in builds(found).values())


def _missing(found: Side, one: Package) -> Finding:
    wanted, todo = _identity(one), with_pin(found, _pin(one))
    says = f"wanted {wanted}, and it is not there"
    severity, why = _of_tool(one)
    finding = differs("package-missing", one.name, says, wanted=wanted, found="", todo=todo, severity=severity, why=why)
    return about_packages(finding, f"{one.name} {wanted}")


def _left_out(lacking: list[Package]) -> Finding:
    """What `--slim` left out, where the lock or the image's label says so."""
    names = tuple(f"{it.name} {_identity(it)}" for it in lacking)
    finding = differs(
        "package-missing",
        "slim",
        f"{counted(len(names), 'package')} that only training uses {'is' if len(names) == 1 else 'are'} left out: "
        f"{listing(names)}",
        wanted=listing(names),
        found="",
        todo="nothing if the golden sample agrees there; else build it without --slim",
        severity="warning",
    )
    return about_packages(finding, *names)


def _dropped(lacking: list[Package]) -> Finding:
    """What `--drop` left out, where the lock says so."""
    names = tuple(f"{it.name} {_identity(it)}" for it in lacking)
    finding = differs(
        "package-missing",
        "dropped",
        f"left out by --drop: {listing(names)}",
        wanted=listing(names),
        found="",
        todo="nothing if the model does without; else build it without --drop",
        severity="warning",
    )
    return about_packages(finding, *names)


def _without_nvidia(found: Side, lacking: list[Package]) -> Finding:
    """CUDA from the base or the system is as good, where it is known to be there."""
    names = tuple(f"{it.name} {_identity(it)}" for it in lacking)
    severity: Severity = "note" if found.cuda else "error" if found.variant == "gpu" else "warning"
    elsewhere = f"; CUDA {found.cuda} comes from elsewhere" if found.cuda else ""
    finding = differs(
        "package-missing",
        "NVIDIA's wheels",
        f"none of {counted(len(names), 'wheel')} is there{elsewhere}",
        wanted=listing(names),
        found="",
        todo=f"nothing if CUDA comes from elsewhere on purpose; else {anew(found)}",
        severity=severity,
        why=_NO_NVIDIA,
    )
    return about_packages(finding, *names)
