"""The files of packages that have the same version."""

from collections.abc import Iterator

from envbuild.errors import counted
from envbuild.verify.findings import Finding, Severity
from envbuild.verify.rules.builds import family
from envbuild.verify.rules.releases import label, minor
from envbuild.verify.rules.saying import about_packages, agree, differs, with_pin
from envbuild.verify.sides.side import Package, Side

_NUMERIC = """
    h5py jaxlib keras lightgbm ml-dtypes numba numexpr numpy onnxruntime onnxruntime-gpu opencv-python
    opencv-python-headless pandas pillow polars protobuf pyarrow scikit-learn scipy tensorflow-addons
    tensorflow-probability tensorflow-text tf-keras tokenizers torchaudio torchvision transformers xgboost
"""
NUMERIC = frozenset(_NUMERIC.split())
"""Packages that compute, parse or prepare what a model gets, so that another build of them can move numbers."""
_CUT = 12

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
