"""Files that appear whole or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import platformdirs


@contextmanager
def written_whole(path: Path, *, mode: int = 0o644) -> Iterator[BinaryIO]:
    """Yield a file that replaces `path` when the block ends well and vanishes when it does not.

    The temporary file lies beside its target, so that the last step is one rename on one file system.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:64]}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_whole(path: Path, data: bytes) -> None:
    """Write `data` to `path`, whole or not at all."""
    with written_whole(path) as file:
        file.write(data)


def data_folder(name: str) -> Path:
    """Find `templates` or `profiles`: inside an installed wheel, else in the checkout (an editable install has no copy)."""
    package = Path(__file__).resolve().parent
    installed = package / "data" / name
    return installed if installed.is_dir() else package.parent / name


def cache_folder() -> Path:
    """Return where verified downloads, bases and layers are kept: ENVBUILD_CACHE, else the user's cache folder."""
    chosen = os.environ.get("ENVBUILD_CACHE")
    return Path(chosen) if chosen else platformdirs.user_cache_path("envbuild")
