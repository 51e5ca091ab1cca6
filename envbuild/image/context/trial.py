"""Templates of somebody's own, tried on made-up recipes before the long work that they come after."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from envbuild.errors import UsageError
from envbuild.image.context.context import build_context
from envbuild.image.context.render import built_in
from envbuild.lock.model import LockedWheel, SystemPackage, Target
from envbuild.oci.digest import Digest
from envbuild.recipe import Recipe

_DIGEST: Final = Digest("0" * 64)


def check_templates(folder: Path) -> None:
    """UsageError for a folder that replaces no template or has what is no file, BuildError for a broken template."""
    names = sorted(built_in())
    todo = f"give a folder with any of {', '.join(names)}; envbuild eject DIR writes them"
    if not folder.is_dir():
        raise UsageError("there is no such folder of templates", where=str(folder), todo=todo)
    there = [folder / name for name in names if (folder / name).is_symlink() or (folder / name).exists()]
    if not there:
        raise UsageError("the folder has no template of a name that is used", where=str(folder), todo=todo)
    for path in (it for it in there if not it.is_file()):
        what = "a template has to be a regular file, and this is none"
        raise UsageError(what, where=str(path), todo="put a file there, or remove it to keep the built-in template")
    for recipe in _recipes():
        for wheelhouse in (False, True):
            build_context(recipe, b"", b"", folder, wheelhouse=wheelhouse)


def _recipes() -> Iterator[Recipe]:
    """One with everything and one with as little as there can be, so that templates take their branches."""
    wheel = LockedWheel(
        name="trial", version="1", filename="trial-1-py3-none-any.whl", sha256=_DIGEST, size=1, url="file:///trial"
    )
    package = SystemPackage(
        name="libtrial1", version="1:1", architecture="amd64", filename="pool/libtrial1.deb", sha256=_DIGEST, size=1
    )
    target = Target(python="3.11.2", machine="x86_64", glibc="2.36")
    yield Recipe(
        base_name=f"trial@{_DIGEST}",
        base_digest=_DIGEST,
        python_path="/usr/bin/python3.11",
        target=target,
        wheels=(wheel,),
        packages=(package,),
        variables=(("TRIAL", "1"),),
        labels=(("dev.envbuild.variant", "cpu"),),
    )
    yield Recipe(
        base_name="debian:trial",
        base_digest=_DIGEST,
        python_path="/usr/bin/python3.11",
        target=target,
        wheels=(),
        variables=(),
        labels=(),
    )
