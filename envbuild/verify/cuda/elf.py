"""What the loader reads: the dynamic section of ELF files, and /etc/ld.so.cache (glibc, dl-cache.h)."""

import struct
from collections.abc import Iterator
from itertools import islice
from typing import IO, Any

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import Dynamic
from elftools.elf.elffile import ELFFile
from msgspec import Struct

MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
"""e_machine, by the names that lock and manifest use."""
_NODEFLIB = 0x800
_MOST_SEGMENTS, _MOST_TAGS = 512, 1 << 12
"""Far above what real libraries have; a damaged file may claim any number."""
_CACHE_MAGIC = b"glibc-ld.so.cache1.1"
_HEADER, _ENTRY = struct.Struct("<20sLL20x"), struct.Struct("<LLLLQ")
_FLAGS = {"x86_64": 0x303, "aarch64": 0xA03}
"""What the loader of a machine accepts: the ELF kind and the ABI (FLAG_X8664_LIB64, FLAG_AARCH64_LIB64)."""


class Elf(Struct, frozen=True, array_like=True, kw_only=True):
    """One library, or program."""

    bits: int
    machine: str
    """e_machine; the other fields are read of 64-bit files only."""
    soname: str = ""
    needed: tuple[str, ...] = ()
    rpath: str = ""
    """Empty where there is a RUNPATH too, as the loader then ignores it."""
    runpath: str = ""
    nodeflib: bool = False
    """Whether the default folders are not searched for what it needs (DF_1_NODEFLIB)."""


class _ElfFile(ELFFile):
    """Without sections: the loader ignores them, and to read them at the end of a wheel's file inflates it twice."""

    def iter_sections(self, type: str | None = None) -> Iterator[Any]:  # noqa: A002, ARG002 - as the parent has it
        return iter(())


class _Offsets:
    """A string table that gives places, so that the strings are read later, in rising order."""

    def get_string(self, offset: int, /) -> str:
        return str(offset)


def read_elf(file: IO[bytes]) -> Elf | None:
    """Read a file's dynamic section; None for a file that no loader accepts."""
    try:
        return _read(_ElfFile(file), file)
    except (ELFError, ValueError, LookupError, OverflowError):  # what pyelftools raises for damaged files
        return None


def _read(elf: _ElfFile, file: IO[bytes]) -> Elf | None:
    machine = str(elf["e_machine"])
    if elf.elfclass != 64 or not elf.little_endian:
        return Elf(bits=elf.elfclass, machine=machine)
    if elf["e_phnum"] > _MOST_SEGMENTS:
        return None
    tags: dict[str, list[int]] = {}
    for segment in islice(elf.iter_segments("PT_DYNAMIC"), 1):
        table = Dynamic(file, elf, _Offsets(), segment["p_offset"], segment["p_filesz"] == 0)
        for tag in islice(table.iter_tags(), min(_MOST_TAGS, segment["p_filesz"] // 16)):
            tags.setdefault(str(tag.entry.d_tag), []).append(tag.entry.d_val)
    places = sorted({it for name in ("DT_NEEDED", "DT_SONAME", "DT_RPATH", "DT_RUNPATH") for it in tags.get(name, ())})
    start = next(elf.address_offsets(tags["DT_STRTAB"][0]), None) if places else 0
    if start is None:
        return None
    texts = {it: _text(file, start + it) for it in places}
    first = {name: texts[values[0]] for name, values in tags.items() if values[0] in texts}
    return Elf(
        bits=64,
        machine=machine,
        soname=first.get("DT_SONAME", ""),
        needed=tuple(texts[it] for it in tags.get("DT_NEEDED", ())),
        rpath="" if "DT_RUNPATH" in tags else first.get("DT_RPATH", ""),
        runpath=first.get("DT_RUNPATH", ""),
        nodeflib=bool(tags.get("DT_FLAGS_1", [0])[0] & _NODEFLIB),
    )


def _text(file: IO[bytes], start: int) -> str:
    """A string that ends with a null byte; ValueError without one. 30 kB of RUNPATH is the longest that was seen."""
    for size in (1 << 8, 1 << 12, 1 << 18):
        file.seek(start)
        text, end, _ = file.read(size).partition(b"\0")
        if end:
            return text.decode()
    raise ValueError("a string has no end")


def read_cache(data: bytes, machine: str) -> dict[str, str]:
    """The path of each name for a machine, without those for better processors; empty where it is no such file."""
    start = data.find(_CACHE_MAGIC)
    if start < 0:
        return {}
    paths: dict[str, str] = {}
    try:
        _, count, _ = _HEADER.unpack_from(data, start)
        for index in range(count):
            place = start + _HEADER.size + index * _ENTRY.size
            flags, name, path, _, capabilities = _ENTRY.unpack_from(data, place)
            if flags == _FLAGS[machine] and capabilities == 0:
                paths.setdefault(_cache_text(data, start + name), _cache_text(data, start + path))
    except (struct.error, ValueError):
        return {}
    return paths


def _cache_text(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()
