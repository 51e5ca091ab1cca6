"""Which source a compiled file says that it is of (PEP 552), told from first bytes and hashes."""

import _imp

_MAGICS = (3495, 3531, 3571, 3627)
"""Of Python 3.11 to 3.14; older ones hash sources by another function, which no Python that runs this has."""
_KEYS = tuple(int.from_bytes(it.to_bytes(2, "little") + b"\r\n", "little") for it in _MAGICS)
_HEADER, _HASH = 16, 8
_UNCHECKED = (1).to_bytes(4, "little")


def stamp_of(path: str, content: bytes) -> bytes:
    """Of a source its hash for each Python, of bytecode its header; nothing of anything else."""
    if path.endswith(".pyc"):
        return content[:_HEADER]
    return b"".join(_imp.source_hash(key, content) for key in _KEYS) if path.endswith(".py") else b""


def is_unchecked(bytecode: bytes) -> bool:
    """Whether Python takes it without a look at its source, by its header."""
    return bytecode[4:8] == _UNCHECKED


def is_of(bytecode: bytes, source: bytes) -> bool | None:
    """Whether the header of bytecode has the hash of a source; None where it is of a Python whose hash is not known."""
    magic = int.from_bytes(bytecode[:2], "little")
    if magic not in _MAGICS:
        return None
    start = _MAGICS.index(magic) * _HASH
    return bytecode[8:_HEADER] == source[start : start + _HASH]
