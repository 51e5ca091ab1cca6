"""Frameworks by distribution, version and device; every other package by version and files, and whether it is there."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Literal

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envbuild.capture.frameworks import TENSORFLOW
from envbuild.errors import counted
from envbuild.files import data_folder
from envbuild.manifest.model import Framework
from envbuild.match.profiles import Profiles, load_profiles
from envbuild.match.run import CUDA_WHEEL
from envbuild.verify.findings import Finding, Severity
from envbuild.verify.rules.catalogue import MADE, agree, brings_all, differs, listing, remedy, with_pin
from envbuild.verify.sources import Package, Side

_NUMBERS = re.compile(r"v?(\d+(?:\.\d+)*)")
_SUFFIX = re.compile(r"-cu(\d\d)\d?\Z")
"""`-cu12`, and the `-cu117` of the first of them."""
_AS_CUDA = frozenset({"cuda-toolkit", "nvidia-cublas", "nvidia-cuda-runtime"})
"""Names without a suffix whose major version is CUDA's."""


def numbers(text: str | None) -> tuple[int, ...]:
    """`(2, 15, 1)` of `2.15.1rc1+cu118`; empty where no number leads."""
    found = _NUMBERS.match(text or "")
    return tuple(int(part) for part in found[1].split(".")) if found else ()


def minor(text: str | None) -> str:
    """`2.15` of `2.15.1`; empty where less is known."""
    found = numbers(text)[:2]
    return ".".join(map(str, found)) if len(found) == 2 else ""


def same_numbers(one: str, other: str, count: int) -> bool:
    """Whether the first numbers are equal, as many of them as both have."""
    shorter = min(count, len(numbers(one)), len(numbers(other)))
    return numbers(one)[:shorter] == numbers(other)[:shorter]


def label(version: str) -> str:
    """`cu118` of `2.1.0+cu118`."""
    return version.partition("+")[2].lower()


def same_release(one: str, other: str) -> bool:
    """Whether two versions are equal by PEP 440, whatever their local labels; letter by letter where it has no say."""
    first, second = one.partition("+")[0], other.partition("+")[0]
    if first == second:
        return True  # nearly always, and thousands of times
    try:
        return Version(first) == Version(second)
    except InvalidVersion:
        return first == second


def as_version(text: str | None) -> Version | None:
    """A version to order by; None where it is none."""
    try:
        return Version(text) if text else None
    except InvalidVersion:
        return None


@cache
def profile_data() -> Profiles:
    """The facts that no wheel says, without the profiles of frameworks."""
    return load_profiles(data_folder("profiles"), ())


def is_nvidia(name: str) -> bool:
    """Whether a distribution is NVIDIA's, or serves a GPU only."""
    return any(fnmatchcase(name, pattern) for pattern in (*profile_data().nvidia_wheels, *profile_data().cuda_only))


def is_foreign(name: str) -> bool:
    """Whether no index has a distribution for Linux, or it is envbuild itself, so that no image has it."""
    return any(row.name == name for row in profile_data().foreign)


def minimum_driver(cuda: str) -> tuple[str, str] | None:
    """The lowest driver that runs a CUDA, and the CUDA that this is the row of; None where none is known.

    From CUDA 11 on that of the major version: minor version compatibility (NVIDIA CUDA Compatibility guide).
    """
    parts = cuda.split(".")
    names = {parts[0], ".".join(parts[:2])}
    return next(((row.minimum, row.cuda) for row in profile_data().drivers if row.cuda in names), None)


def cuda_major(versions: Mapping[str, str | None]) -> str | None:
    """The highest major version of CUDA that there are wheels for, by their names: `12`; None without any."""
    wheels = {name: version for name, version in versions.items() if CUDA_WHEEL.match(name)}
    named = [int(found[1]) for name in wheels if (found := _SUFFIX.search(name))]
    plain = [numbers(version)[0] for name, version in wheels.items() if name in _AS_CUDA and numbers(version)]
    return str(max(named + plain)) if named or plain else None


def cudnn_floor(framework: str, version: str) -> str:
    """The lowest cuDNN that a release takes at run time; empty where none is known. InvalidVersion for no version."""
    return next((row.minimum for row in profile_data().cudnn_floors if row.covers(framework, version)), "")


_ALONE = ("torch", "jax", "keras")
"""Frameworks that have one distribution, of their own name."""
_NO_LABEL = "no local label"
"""Tools that write versions down drop labels, so this does not prove another build."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """One framework as it is installed."""

    distribution: str
    version: str
    device: Literal["gpu", "cpu"] | None
    """What it was built for; None where nothing tells."""
    facts: Framework | None
    """What is known besides."""


def family(distribution: str) -> str | None:
    """The framework that a distribution brings: `tensorflow` of `tensorflow-cpu`; None where it brings none."""
    if TENSORFLOW.fullmatch(distribution):
        return "tensorflow"
    return distribution if distribution in _ALONE else None


def builds(side: Side) -> dict[str, Build]:
    """Each framework by its name, the one that trained first; those that are not listed are among the packages."""
    found: dict[str, Build] = {}
    for it in side.frameworks:
        distribution: str = canonicalize_name(it.distribution)
        if family(distribution) == it.name:  # tf-keras may be listed as Keras, which it lies beside
            device = _device(side, distribution, it.version, it)
            found.setdefault(it.name, Build(distribution=distribution, version=it.version, device=device, facts=it))
    packages = side.packages or {}
    # `tensorflow` before what it may consist of, such as tensorflow-intel, then by name
    for name in sorted(packages, key=lambda it: (it != "tensorflow", it)):
        if (framework := family(name)) and framework not in found and (version := packages[name].version):
            device = _device(side, name, version, None)
            found[framework] = Build(distribution=name, version=version, device=device, facts=None)
    return found


def _device(side: Side, distribution: str, version: str, facts: Framework | None) -> Literal["gpu", "cpu"] | None:
    """The strongest sign first: the name and label are the build's own, the variant is what it was chosen for.

    A plain wheel of TensorFlow is built with CUDA, whether there is a GPU for it or not.
    """
    if family(distribution) == "keras":
        return None  # it computes by another framework, and is the same file for any device
    local = label(version)
    if "-cpu" in distribution or local.startswith("cpu"):
        return "cpu"
    if distribution.endswith("-gpu") or local.startswith("cu"):
        return "gpu"
    if side.variant:
        return side.variant
    if distribution == "jax" and _without_plugin(side):
        return "cpu"
    return "gpu" if facts and facts.cuda and side.accelerator and side.accelerator.gpus else None


def _without_plugin(side: Side) -> bool:
    """JAX finds a GPU by a plugin of its own, or in its early days by a jaxlib built for CUDA."""
    packages = side.packages or {}
    lib = packages.get("jaxlib")
    return (
        side.complete
        and lib is not None
        and not label(lib.version or "").startswith("cu")
        and not any(name.startswith(("jax-cuda", "jax-rocm")) for name in packages)
    )


def framework(wanted: Side, found: Side) -> Iterator[Finding]:
    """Each framework of the first source, under whichever distribution the other has it."""
    there = builds(found)
    for name, build in builds(wanted).items() if not brings_all(wanted, found) else ():
        one, todo = build.version, with_pin(found, f"{build.distribution}=={build.version}")
        if other := there.get(name):
            if same_release(one, other.version):
                brought = f" by {other.distribution}" if other.distribution != build.distribution else ""
                yield agree("framework", name, other.version + brought, wanted=one, found=other.version)
            else:
                names = (f"{other.distribution} {other.version}",)
                yield differs("framework", name, wanted=one, found=other.version, todo=todo, packages=names)
        elif found.packages is not None and found.complete and build.distribution not in found.dropped:
            others = " and ".join(f"{it} {other.version}" for it, other in there.items())
            says = f"wanted {one}, and it is not there" + (f"; {others} is" if others else "")
            yield differs("framework", name, says, wanted=one, found=others, todo=todo)


def framework_build(wanted: Side, found: Side) -> Iterator[Finding]:
    """Device, CUDA, label and commit of frameworks that have the same version."""
    there = builds(found)
    for name, build in builds(wanted).items() if not brings_all(wanted, found) else ():
        other = there.get(name)
        if other and same_release(build.version, other.version):
            yield from _compare_builds(found, name, build, other)


def _compare_builds(found: Side, name: str, build: Build, other: Build) -> Iterator[Finding]:
    pairs = list(_facts(build, other))
    wrong = next((it for it in pairs if not _same(*it)), None)
    if wrong:
        # for another device on purpose: by its variant, or as a build that can do more
        chosen = build.device != other.device and other.device in (found.variant, "gpu")
        severity: Severity | None = "note" if _NO_LABEL in wrong or chosen else None
        todo = with_pin(found, f"{build.distribution}=={build.version}")
        if build.device and other.device and build.device != other.device:
            todo = f"nothing if that is meant; else choose `--variant {build.device}`, or compare predictions"
        yield differs("framework-build", name, wanted=wrong[0], found=wrong[1], todo=todo, severity=severity)
    elif pairs:
        yield agree("framework-build", name, ", ".join(two for _, two in pairs))


def _facts(build: Build, other: Build) -> Iterator[tuple[str, str]]:
    """What tells one build from another, where both have it: device, CUDA, commit, label."""
    if build.device and other.device:
        yield f"built for the {build.device.upper()}", f"built for the {other.device.upper()}"
    here, there = build.facts, other.facts
    if here and there and here.cuda and there.cuda:
        yield f"built with CUDA {here.cuda}", f"built with CUDA {there.cuda}"
    if here and there and here.git_version and there.git_version:
        yield f"built from {here.git_version}", f"built from {there.git_version}"
    labels = label(build.version), label(other.version)
    if any(labels):
        one, two = (f"+{it}" if it else _NO_LABEL for it in labels)
        yield one, two


def _same(one: str, other: str) -> bool:
    """Of CUDA the first two numbers count."""
    before, _, version = one.rpartition(" ")
    return same_numbers(version, other.rpartition(" ")[2], 2) if before.endswith("CUDA") else one == other


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
    lacking = [it for it in gone if not family(it.name) and not (is_foreign(it.name) and found.kind in (*MADE, "host"))]
    slim, dropped = [it for it in lacking if it.name in found.slim], [it for it in gone if it.name in found.dropped]
    if slim:
        says = f"{counted(len(slim), 'package')} that only training uses {'is' if len(slim) == 1 else 'are'} left out: "
        todo = "nothing if the golden sample agrees there; else build it without --slim"
        yield _left_out("slim", says, slim, todo, "warning")
    if dropped:
        says = f"{counted(len(dropped), 'package')} left out by --drop or --only-imported: "
        todo = "nothing if the model does without; else build it without --drop and --only-imported"
        yield _left_out("dropped", says, dropped, todo, "note")
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


def _left_out(about: str, says: str, lacking: list[Package], todo: str, severity: Severity) -> Finding:
    """What `--slim` or `--drop` left out, where the lock or the image's label says so."""
    names = tuple(f"{it.name} {_identity(it)}" for it in lacking)
    return differs(
        "package-missing", about, says + listing(names), wanted=listing(names), found="", todo=todo,
        severity=severity, packages=names,
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
