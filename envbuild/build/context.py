"""Build contexts as folders.

Images that engines build from them have the recipe's files, but other bytes each time. So they are known by their own
digest alone, and get neither an environment's tag nor a place in the shared cache: both promise reproducible bytes.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from envbuild.base.system import copy_debs
from envbuild.build.request import BuildRequest
from envbuild.files import share, write_whole, written_whole
from envbuild.image.context import build_context
from envbuild.lock.download import wheel_path
from envbuild.lock.formats import WHEELS, copy_local, is_local, requirements_text
from envbuild.lock.model import Lock
from envbuild.lock.settings import IndexSettings
from envbuild.network import is_loopback
from envbuild.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The content of a build context."""

    recipe: Recipe
    lock: Lock
    pylock: bytes
    wheelhouse: bool
    """Whether it has every wheel, so that building needs no index; then the cache has to hold them."""


def write_context(folder: Path, context: Context, request: BuildRequest) -> None:
    """Write the files of a context; wheels are shared with the cache where the file system can."""
    # In a wheelhouse, pip looks nowhere else.
    requirements = requirements_text(replace(context.lock, direct=()) if context.wheelhouse else context.lock)
    files = build_context(
        context.recipe, requirements, context.pylock, request.templates, wheelhouse=context.wheelhouse
    )
    for name, data in files.items():
        write_whole(folder / name, data)
    copy_local(context.lock, folder)
    if not context.wheelhouse:
        return
    for wheel in (it for it in context.lock.wheels if not is_local(it)):
        source, target = wheel_path(request.cache, wheel.sha256), folder / WHEELS / wheel.filename
        if not share(source, target, mode=0o644):
            with source.open("rb") as original, written_whole(target) as file:
                shutil.copyfileobj(original, file)
    copy_debs(context.lock, request.cache, folder)


@contextmanager
def staged_context(context: Context, request: BuildRequest) -> Iterator[Path]:
    """Yield a folder with the context, in the cache, where wheels need not be copied; then it is gone."""
    request.cache.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".new-context-", dir=request.cache) as folder:
        write_context(Path(folder), context, request)
        yield Path(folder)


def why_wheelhouse(settings: IndexSettings, *, secrets: bool, needed: bool, packages: bool = False) -> str:
    """Why the wheels have to lie in the context; empty where a step of the build can fetch them itself.

    `secrets` says whether the builder has any, `needed` whether all wheels are read here anyway, and `packages` whether
    there are Debian packages.
    """
    reasons = {
        "nothing but folders may be asked": settings.offline,
        "the builder has no secrets, and would keep the index in the image's history": not secrets,
        "they are read here anyway": needed,
        "system packages come from this machine's mirror, which the base does not name": packages,
        "passwords come from a keyring, which the build does not have": settings.keyring,
        "the index is on this machine, which the build does not see": any(
            urlsplit(url).scheme not in ("http", "https") or is_loopback(urlsplit(url).hostname or "")
            for url in settings.indexes
        ),
    }
    return next((reason for reason, counts in reasons.items() if counts), "")
