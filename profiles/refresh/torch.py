"""PyTorch's releases, as their wheels on the index say."""

import re
import zipfile

from envbuild.match.rows import FrameworkProfile, FrameworkWheel
from profiles.refresh.archive import constants, remote_wheel, search
from profiles.refresh.index import Index
from profiles.refresh.metadata import cudnn, limits, read_metadata
from profiles.refresh.rows import Report, Row, dotted, other_files, read_rows

OLDEST = "1.8"
_VERSION = "torch/version.py"
_PYTHON_LIBRARY = "torch/lib/libtorch_python.so"
_ARCHITECTURES = re.compile(rb"((?:(?:sm|compute)_\d+[af]? )+(?:sm|compute)_\d+[af]?)\0")
"""The text that `torch.cuda.get_arch_list()` splits."""


def read_torch(index: Index, report: Report) -> FrameworkProfile:
    """Read a wheel of every release and machine by range requests; LockError names what failed."""
    return read_rows(index, "torch", ("torch",), OLDEST, _read_row, report)


def _read_row(index: Index, row: Row) -> FrameworkWheel:
    newest = row.newest
    with remote_wheel(index, newest.file) as archive:
        needs = read_metadata(archive).needs(newest.machine, row.pythons)
        cuda = _cuda(archive)
        capabilities = _capabilities(archive) if cuda else ()
    required = tuple(it for it in needs if it.is_nvidia) if cuda else ()
    return FrameworkWheel(
        distribution=newest.distribution,
        version=str(newest.version),
        machine=newest.machine,
        pythons=row.pythons,
        glibc=dotted(row.glibc),
        cuda=cuda,
        cudnn=cudnn(required),
        compute_capabilities=capabilities,
        cuda_requirements=tuple(it.text for it in required),
        limits=limits(needs),
        wheel=newest.file.name,
        sha256=newest.file.sha256.hex,
        others=other_files(row),
    )


def _cuda(archive: zipfile.ZipFile) -> str | None:
    """The CUDA that it was built with; BadZipFile where the module does not say, not even that it is none."""
    found = constants(archive, _VERSION) if _VERSION in archive.namelist() else {}
    cuda = found.get("cuda", ...)
    if not isinstance(cuda, str | None):
        raise zipfile.BadZipFile(f"{_VERSION} does not say which CUDA it was built with")
    return cuda


def _capabilities(archive: zipfile.ZipFile) -> tuple[str, ...]:
    """What it was compiled for; empty where the library does not say. Code of `sm_90a` runs on no other GPU."""
    if _PYTHON_LIBRARY not in archive.namelist():
        return ()
    found = search(archive, _PYTHON_LIBRARY, _ARCHITECTURES, (b"sm_", b"compute_"))
    return tuple(it for it in found[1].decode().split() if it[-1].isdigit()) if found else ()
