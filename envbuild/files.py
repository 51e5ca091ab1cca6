"""Files that appear whole or not at all."""

import errno
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import platformdirs

from envbuild.errors import BuildError, UsageError

UNFINISHED = ".new-"
"""How the names of files and folders begin that are not whole yet."""


@contextmanager
def written_aside(folder: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """Yield a new file in `folder` and its temporary path; when the block ends, what was not renamed is gone."""
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=UNFINISHED, dir=folder)
    path = Path(name)
    try:
        with open(path, "wb", opener=lambda *_: handle) as file:  # it then knows its name
            yield file, path
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def written_whole(path: Path, *, mode: int = 0o644) -> Iterator[BinaryIO]:
    """Yield a file that replaces `path` when the block ends well and vanishes when it does not.

    The temporary file lies beside its target, so that the last step is one rename on one file system. A file that is
    there already keeps its mode; BuildError where something else is.
    """
    mode = _mode_of(path, mode)
    with written_aside(path.parent) as (file, temporary):
        yield file
        settle(file, temporary, path, mode=mode)


def _mode_of(path: Path, otherwise: int) -> int:
    """Return the mode of the file at `path`, `otherwise` where there is none.

    BuildError for a device, a pipe or a folder: renaming over one such as /dev/null would replace it.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return otherwise
    if not stat.S_ISREG(mode):
        raise BuildError("this is not a regular file", where=str(path), todo="give the path of a file, new or old")
    return stat.S_IMODE(mode)


def target_outside(folder: Path, path: Path) -> str:
    """Where a path in a folder really leads, if a link takes it out of the folder; else the empty text."""
    target = os.path.realpath(path)
    root = os.path.realpath(folder)
    return "" if target == root or target.startswith(root.rstrip("/") + "/") else target


def open_inside(folder: Path, path: Path) -> BinaryIO:
    """Open a regular file of a folder for reading; OSError where a link leads out of the folder.

    Links are resolved first, and then none is followed, so nobody can put one there in between.
    """
    if target := target_outside(folder, path):
        raise OSError(errno.EXDEV, f"a link leads out of the folder, to {target}", str(path))
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    inside = Path(os.path.realpath(path)).relative_to(os.path.realpath(folder))
    handle = os.open(os.path.realpath(folder), flags | os.O_DIRECTORY)
    for part in inside.parts:
        above = handle
        try:
            handle = os.open(part, flags, dir_fd=above)
        finally:
            os.close(above)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "no regular file", str(path))
    return os.fdopen(handle, "rb")


def is_no_file(error: OSError) -> bool:
    """Whether there is nothing to read, or no file; any other error, as of too many open files, may pass."""
    return isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError) or error.errno == errno.ELOOP


def check_writable(path: Path) -> None:
    """See that `written_whole` could write `path` by now, in a folder that is there; OSError or BuildError."""
    _mode_of(path, 0)
    path.parent.stat()  # which written_aside would make
    with written_aside(path.parent):
        pass


def settle(file: BinaryIO, temporary: Path, path: Path, *, mode: int = 0o644) -> None:
    """Make a file that was written aside durable, and give it its name."""
    file.flush()
    os.fsync(file.fileno())
    temporary.chmod(mode)
    temporary.replace(path)


def share(source: Path, target: Path, *, mode: int) -> bool:
    """Make `target` a hard link to `source`, with one mode for both.

    False where that is impossible: across file systems, or for another user's file.
    """
    with written_aside(target.parent) as (_, temporary), suppress(OSError):
        temporary.unlink()
        temporary.hardlink_to(source)
        temporary.chmod(mode)
        temporary.replace(target)
        return True
    return False


def write_whole(path: Path, data: bytes) -> None:
    """Write `data` to `path`, whole or not at all."""
    with written_whole(path) as file:
        file.write(data)


def check_stageable(folder: Path, option: str) -> None:
    """See that `staged_folder` could write `folder` by now, and the folders above it that it would make; UsageError.

    `option` is what named it.
    """
    place = next(it for it in (folder, *folder.absolute().parents) if os.path.lexists(it))
    todo = f"give {option} a folder that this user may write, or that can be made"
    try:
        if not place.is_dir():
            what = "a link to nothing" if place.is_symlink() else "a file, not a folder"
            raise UsageError(f"{place} is {what}", where=f"{option} {folder}", todo=todo)
        with written_aside(place):
            pass
    except OSError as error:
        what = f"the folder cannot be written: {error.strerror}"
        raise UsageError(what, where=f"{option} {folder}", todo=todo) from error


@contextmanager
def staged_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder beside `folder`, whose files come into `folder` when the block ends well and vanish when not.

    A folder that is there already keeps its other files; index.json comes last, as it names all the others. The yielded
    one then lies in it, as what is beside a mounted folder is on another file system.
    """
    folder = folder.absolute()
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
    place = folder if folder.is_dir() else folder.parent
    with tempfile.TemporaryDirectory(prefix=f"{UNFINISHED}{folder.name[:64]}-", dir=place) as name:
        staged = Path(name) / "files"
        staged.mkdir()
        yield staged
        if not folder.exists():
            staged.rename(folder)
            return
        paths = sorted(staged.rglob("*"), key=lambda path: (path.name == "index.json", path))
        places = [(path, folder / path.relative_to(staged)) for path in paths if path.is_file()]
        for _, target in places:
            _mode_of(target, 0)
        for path, target in places:
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)


def data_folder(name: str) -> Path:
    """Find `templates` or `profiles`: in an installed wheel, else in the checkout (editable installs have no copy)."""
    package = Path(__file__).resolve().parent
    installed = package / "data" / name
    return installed if installed.exists() else package.parent / name


def base_dockerfile() -> Path:
    """Find `Dockerfile.base`, which lies where the folders of data do."""
    return data_folder("Dockerfile.base")


def home_folder(environ: Mapping[str, str]) -> Path:
    """The user's home; a folder that there is not where the user has none, as those of containers often have."""
    try:
        return Path(environ.get("HOME") or Path.home())
    except RuntimeError:
        return Path("/nonexistent")


def credentials_path(environ: Mapping[str, str]) -> Path:
    """Where the file of Application Default Credentials is, or would be (google-auth, `google.auth.default`)."""
    if path := environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        return Path(path)
    folder = environ.get("CLOUDSDK_CONFIG") or home_folder(environ) / ".config/gcloud"
    return Path(folder) / "application_default_credentials.json"


def cache_folder() -> Path:
    """Return where verified downloads, bases and layers are kept: ENVBUILD_CACHE, else the user's cache folder.

    UsageError where that lies in a file, is a link to nothing, or where the user has no home.
    """
    chosen = os.environ.get("ENVBUILD_CACHE")
    try:
        folder = Path(chosen).absolute() if chosen else platformdirs.user_cache_path("envbuild")
    except RuntimeError as error:
        what, todo = "this user has no home, and the cache no place", "set ENVBUILD_CACHE to a folder, or HOME"
        raise UsageError(what, where="HOME", todo=todo) from error
    first = next(it for it in (folder, *folder.parents) if os.path.lexists(it))
    if not first.is_dir():
        what = f"the cache is to be a folder, and {'it' if first == folder else first} is none"
        raise UsageError(what, where=str(folder), todo="set ENVBUILD_CACHE to a folder; it is made when it is missing")
    return folder
