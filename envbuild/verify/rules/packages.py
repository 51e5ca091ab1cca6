"""Every other package: its version, its files, and whether it is there."""

from collections.abc import Iterator

from envbuild.errors import counted
from envbuild.verify.findings import Finding, Severity
from envbuild.verify.rules.catalogue import MADE, agree, brings_all, differs, listing, remedy, with_pin
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
TOOLS = frozenset({"pip", "uv", "wheel"})
"""They install; no model runs through them."""
_OF_TOOLS = "It only installs other packages, and no prediction goes through it."
_MOVES_NUMBERS = "It computes, parses or prepares what the model gets, and its results change from release to release."
_NO_NVIDIA = "CUDA came with the run's wheels; without them it has to come with the base or the system."
_CUT = 12


def packages(wanted: Side, found: Side) -> Iterator[Finding]:
    """Versions of the packages that both have, where no rule of frameworks asks; then one line for all the same."""
    same = []
    for one, other in _pairs(wanted, found):
        if _same_version(one, other):
            same.append(same_files(one, other))
        elif not family(one.name):
            severity, why = _of_tool(one)
            there = _identity(other)
            yield differs(
                "package", one.name, wanted=_identity(one), found=there, todo=with_pin(found, _pin(one)),
                severity=severity, why=why or (_MOVES_NUMBERS if one.name in NUMERIC else ""),
                packages=(f"{other.name} {there}",),
            )  # fmt: skip
    if same:
        files = f", {same.count(True)} of them the same files" if True in same else ""
        many = "is the same" if len(same) == 1 else "are the same"
        yield agree("package", "packages", f"{counted(len(same), 'package')} {many}{files}")


def package_build(wanted: Side, found: Side) -> Iterator[Finding]:
    """The files of packages of the same version; those of another Python or machine differ anyway."""
    alike = bool(minor(wanted.python)) and minor(wanted.python) == minor(found.python)
    alike = alike and bool(wanted.machine) and wanted.machine == found.machine
    labels, files, agreeing = [], [], 0
    for one, other in _pairs(wanted, found):
        if not _same_version(one, other):
            continue
        if label(f"{one.version}") != label(f"{other.version}"):
            labels += [] if family(one.name) else [_other_label(found, one, other)]
        elif alike and (same := same_files(one, other)) is not None:
            agreeing += same
            files += [] if same else [_other_files(found, one, other)]
    yield from (*labels, *files)
    if agreeing:
        yield agree("package-build", "files of packages", f"{counted(agreeing, 'package')} from the same files")


def same_files(one: Package, other: Package) -> bool | None:
    """Whether both were installed from the same files; None where that is not known."""
    if one.content and other.content:
        return one.content == other.content
    if one.wheels and other.wheels:
        return not one.wheels.isdisjoint(other.wheels)
    return one.build == other.build if one.build and other.build else None


def _other_label(found: Side, one: Package, other: Package) -> Finding:
    """A variant that was asked for is only a note."""
    chosen = found.variant == "cpu" and not label(f"{other.version}").startswith("cu")
    return differs(
        "package-build", one.name, wanted=f"{one.version}", found=f"{other.version}",
        todo=with_pin(found, f"{one.name}=={one.version}"), severity="note" if chosen else None,
        packages=(f"{other.name} {other.version}",),
    )  # fmt: skip


def _other_files(found: Side, one: Package, other: Package) -> Finding:
    severity: Severity | None = "error" if one.name in NUMERIC or family(one.name) else None
    if one.content and other.content:
        wanted, there = f"with files {one.content[:_CUT]}", f"with files {other.content[:_CUT]}"
    elif one.wheels and other.wheels:
        wanted, there = (f"from {_wheel(it)}" for it in (one, other))
    else:
        wanted, there = f"build {one.build}", f"build {other.build}"
    return differs(
        "package-build", one.name, wanted=f"{one.version} {wanted}", found=f"{other.version} {there}",
        todo=with_pin(found, f"{one.name}=={one.version} from the file that the run had"), severity=severity,
        packages=(f"{other.name} {other.version}",),
    )  # fmt: skip


def _wheel(package: Package) -> str:
    first, *more = sorted(package.wheels)
    return f"sha256:{first[:_CUT]}" + (f" or {len(more)} more" if more else "")


def missing(wanted: Side, found: Side) -> Iterator[Finding]:
    """Packages that are not there, where all that is there is known."""
    if brings_all(wanted, found) or wanted.packages is None or found.packages is None or not found.complete:
        return
    gone = [one for name, one in sorted(wanted.packages.items()) if name not in found.packages]
    lacking = [it for it in gone if not family(it.name) and not (is_foreign(it.name) and found.kind in MADE)]
    slim, dropped = [it for it in lacking if it.name in found.slim], [it for it in gone if it.name in found.dropped]
    if slim:
        says = f"{counted(len(slim), 'package')} that only training uses {'is' if len(slim) == 1 else 'are'} left out: "
        yield _left_out("slim", says, slim, "nothing if the golden sample agrees there; else build it without --slim")
    if dropped:
        todo = "nothing if the model does without; else build it without --drop"
        yield _left_out("dropped", "left out by --drop: ", dropped, todo)
    lacking = [it for it in lacking if it not in (*slim, *dropped)]
    nvidia = [it for it in lacking if is_nvidia(it.name)]
    none = bool(nvidia) and not any(map(is_nvidia, found.packages))
    for_cpu = found.variant == "cpu" or any(build.device == "cpu" for build in builds(found).values())
    if none and not for_cpu:
        yield _without_nvidia(found, nvidia)
    for one in lacking:
        if one not in nvidia or not (none or for_cpu):
            severity, why = _of_tool(one)
            version = _identity(one)
            yield differs(
                "package-missing", one.name, f"wanted {version}, and it is not there", wanted=version, found="",
                todo=with_pin(found, _pin(one)), severity=severity, why=why, packages=(f"{one.name} {version}",),
            )  # fmt: skip


def _left_out(about: str, says: str, lacking: list[Package], todo: str) -> Finding:
    """What `--slim` or `--drop` left out, where the lock or the image's label says so."""
    names = tuple(f"{it.name} {_identity(it)}" for it in lacking)
    return differs(
        "package-missing", about, says + listing(names), wanted=listing(names), found="", todo=todo,
        severity="warning", packages=names,
    )  # fmt: skip


def _without_nvidia(found: Side, lacking: list[Package]) -> Finding:
    """CUDA from the base or the system is as good, where it is known to be there."""
    names = tuple(f"{it.name} {_identity(it)}" for it in lacking)
    severity: Severity = "note" if found.cuda else "error" if found.variant == "gpu" else "warning"
    elsewhere = f"; CUDA {found.cuda} comes from elsewhere" if found.cuda else ""
    says = f"none of {counted(len(names), 'wheel')} is there{elsewhere}"
    todo = f"nothing if CUDA comes from elsewhere on purpose; else {remedy(found)}"
    return differs(
        "package-missing", "NVIDIA's wheels", says, wanted=listing(names), found="", todo=todo, severity=severity,
        why=_NO_NVIDIA, packages=names,
    )  # fmt: skip


def extra(wanted: Side, found: Side) -> Iterator[Finding]:
    """Packages that only the other side has, in one line."""
    if brings_all(wanted, found) or wanted.packages is None or found.packages is None or not wanted.complete:
        return
    frameworks, there = builds(wanted), sorted(found.packages.items())
    names = [name for name, _ in there if name not in wanted.packages and family(name) not in frameworks]
    more = tuple(f"{name} {_identity(found.packages[name])}" for name in names)
    if more:
        says = f"{counted(len(more), 'package')} more: {listing(more)}"
        todo = "nothing if a server or a tool was added on purpose; else leave it out"
        yield differs("package-extra", "packages", says, wanted="", found=listing(more), todo=todo, packages=more)


def _pairs(wanted: Side, found: Side) -> Iterator[tuple[Package, Package]]:
    """Packages that both have, with a version, or else a commit, of both."""
    here, there = wanted.packages or {}, found.packages or {}
    for name in sorted(here.keys() & there.keys()) if not brings_all(wanted, found) else ():
        one, other = here[name], there[name]
        if (one.version and other.version) or (not (one.version or other.version) and one.build and other.build):
            yield one, other


def _same_version(one: Package, other: Package) -> bool:
    return same_release(one.version, other.version) if one.version and other.version else one.build == other.build


def _identity(package: Package) -> str:
    return package.version or package.build[:_CUT] or "unknown"


def _pin(package: Package) -> str:
    return f"{package.name}=={package.version}" if package.version else f"{package.name} at {package.build[:_CUT]}"


def _of_tool(package: Package) -> tuple[Severity | None, str]:
    return ("note", _OF_TOOLS) if package.name in TOOLS else (None, "")
