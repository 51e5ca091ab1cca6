"""The interpreter, the operating system, the machine and the C library."""

from collections.abc import Iterator

from envbuild.verify.findings import Finding, Severity
from envbuild.verify.rules.catalogue import MADE, agree, brings_all, differs, remedy
from envbuild.verify.rules.versions import minor, numbers, same_numbers
from envbuild.verify.sources import Side

_PATCH = "A patch release repairs faults, which seldom changes a number; libraries that Python brings may be others."
_NONE = "Nothing that the run had can be there without it: no package was compared."
_MACHINES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64", "armv8": "aarch64"}
_OTHER_MACHINE = "build for this machine by `--platform`, and compare its predictions with the run's"
_CHOSEN = "The wheels were chosen for this C library, and some may not load with an older one."


def python(wanted: Side, found: Side) -> Iterator[Finding]:
    """The minor version and, as far as both know it, the patch; an image may have no Python at all."""
    if brings_all(wanted, found):
        return
    if bool(wanted.pythonless) != bool(found.pythonless):
        one, other = ("no Python" if side.pythonless else side.python or "" for side in (wanted, found))
        if one and other:
            todo = f"check that it is the right image, or {remedy(found)}"
            yield differs("python", "python", wanted=one, found=other, todo=todo, why=_NONE)
    one, other = (side.python.rstrip("+") if side.python else "" for side in (wanted, found))
    if not (minor(one) and minor(other)):
        return
    if not same_numbers(one, other, 2):
        yield differs("python", "python", wanted=one, found=other, todo=remedy(found))
    elif one != other and min(len(numbers(one)), len(numbers(other))) > 2:
        yield differs("python", "python", wanted=one, found=other, todo=remedy(found), severity="warning", why=_PATCH)
    else:
        yield agree("python", "python", min(one, other, key=len), wanted=one, found=other)


def implementation(wanted: Side, found: Side) -> Iterator[Finding]:
    """CPython or another one."""
    one, other = (side.implementation.lower() if side.implementation else "" for side in (wanted, found))
    rule, about = "python-implementation", "implementation"
    if one and other and not brings_all(wanted, found):
        same = one == other
        yield (agree(rule, about, one, wanted=one, found=other) if same
               else differs(rule, about, wanted=one, found=other, todo=remedy(found)))  # fmt: skip


def system(wanted: Side, found: Side) -> Iterator[Finding]:
    """Linux or another one; what envbuild makes is for Linux, whatever the run had."""
    one, other = wanted.system, found.system
    if brings_all(wanted, found) or not (one and other):
        return
    if one.lower() == other.lower():
        yield agree("system", "system", one, wanted=one, found=other)
        return
    on_purpose = found.kind in MADE and other.lower() == "linux"
    severity: Severity = "warning" if on_purpose else "error"
    todo = "compare the image's predictions with the run's" if on_purpose else remedy(found)
    yield differs("system", "system", wanted=one, found=other, todo=todo, severity=severity)


def machine(wanted: Side, found: Side) -> Iterator[Finding]:
    """The architecture, under whichever of its names."""
    if not (wanted.machine and found.machine):
        return
    one, other = (_MACHINES.get(name.lower(), name.lower()) for name in (wanted.machine, found.machine))
    if one == other:
        yield agree("machine", "machine", one, wanted=one, found=other)
    else:
        yield differs("machine", "machine", wanted=one, found=other, todo=_OTHER_MACHINE)


def glibc(wanted: Side, found: Side) -> Iterator[Finding]:
    """The C library; a newer version runs all that an older one did.

    Of a lock the version is the one its wheels were chosen for; of a run the one that happened to be there.
    """
    if brings_all(wanted, found) or not (wanted.libc and found.libc):
        return
    if wanted.libc.lower() != found.libc.lower():
        why, todo = f"What was compiled for {wanted.libc} does not load with {found.libc}.", remedy(found)
        yield differs("glibc", "libc", wanted=wanted.libc, found=found.libc, todo=todo, severity="error", why=why)
        return
    about, one, other = wanted.libc, wanted.libc_version, found.libc_version
    if not (one and other):
        return
    if same_numbers(one, other, 2) or numbers(other) > numbers(one):
        says = other if same_numbers(one, other, 2) else f"{other} runs all that {one} does"
        yield agree("glibc", about, says, wanted=one, found=other)
        return
    severity: Severity | None = "error" if wanted.kind == "lock" else None
    todo = "run the image, which brings its own, or use a newer system"
    todo = "use a newer base: `--base`" if found.kind in MADE else todo
    why = _CHOSEN if severity else ""
    yield differs("glibc", about, wanted=one, found=other, todo=todo, severity=severity, why=why)
