"""What shows without importing anything: declared requirements, and which NumPy wheels were built for."""

import zipfile
from collections.abc import Iterator
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import Version

from envbuild.errors import VerifyError
from envbuild.lock.download import wheel_path
from envbuild.lock.run import LockedRun
from envbuild.lock.settings import local_path
from envbuild.manifest.model import TrainingManifest

_CHUNK = 1 << 20
_NUMPY_1, _NUMPY_2 = b"numpy.core._multiarray_umath", b"numpy._core._multiarray_umath"
"""What the headers of NumPy import; those of NumPy 2 try its own name first (numpy/__multiarray_api.h)."""


def check_metadata(run: LockedRun, manifest: TrainingManifest, cache: Path) -> None:
    """Refuse locked versions that do not go together; VerifyError. Those of a complete record did in the run."""
    faults = [] if manifest.source.complete else [*_conflicts(run, manifest), *_numpy_faults(run, cache)]
    if faults:
        what = "\n  - ".join(("the locked distributions do not go together:", *faults))
        todo = "pin other versions in the record; --import-check never makes the image without this check"
        raise VerifyError(what, where="import check, metadata", todo=todo)


def _conflicts(run: LockedRun, manifest: TrainingManifest) -> Iterator[str]:
    """Requirements that the lock does not hold, unless the record names both sides."""
    recorded = {str(canonicalize_name(it.name)) for it in manifest.distributions}
    for conflict in run.conflicts:
        if not {conflict.requirer.partition(" ")[0], conflict.name} <= recorded:
            yield str(conflict)


def _numpy_faults(run: LockedRun, cache: Path) -> Iterator[str]:
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
