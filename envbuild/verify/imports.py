"""Whether an image can import what the run imported: in a container, under bubblewrap, or by metadata alone."""

import json
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import Version

from envbuild.engine.buildkit import loaded_base
from envbuild.engine.client import connected, find_image
from envbuild.engine.load import check_reading
from envbuild.errors import MissingComponentError, UsageError, VerifyError, counted
from envbuild.lock.download import wheel_path
from envbuild.lock.run import LockResult
from envbuild.lock.settings import local_path
from envbuild.manifest.model import TrainingManifest
from envbuild.oci.image import Image, platform_name
from envbuild.report import Reporter
from envbuild.verify.golden import program
from envbuild.verify.golden.runners import InImage, Ran, Runner, in_bubblewrap, why_no_bubblewrap

_INSTEAD = "install bubblewrap"
_IMAGE = "the image"
_PROGRAM = Path(program.__file__).read_text()
_SECONDS = 900.0
_DRIVER = re.compile(r"\blib(cuda|nvcuvid|nvoptix|nvidia-[\w-]+)\.so")
"""Libraries of NVIDIA's driver, which a host with a GPU gives a container."""
_LIBRARY = re.compile(r"\b(lib[\w.+-]+\.so[\d.]*): cannot open shared object file")
"""The loader's message about a library that no wheel brings."""
_MODULE = re.compile(r"No module named '(\w+)'$")
_SIGILL = 128 + 4
NEVER = "--import-check never makes the image without this check"
_CHUNK = 1 << 20
_NUMPY_1, _NUMPY_2 = b"numpy.core._multiarray_umath", b"numpy._core._multiarray_umath"
"""What the headers of NumPy import; those of NumPy 2 try its own name first (numpy/__multiarray_api.h)."""
_DATA = re.compile(r"[^/]+\.data/(purelib|platlib)/")
_MODULE_FILE = re.compile(r"(?P<name>[^/.]+)\.(py|so|(cpython-|abi3)[\w.-]*so)")
_BESIDE = frozenset({"test", "tests", "doc", "docs", "example", "examples", "benchmarks", "scripts", "tools"})
"""Folders that lie in wheels by mistake, and need what is not installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an image can be tried, or why nowhere."""

    name: str
    """`container engine`, `bubblewrap`; empty for nowhere."""
    runner: Runner | None = None
    why: str = ""
    """Why nowhere, in half a sentence."""


@contextmanager
def place_for(image: Image, machine: str, cache: Path, report: Reporter) -> Iterator[Place]:
    """Yield where an image for `machine` can be tried; what was put there is gone when the block ends."""
    with ExitStack() as stack:
        try:
            client = stack.enter_context(connected(_INSTEAD))
            check_reading(client, (it.descriptor.media_type for it in image.layers), NEVER)
        except MissingComponentError as error:
            if why := why_no_bubblewrap(machine, cache):
                yield Place(name="", why=f"{error.what}, and {why}")
                return
            yield Place(name="bubblewrap", runner=stack.enter_context(in_bubblewrap(image, _IMAGE, cache)))
            return
        version, wanted = client.version(), platform_name(image)
        engine = f"{version['Os']}/{version['Arch']}"
        if not f"{wanted}/".startswith(f"{engine}/"):
            yield Place(name="", why=f"the container engine is {engine}, and the image is for {wanted}")
            return
        name = stack.enter_context(loaded_base(client, image, report))
        runner = InImage(name=name, client=client, image=find_image(client, name, report))
        yield Place(name="container engine", runner=runner)


@dataclass(frozen=True, slots=True, kw_only=True)
class Imports:
    """What was imported, and where."""

    place: str
    """`container engine`, `bubblewrap` or `metadata`: nothing was imported, and only metadata was looked at."""
    modules: tuple[str, ...] = ()
    """What was imported."""
    untold: tuple[tuple[str, str], ...] = ()
    """What could not be tried on this machine, and why."""

    @classmethod
    def from_dict(cls, value: Any) -> "Imports":
        """Read what `to_dict` gives; KeyError, TypeError, ValueError or AttributeError for anything else."""
        untold = tuple((str(module), str(why)) for module, why in value["untold"].items())
        return cls(place=str(value["place"]), modules=tuple(map(str, value["modules"])), untold=untold)

    def to_dict(self) -> dict[str, Any]:
        """All of it for programs."""
        return asdict(self) | {"modules": list(self.modules), "untold": dict(self.untold)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRequest:
    """What is to be imported, and what is known of it."""

    modules: tuple[str, ...]
    versions: Mapping[str, str]
    """Versions of distributions by the name of their package."""
    known: tuple[str, ...] = ()
    """Which of the versions are known not to go together, and what to pin."""
    gpu: bool = False
    """Whether the image is for a GPU, so that a need of the driver's libraries is not a fault."""


def check_imports(place: Place, request: ImportRequest) -> Imports:
    """Import modules; VerifyError with the chain of causes of each that fails."""
    modules = request.modules
    assert place.runner, "there is a place"
    try:
        ran = place.runner.run(_PROGRAM, {"order.json": json.dumps({"modules": modules}).encode()}, seconds=_SECONDS)
    except UsageError as unstarted:  # the error is not an option's
        todo = f"give another base; {NEVER}"
        raise VerifyError(unstarted.what, where=f"import check, {place.name}", todo=todo) from unstarted
    lines = _lines(ran)
    errors: dict[str, Any] = {it["module"]: it["error"] for it in lines if "module" in it}
    faults, untold = [], []
    for module, error in errors.items():
        if error and (why := _why_untold(error, gpu=request.gpu)):
            untold.append((module, why))
        elif error:
            faults.append(_chain(error, request.versions))
    if len(errors) < len(modules):
        begun = [it["begins"] for it in lines if "begins" in it and it["begins"] not in errors]
        module = begun[0] if begun else "the interpreter"
        if ran.code == _SIGILL and not ran.late:
            untold.append((module, "this machine's processor lacks an instruction that it uses"))
        else:
            last = f"; it printed: {ran.lines[-1]}" if ran.lines else ""
            signal = f"by signal {ran.code - 128}" if ran.code > 128 else f"with exit code {ran.code}"
            end = f"ended the process {signal}{last}" if not ran.late else f"took more than {_SECONDS:.0f} s"
            faults.append(f"{module}: importing it {end}")
    if faults:
        many = f"{len(faults)} of {counted(len(modules), 'module')}"
        what = "\n  - ".join((f"the image cannot import {many} that the run could import:", *faults))
        raise VerifyError(what, where=f"import check, {place.name}", todo=_remedy(faults, request))
    imported = tuple(module for module, error in errors.items() if error is None)
    return Imports(place=place.name, modules=imported, untold=tuple(untold))


def _lines(ran: Ran) -> list[Mapping[str, Any]]:
    """What the program wrote; a line that is not whole is left out, as the process may have ended in it."""
    found: list[Mapping[str, Any]] = []
    for line in (ran.answer or b"").splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def _why_untold(error: Mapping[str, Any], *, gpu: bool) -> str:
    """Why a failure says nothing of the image; empty where it does."""
    for text in error["says"] if gpu else ():
        if found := _DRIVER.search(text):
            return f"it needs {found[0]} of NVIDIA's driver, and a GPU"
    return f"it needs what is not in the image: {error['root']}" if error["outside"] else ""


def _remedy(faults: Sequence[str], request: ImportRequest) -> str:
    """What to do about modules and libraries that are missing, and about versions that do not go together."""
    modules = sorted({name for fault in faults for name in _MODULE.findall(fault)})
    libraries = sorted({name for fault in faults for name in _LIBRARY.findall(fault)})
    remedies = list(request.known)
    if modules:
        added = "--from requirements adds what a list of pins requires"
        remedies.append(f"add what has {', '.join(modules)} to the record ({added})")
    if libraries:
        remedies.append(f"give a --base that has {', '.join(libraries)}")
    if not all(_MODULE.search(fault) or _LIBRARY.search(fault) for fault in faults):
        remedies.append("pin versions of these in the record that go together")
    return "; ".join((*remedies, "--drop NAME leaves out what the model does without", NEVER))


def _chain(error: Mapping[str, Any], versions: Mapping[str, str]) -> str:
    """`tensorflow 2.12.0 -> jax 0.10.2: AttributeError: ... (numpy 1.23.5)`."""

    def with_version(package: str) -> str:
        return f"{package} {versions[package]}" if package in versions else package

    packages, root = error["packages"], str(error["root"])
    about = [it for it in sorted(versions) if it not in packages and re.search(rf"(?i)\b{re.escape(it)}\b", root)]
    aside = f" ({', '.join(map(with_version, about))})" if about else ""
    return f"{' -> '.join(map(with_version, packages))}: {root}{aside}"


def check_metadata(run: LockResult, manifest: TrainingManifest, cache: Path) -> None:
    """Refuse locked versions that do not go together; VerifyError. Those of a complete record did in the run."""
    recorded = {str(canonicalize_name(it.name)) for it in manifest.distributions}
    # requirements that the lock does not meet count unless the record names both sides
    conflicts = [str(it) for it in run.conflicts if not {it.requirer.partition(" ")[0], it.name} <= recorded]
    faults = [] if manifest.source.complete else [*conflicts, *_numpy_faults(run, cache)]
    if faults:
        what = "\n  - ".join(("the locked distributions do not go together:", *faults))
        todo = "pin other versions in the record; --import-check never makes the image without this check"
        raise VerifyError(what, where="import check, metadata", todo=todo)


def _numpy_faults(run: LockResult, cache: Path) -> Iterator[str]:
    """Wheels at hand that were built for NumPy 1, where another one is locked."""
    numpy = next((it.version for it in run.lock.wheels if it.name == "numpy"), None)
    if numpy is None or Version(numpy).major < 2:
        return
    for wheel in run.lock.wheels:
        kept = wheel_path(cache, wheel.sha256)
        path = kept if kept.exists() else local_path(wheel.url)
        if wheel.name != "numpy" and path and (module := numpy_1_module(path)):
            yield f"{wheel.name} {wheel.version} was built for NumPy 1 ({module}), and numpy {numpy} is there"


def numpy_1_module(wheel: Path) -> str | None:
    """The first extension module of a wheel that was compiled with the headers of NumPy 1; None without one."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            if member.filename.endswith(".so") and _is_for_numpy_1(archive, member):
                return member.filename
    return None


def _is_for_numpy_1(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bool:
    old, rest = False, b""
    with archive.open(member) as file:
        while data := file.read(_CHUNK):
            text = rest + data
            if _NUMPY_2 in text:
                return False
            old = old or _NUMPY_1 in text
            rest = data[-len(_NUMPY_2) :]
    return old


def import_names(files: Iterable[str]) -> tuple[str, ...]:
    """What a wheel has to import: the topmost packages and modules, also below folders that only hold others.

    Names that begin with an underscore are left out, as their own packages import them.
    """
    paths = [_DATA.sub("", path, count=1).split("/") for path in files]
    packages = {
        tuple(folders)
        for *folders, name in paths
        if folders and (module := _MODULE_FILE.fullmatch(name)) and module["name"] == "__init__"
    }
    found = set[tuple[str, ...]]()
    for *folders, name in paths:
        above = (tuple(folders[:end]) for end in range(1, len(folders) + 1))
        module = _MODULE_FILE.fullmatch(name)
        alone = (module["name"],) if module and not folders else ()
        found.add(next((it for it in above if it in packages), alone))
    public = (it for it in found if it and all(part.isidentifier() and part[0] != "_" for part in it))
    return tuple(sorted(".".join(it) for it in public if not _BESIDE & set(it)))
