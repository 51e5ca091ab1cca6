"""PyTorch's releases, as their wheels on the index say."""

import zipfile

from envbuild.match.profiles import FrameworkProfile, FrameworkWheel
from envbuild.refresh.index import Index
from envbuild.refresh.literals import constants
from envbuild.refresh.metadata import cudnn, limits, read_metadata
from envbuild.refresh.remote import remote_wheel
from envbuild.refresh.wheels import Report, Row, dotted, read_rows

OLDEST = "1.13"
_VERSION = "torch/version.py"


def read_torch(index: Index, report: Report) -> FrameworkProfile:
    """Read a wheel of every release and machine by range requests; LockError names what failed."""
    return read_rows(index, "torch", ("torch",), OLDEST, _read_row, report)


def _read_row(index: Index, row: Row) -> FrameworkWheel:
    newest = row.newest
    with remote_wheel(index, newest.file) as archive:
        needs = read_metadata(archive).needs(newest.machine, row.pythons)
        cuda = _cuda(archive)
    required = tuple(it for it in needs if it.is_nvidia) if cuda else ()
    return FrameworkWheel(
        distribution=newest.distribution,
        version=str(newest.version),
        machine=newest.machine,
        pythons=row.pythons,
        glibc=dotted(row.glibc),
        cuda=cuda,
        cudnn=cudnn(required),
        cuda_requirements=tuple(it.text for it in required),
        limits=limits(needs),
        wheel=newest.file.name,
        sha256=newest.file.sha256,
    )


def _cuda(archive: zipfile.ZipFile) -> str | None:
    """The CUDA that it was built with; BadZipFile where the module does not say, not even that it is none."""
    found = constants(archive, _VERSION) if _VERSION in archive.namelist() else {}
    cuda = found.get("cuda", ...)
    if not isinstance(cuda, str | None):
        raise zipfile.BadZipFile(f"{_VERSION} does not say which CUDA it was built with")
    return cuda
