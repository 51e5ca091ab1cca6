"""The interpreter, the operating system, the machine and the C library."""

from collections.abc import Iterator

from envbuild.verify.findings import Finding, Severity
from envbuild.verify.rules.catalogue import MADE, agree, anew, brings_all, differs
from envbuild.verify.rules.versions import minor, numbers, same_numbers
from envbuild.verify.sources import Side

_PATCH = "A patch release repairs faults, which seldom changes a number; libraries that Python brings may be others."
_NONE = "Nothing that the run had can be there without it: no package was compared."
_MACHINES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64", "armv8": "aarch64"}
_OTHER_MACHINE = "build for this machine by `--platform`, and hold its predictions against the run's"
_CHOSEN = "The wheels were chosen for this C library, and some may not load with an older one."


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
    todo = "hold the image's predictions against the run's" if on_purpose else anew(found)
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
    """The C library; a newer version runs all that an older one did."""
    if brings_all(wanted, found) or not (wanted.libc and found.libc):
        return
    if wanted.libc.lower() != found.libc.lower():
        why = f"What was compiled for {wanted.libc} does not load with {found.libc}."
        yield differs(
            "glibc", "libc", wanted=wanted.libc, found=found.libc, todo=anew(found), severity="error", why=why
        )
    elif wanted.libc_version and found.libc_version:
        yield _versions(wanted, found, wanted.libc_version, found.libc_version)


def _versions(wanted: Side, found: Side, one: str, other: str) -> Finding:
    """Of a lock the version is the one its wheels were chosen for; of a run the one that happened to be there."""
    about = f"{wanted.libc}"
    if same_numbers(one, other, 2):
        return agree("glibc", about, other, wanted=one, found=other)
    if numbers(other) > numbers(one):
        return agree("glibc", about, f"{other} runs all that {one} does", wanted=one, found=other)
    severity: Severity | None = "error" if wanted.kind == "lock" else None
    todo = (
        "stand it on a newer base: `--base`"
        if found.kind in MADE
        else "run the image, which brings its own, or use a newer system"
    )
    why = _CHOSEN if severity else ""
    return differs("glibc", about, wanted=one, found=other, todo=todo, severity=severity, why=why)
