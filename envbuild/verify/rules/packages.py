"""Every other package: its version, its files, and whether it is there."""

from collections.abc import Iterator

from envbuild.errors import counted
from envbuild.verify.findings import Finding, Severity
from envbuild.verify.rules.builds import builds, family
from envbuild.verify.rules.files import NUMERIC, packages_with_other_files, same_files
from envbuild.verify.rules.known import is_foreign, is_nvidia
from envbuild.verify.rules.releases import same_release
from envbuild.verify.rules.saying import (
    MADE,
    about_packages,
    agree,
    anew,
    brings_all,
    differs,
    listing,
    with_pin,
)
from envbuild.verify.sides.side import Package, Side

TOOLS = frozenset({"pip", "uv", "wheel"})
"""They install; no model runs through them."""
_OF_TOOLS = "It only installs other packages, and no prediction goes through it."
_MOVES_NUMBERS = "It computes, parses or prepares what the model gets, and its results change from release to release."
_NO_NVIDIA = "CUDA came with the run's wheels; without them it has to come with the base or the system."


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
