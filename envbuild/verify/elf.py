"""What the loader reads of a shared library (System V ABI, chapters 4 and 5; the dynamic section)."""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self

ReadAt = Callable[[int, int], bytes]
"""Reads at an offset at most so many bytes; fewer only at the end of the file."""

MACHINES = {"x86_64": 62, "aarch64": 183}
"""e_machine, by the names that lock and manifest use."""
_MAGIC = b"\x7fELF"
_HEADER, _PROGRAM, _ENTRY = struct.Struct("<16sHHLQQQLHHH"), struct.Struct("<LLQQQQQQ"), struct.Struct("<qQ")
_LOAD, _DYNAMIC = 1, 2
_NULL, _NEEDED, _STRTAB, _SONAME, _RPATH, _RUNPATH, _FLAGS_1 = 0, 1, 5, 14, 15, 29, 0x6FFFFFFB
_NODEFLIB = 0x800
_FARTHEST = 1 << 48
_MOST_PROGRAMS, _MOST_DYNAMIC, _LONGEST = 512, 1 << 16, 1 << 20
"""Far above what real libraries have: 30 kB of RUNPATH is the longest that was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elf:
    """One library, or program."""

    bits: int
    machine: int
    """e_machine; what follows is read of 64-bit files only."""
    soname: str = ""
    needed: tuple[str, ...] = ()
    rpath: str = ""
    """Empty where there is a RUNPATH too, as the loader then ignores it."""
    runpath: str = ""
    nodeflib: bool = False
    """Whether it is not to be served from the default folders (DF_1_NODEFLIB)."""

    def to_list(self) -> list[Any]:
        """The fields, for a file of facts."""
        return [self.bits, self.machine, self.soname, list(self.needed), self.rpath, self.runpath, self.nodeflib]

    @classmethod
    def from_list(cls, value: list[Any]) -> Self:
        """Read `to_list` back; ValueError or TypeError when it is something else."""
        bits, machine, soname, needed, rpath, runpath, nodeflib = value
        return cls(
            bits=int(bits),
            machine=int(machine),
            soname=str(soname),
            needed=tuple(map(str, needed)),
            rpath=str(rpath),
            runpath=str(runpath),
            nodeflib=bool(nodeflib),
        )


def read_elf(read: ReadAt) -> Elf | None:
    """Read the dynamic section, in rising order of place where that is possible; None for what no loader accepts."""
    try:
        return _read(read)
    except (struct.error, UnicodeDecodeError, _DamagedError):
        return None


class _DamagedError(Exception):
    """A file that contradicts itself."""


def _read(read: ReadAt) -> Elf | None:
    head = read(0, _HEADER.size)
    if head[:4] != _MAGIC or len(head) < _HEADER.size:
        return None
    bits = {1: 32, 2: 64}.get(head[4], 0)
    if bits != 64 or head[5] != 1:
        return Elf(bits=bits, machine=struct.unpack_from("<H" if head[5] == 1 else ">H", head, 18)[0])
    machine, start, size, count = (_HEADER.unpack(head)[index] for index in (2, 5, 9, 10))
    if size != _PROGRAM.size or count > _MOST_PROGRAMS:
        raise _DamagedError
    programs = list(_PROGRAM.iter_unpack(_exactly(read, start, size * count)))
    entries = list(_dynamic(read, programs))
    texts = _texts(read, programs, entries)
    first = {tag: texts[value] for tag, value in reversed(entries) if value in texts and tag != _NEEDED}
    flags = next((value for tag, value in entries if tag == _FLAGS_1), 0)
    return Elf(
        bits=bits,
        machine=machine,
        soname=first.get(_SONAME, ""),
        needed=tuple(texts[value] for tag, value in entries if tag == _NEEDED),
        rpath="" if _RUNPATH in first else first.get(_RPATH, ""),
        runpath=first.get(_RUNPATH, ""),
        nodeflib=bool(flags & _NODEFLIB),
    )


def _dynamic(read: ReadAt, programs: list[tuple[int, ...]]) -> Iterator[tuple[int, int]]:
    for kind, _, offset, _, _, length, _, _ in programs:
        if kind == _DYNAMIC:
            if length > _MOST_DYNAMIC:
                raise _DamagedError
            for tag, value in _ENTRY.iter_unpack(_exactly(read, offset, length - length % _ENTRY.size)):
                if tag == _NULL:
                    return
                yield tag, value


def _texts(read: ReadAt, programs: list[tuple[int, ...]], entries: list[tuple[int, int]]) -> dict[int, str]:
    """The strings that entries point to, by where they are in the table."""
    wanted = sorted({value for tag, value in entries if tag in (_NEEDED, _SONAME, _RPATH, _RUNPATH)})
    table = next((value for tag, value in entries if tag == _STRTAB), None)
    if not wanted:
        return {}
    if table is None:
        raise _DamagedError
    start = _place(programs, table)
    return {value: _text(read, start + value) for value in wanted}


def _place(programs: list[tuple[int, ...]], address: int) -> int:
    """Where in the file lies what is at an address in memory."""
    for kind, _, offset, virtual, _, length, _, _ in programs:
        if kind == _LOAD and virtual <= address < virtual + length:
            return offset + address - virtual
    raise _DamagedError


def _text(read: ReadAt, start: int) -> str:
    size = 256
    while True:
        data = _at_most(read, start, size)
        text, end, _ = data.partition(b"\0")
        if end:
            return text.decode()
        if len(data) < size or size > _LONGEST:
            raise _DamagedError
        size *= 16


def _exactly(read: ReadAt, start: int, size: int) -> bytes:
    data = _at_most(read, start, size)
    if len(data) != size:
        raise _DamagedError
    return data


def _at_most(read: ReadAt, start: int, size: int) -> bytes:
    if start > _FARTHEST:
        raise _DamagedError
    return read(start, size)
