"""Operating system, machine and C library."""

from collections.abc import Iterator

from envbuild.verify.findings import Finding, Severity
from envbuild.verify.rules.releases import numbers, same_numbers
from envbuild.verify.rules.saying import MADE, agree, anew, brings_all, differs
from envbuild.verify.sides.side import Side

_MACHINES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64", "armv8": "aarch64"}
_OTHER_MACHINE = "build for this machine by `--platform`, and hold its predictions against the run's"
_CHOSEN = "The wheels were chosen for this C library, and some may not load with an older one."


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
