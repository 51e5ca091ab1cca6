"""The interpreter."""

from collections.abc import Iterator

from envbuild.verify.findings import Finding
from envbuild.verify.rules.releases import minor, numbers, same_numbers
from envbuild.verify.rules.saying import agree, anew, brings_all, differs
from envbuild.verify.sides.side import Side

_PATCH = "A patch release repairs faults, which seldom changes a number; libraries that Python brings may be others."


_NONE = "Nothing that the run had can be there without it: no package was compared."


def python(wanted: Side, found: Side) -> Iterator[Finding]:
    """The minor version and, as far as both know it, the patch; an image may have no Python at all."""
    if not brings_all(wanted, found) and bool(wanted.pythonless) != bool(found.pythonless):
        yield from _without(wanted, found)
    one, other = (side.python.rstrip("+") if side.python else "" for side in (wanted, found))
    if brings_all(wanted, found) or not (minor(one) and minor(other)):
        return
    if not same_numbers(one, other, 2):
        yield differs("python", "python", wanted=one, found=other, todo=anew(found))
    elif one != other and min(len(numbers(one)), len(numbers(other))) > 2:
        yield differs("python", "python", wanted=one, found=other, todo=anew(found), severity="warning", why=_PATCH)
    else:
        yield agree("python", "python", min(one, other, key=len), wanted=one, found=other)


def _without(wanted: Side, found: Side) -> Iterator[Finding]:
    one, other = ("no Python" if side.pythonless else side.python for side in (wanted, found))
    if one and other:
        todo = f"see that it is the right image, or {anew(found)}"
        yield differs("python", "python", wanted=one, found=other, todo=todo, why=_NONE)


def implementation(wanted: Side, found: Side) -> Iterator[Finding]:
    """CPython or another one."""
    one, other = (side.implementation.lower() if side.implementation else "" for side in (wanted, found))
    if brings_all(wanted, found) or not (one and other):
        return
    if one == other:
        yield agree("python-implementation", "implementation", one, wanted=one, found=other)
    else:
        yield differs("python-implementation", "implementation", wanted=one, found=other, todo=anew(found))
