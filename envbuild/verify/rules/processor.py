"""Instruction sets of the CPU."""

import re
from collections.abc import Iterator

from envbuild.verify.findings import Finding, Severity
from envbuild.verify.rules.builds import builds
from envbuild.verify.rules.saying import agree, differs, listing
from envbuild.verify.sides.side import Side

_X86 = re.compile(r"ssse3|sse4_[12]|f16c|fma|avx.*|amx_.*")
_ARM = re.compile(r"asimd.*|sve.*|sme.*|bf16|i8mm")
_FAMILIES = (("sse2", _X86), ("fp", _ARM))
"""A flag that every CPU of an architecture has, and the flags there by which libraries choose their kernels."""
_ILLEGAL = "TensorFlow's wheels for x86_64 are compiled for AVX: the process ends with an illegal instruction."


def cpu_flags(wanted: Side, found: Side) -> Iterator[Finding]:
    """The flags that matter to numbers, which the run had and this CPU has not."""
    here, there = (frozenset(side.cpu.flags) if side.cpu else frozenset() for side in (wanted, found))
    matters = next((flags for always, flags in _FAMILIES if always in here & there), None)
    if matters is None:
        return
    used = sorted(flag for flag in here if matters.fullmatch(flag))
    lacking = [flag for flag in used if flag not in there]
    if not lacking:
        yield agree("cpu-flags", "CPU", _all(len(used)))
        return
    fatal = "avx" in lacking and "tensorflow" in builds(wanted)
    severity: Severity | None = "error" if fatal else None
    yield differs(
        "cpu-flags",
        "CPU",
        f"it lacks {listing(lacking)}",
        wanted=listing(lacking),
        found=f"{found.cpu.model}" if found.cpu and found.cpu.model else "none of these",
        todo="use a machine type with the CPU generation of the run, or hold its predictions against the run's",
        severity=severity,
        why=_ILLEGAL if fatal else "",
    )


def _all(count: int) -> str:
    every = {0: "none of the", 1: "the one"}.get(count, f"all {count}")
    return f"{every} instruction set{'' if count == 1 else 's'} that change{'s' if count == 1 else ''} numbers"
