"""By what the bytecode of an image on a base is made: the base's own interpreter, on this machine."""

from collections.abc import Callable
from pathlib import Path

from envbuild.base.interpreter import find_interpreter, runs_here
from envbuild.errors import BuildError
from envbuild.image import Compiling
from envbuild.image.bytecode import Interpreter, Store, Unavailable
from envbuild.recipe import Base


def compiling_on(base: Base, cache: Path, todo: str, told: Callable[[int], object] = lambda _count: None) -> Compiling:
    """Say by what sources are compiled; what was compiled, and the interpreter, are kept in `cache`.

    BuildError, with `todo`, where the base's interpreter cannot run here; from `find` where it turns out not to.
    """

    def find() -> Interpreter:
        found = find_interpreter(base, cache)
        if isinstance(found, Unavailable):
            raise _refused(found, base.name, todo)
        return found

    check_compiles(base.target.machine, base.name, todo)
    return Compiling(identity=base.interpreter, find=find, store=Store(cache), told=told)


def check_compiles(machine: str, where: str, todo: str) -> None:
    """See, before anything is read, that the interpreter of a base for `machine` may run here; BuildError if not."""
    if reason := runs_here(machine):
        raise _refused(reason, where, todo)


def _refused(reason: Unavailable, where: str, todo: str) -> BuildError:
    return BuildError(f"there can be no bytecode: {reason.why}", where=where, todo=todo)
