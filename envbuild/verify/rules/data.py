"""Data that the program reads, and code that prepares it."""

from collections.abc import Iterator
from shlex import quote

from envbuild.errors import counted
from envbuild.manifest.model import Data
from envbuild.verify.findings import Finding
from envbuild.verify.rules.saying import agree, differs
from envbuild.verify.sides.side import Side

_BYTES = " bytes"


def data_absent(wanted: Side, found: Side) -> Iterator[Finding]:
    """Places that cannot be seen from the other side, where somebody looked."""
    if found.absent_data is None or not wanted.contract.data:
        return
    places = {it.uri: it for it in wanted.contract.data}
    for uri in sorted(places.keys() & found.absent_data):
        yield _absent(places[uri])
    if seen := len(places.keys() - found.absent_data):
        yield agree("data-absent", "data", f"{counted(seen, 'place')} can be seen")


def _absent(data: Data) -> Finding:
    named = f", or name another place: `-e {data.variable}=...`" if data.variable else ""
    if data.uri.startswith("gs://"):
        todo = f"give this account the role roles/storage.objectViewer on it{named}"
    elif not data.uri.startswith("/"):
        todo = f"start in the folder where it lies{named}"
    else:
        todo = f"mount it: `-v {quote(f'{data.uri}:{data.uri}:ro')}`{named}"
    return differs("data-absent", data.uri, "it cannot be seen", wanted="there", found="not seen", todo=todo)


def data_changed(wanted: Side, found: Side) -> Iterator[Finding]:
    """Checksums, sizes or else generations of the same place."""
    there = _now(found)
    pairs = [
        (it.uri, pair)
        for uri, it in sorted(_now(wanted).items())
        if uri in there and (pair := _identities(it, there[uri]))
    ]
    for uri, (one, other) in pairs:
        if one != other:
            yield differs("data-changed", uri, wanted=one, found=other, todo=_todo(uri))
    same = [one for _, (one, other) in pairs if one == other]
    if same:
        by_size = sum(it.endswith(_BYTES) for it in same)
        doubt = f"; of {by_size} only the size was compared" if by_size else ""
        yield agree("data-changed", "data", f"{counted(len(same), 'place')} with the same content{doubt}")


def _now(side: Side) -> dict[str, Data]:
    """What a contract says of places, and what lies at those of the other side's contract."""
    return {it.uri: it for it in side.contract.data} | dict(side.data or {})


def _todo(uri: str) -> str:
    if uri.startswith("gs://"):
        return "read the generation that the run read, or train anew with the data of today"
    return "put the data back that the run read, or train anew with the data of today"


def _identities(one: Data, other: Data) -> tuple[str, str] | None:
    """By content where both have a checksum of the same kind, as a copy onto itself has a new generation."""
    if one.checksum and other.checksum and _kind(one.checksum) == _kind(other.checksum):
        return one.checksum, other.checksum
    sizes = None if one.size is None or other.size is None else (f"{one.size}{_BYTES}", f"{other.size}{_BYTES}")
    if sizes and sizes[0] != sizes[1]:
        return sizes
    if one.objects is not None and other.objects is not None and one.objects != other.objects:
        return counted(one.objects, "file"), counted(other.objects, "file")
    if one.generation and other.generation:
        return f"generation {one.generation}", f"generation {other.generation}"
    return sizes


def _kind(checksum: str) -> str:
    return checksum.partition(":")[0]
