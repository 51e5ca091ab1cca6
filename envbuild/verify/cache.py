"""What ldconfig leaves in /etc/ld.so.cache (glibc, dl-cache.h): names of libraries and where they lie."""

import struct

_MAGIC = b"glibc-ld.so.cache1.1"
_HEADER, _ENTRY = struct.Struct("<20sLL20x"), struct.Struct("<LLLLQ")
_FLAGS = {"x86_64": 0x303, "aarch64": 0xA03}
"""What the loader of a machine accepts: the ELF kind and the ABI (FLAG_X8664_LIB64, FLAG_AARCH64_LIB64)."""


def read_cache(data: bytes, machine: str) -> dict[str, str]:
    """The path of each name for a machine, without those for better processors; empty where it is no such file."""
    start = data.find(_MAGIC)
    if start < 0:
        return {}
    found: dict[str, str] = {}
    try:
        _, count, _ = _HEADER.unpack_from(data, start)
        for index in range(count):
            place = start + _HEADER.size + index * _ENTRY.size
            flags, name, path, _, capabilities = _ENTRY.unpack_from(data, place)
            if flags == _FLAGS[machine] and capabilities == 0:
                found.setdefault(_text(data, start + name), _text(data, start + path))
    except (struct.error, ValueError):
        return {}
    return found


def _text(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()
