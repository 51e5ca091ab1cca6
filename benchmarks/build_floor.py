"""The floor: read the wheels, inflate every entry once, hash what lies in them and what comes out; nothing is written.

    python -m benchmarks.build_floor WHEEL...

One process, all cores, the fastest inflater; entries inflate in parallel and each piece is hashed by whichever core is
free, which is freer than any real layer is: its hash goes from the first byte to the last. Prints
seconds, and those that CPUs computed.
"""

import hashlib
import mmap
import struct
import sys
import threading
import time
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count

from isal import isal_zlib

_PIECE = 1 << 20
_CORES = cpu_count() or 1
_Entry = tuple[memoryview, int, bool]
"""Compressed bytes, size, whether deflated."""


class Hashing:
    """Hashes pieces in a pool; at most so many wait that memory stays bounded."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool, self._free = pool, threading.Semaphore(4 * _CORES)

    def add(self, piece: bytes | memoryview) -> None:
        if self._free.acquire(blocking=False):
            self._pool.submit(self._hash, piece)
        else:
            hashlib.sha256(piece)

    def _hash(self, piece: bytes | memoryview) -> None:
        hashlib.sha256(piece)
        self._free.release()


def main() -> None:
    began, cpu = time.perf_counter(), time.process_time()
    maps = {path: mapped(path) for path in sys.argv[1:]}
    batches = sorted((it for path, data in maps.items() for it in batched(entries(path, data))), key=weight)[::-1]
    with ThreadPoolExecutor(_CORES) as hashers, ThreadPoolExecutor(_CORES) as inflaters:
        hashing = Hashing(hashers)
        jobs = [inflaters.submit(inflate, batch, hashing) for batch in batches]
        for data in maps.values():
            for piece in pieces(data, deflated=False):
                hashing.add(piece)
        for job in jobs:
            job.result()
    print(time.perf_counter() - began, time.process_time() - cpu)


def mapped(path: str) -> memoryview:
    with open(path, "rb") as file:  # noqa: PTH123 - only its number is wanted
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def entries(path: str, wheel: memoryview) -> Iterator[_Entry]:
    """Each where the directory says that it lies (APPNOTE 4.3.7)."""
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            name, extra = struct.unpack_from("<2H", wheel, info.header_offset + 26)
            start = info.header_offset + 30 + name + extra
            yield wheel[start : start + info.compress_size], info.file_size, info.compress_type == zipfile.ZIP_DEFLATED


def batched(found: Iterator[_Entry]) -> Iterator[list[_Entry]]:
    """Thousands of small files are one job each megabyte."""
    batch: list[_Entry] = []
    for entry in found:
        batch.append(entry)
        if weight(batch) > _PIECE:
            yield batch
            batch = []
    yield batch


def weight(batch: Sequence[_Entry]) -> int:
    return sum(size for _, size, _ in batch)


def inflate(batch: Sequence[_Entry], hashing: Hashing) -> None:
    small: list[bytes | memoryview] = []
    for data, size, deflated in batch:
        for piece in pieces(data, deflated=deflated):
            if size < _PIECE:
                small.append(piece)
            else:
                hashing.add(piece)
    hashing.add(b"".join(small))


def pieces(data: memoryview, *, deflated: bool) -> Iterator[bytes | memoryview]:
    if not deflated:
        yield from (data[offset : offset + _PIECE] for offset in range(0, len(data), _PIECE))
        return
    inflater = isal_zlib.decompressobj(-15)
    for offset in range(0, len(data), _PIECE):
        rest: bytes | memoryview = data[offset : offset + _PIECE]
        while len(rest):
            yield inflater.decompress(rest, _PIECE)
            rest = inflater.unconsumed_tail


if __name__ == "__main__":
    main()
