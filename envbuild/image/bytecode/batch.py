"""Sources to archives of bytecode, on all cores, in bounded memory."""

import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import BinaryIO

from envbuild.image.bytecode.compiler import LARGEST, Compiler, Failure
from envbuild.image.bytecode.sources import Source, bytecode_path
from envbuild.image.bytecode.store import Compiled, Store, Tally
from envbuild.oci.digest import Digest
from envbuild.wheel.compressed import check_library
from envbuild.wheel.parallel import in_order

_AHEAD = 64
"""Files that are compiled while one before them takes its time; most have some kilobytes."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """Sources whose bytecode is kept together."""

    key: Digest
    prefix: str
    """Absolute; with a source's path it is what tracebacks name."""
    sources: Callable[[], Sequence[Source]]
    """Reads which there are; not asked where the bytecode is known."""


_Result = tuple[str, bytes | Failure]
Told = Callable[[int], object]
"""Told how many sources are about to be compiled."""


def compile_parcels(
    parcels: Sequence[Parcel], compiler: Callable[[], Compiler], store: Store, told: Told = lambda _count: None
) -> list[Compiled]:
    """Compile what the store does not have; BuildError when the interpreter does not work."""
    found = [store.get(parcel.key) for parcel in parcels]
    lacking = [parcel for parcel, kept in zip(parcels, found, strict=True) if kept is None]
    made = iter(_made(lacking, compiler, store, told) if lacking else ())
    return [kept or next(made) for kept in found]


def _made(parcels: Sequence[Parcel], compiler: Callable[[], Compiler], store: Store, told: Told) -> list[Compiled]:
    check_library()  # before anything takes its time
    work = [(parcel, parcel.sources()) for parcel in parcels]
    told(sum(len(sources) for _, sources in work))
    with compiler() as running, ThreadPoolExecutor(running.processes, thread_name_prefix="compile") as pool:
        jobs = (partial(_compiled, running, parcel.prefix, source) for parcel, sources in work for source in sources)
        results = in_order(pool, jobs, _AHEAD)
        try:
            return [store.make(parcel.key, partial(_written, results, len(sources))) for parcel, sources in work]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _compiled(compiler: Compiler, prefix: str, source: Source) -> _Result:
    path = bytecode_path(source.path, compiler.cache_tag)
    if path is None:
        return source.path, Failure.REFUSED
    content = source.read()
    if len(content) > LARGEST:
        return source.path, Failure.GAVE_UP
    code = compiler.compile(f"{prefix}/{source.path}", content)
    return (source.path if isinstance(code, Failure) else path), code


def _written(results: Iterator[_Result], count: int, sink: BinaryIO) -> Tally:
    failures, compiled = list[tuple[str, Failure]](), 0
    with zipfile.ZipFile(sink, "w") as archive:
        for path, result in islice(results, count):
            if isinstance(result, Failure):
                failures.append((path, result))
            else:
                archive.writestr(zipfile.ZipInfo(path), result)
                compiled += 1
    return Tally(
        compiled=compiled,
        refused=sum(why is Failure.REFUSED for _, why in failures),
        gave_up=tuple(path for path, why in failures if why is Failure.GAVE_UP),
    )
