"""What must be true after any schedule of stampers: nothing is lost, and nobody is told a success that was none."""

import json
from collections.abc import Mapping
from importlib import resources
from itertools import pairwise

import jsonschema

from envbuild.errors import StampError
from envbuild.oci.digest import Digest
from envbuild.stamp.record import Stamp, lock_name, manifest_name, pointed, pointer, read_record
from tests.faults.site import require
from tests.faults.stampers import BUCKET, FOLDER, NAME, Ended, Site

_SCHEMA = jsonschema.Draft202012Validator(
    json.loads(resources.files("envbuild.stamp").joinpath("schema.json").read_text("utf-8"))
)

Chain = list[tuple[str | None, Stamp | None]]
"""Names and records of a model's history, the oldest first; before the first one stands nothing."""


def check(seed: int, site: Site, ended: list[Ended]) -> tuple[Site, list[Ended]]:
    """Hold what is in the bucket against what each stamper was told; FaultError with the seed where they disagree."""
    said = f"seed {seed}"
    chains = {generation: _chain(site, metadata, said) for generation, metadata in site.past.items()}
    current = site.gcs.bucket(BUCKET).objects.get(NAME)
    if current is not None:
        metadata = site.gcs.metadata(BUCKET, NAME)
        chains[str(current.generation)] = _chain(site, metadata, said)
        others = {key: value for key, value in metadata.items() if not key.startswith("envbuild-")}
        require(others == site.others, f"{said}: others wrote {site.others}, and there is {others}")
    for it in ended:
        if it.result is not None:
            _check_success(it, chains, f"{said}: {it.job.name}")
        else:
            _check_failure(it, chains[str(current.generation)] if current else [(None, None)], f"{said}: {it.job.name}")
    return site, ended


def _chain(site: Site, metadata: Mapping[str, str], said: str) -> Chain:
    """Read a history back to its first record; each has to be there, valid, and to lose nothing of the one before."""
    name, chain = pointed(metadata, said), Chain()
    while name is not None:
        data = _object(site, name, said)
        _SCHEMA.validate(json.loads(data))
        record = read_record(name, data)
        for image in record.images:
            for copy, digest in ((manifest_name(image), image.manifest_sha256), (lock_name(image), image.lock_sha256)):
                require(Digest.of(_object(site, copy, said)) == digest, f"{said}: {copy} is not what its name says")
        chain.insert(0, (name, record))
        name = record.previous
    if chain and chain[-1][1]:
        shown = pointer(chain[-1][1], str(chain[-1][0]))
        ours = {key: value for key, value in metadata.items() if key.startswith("envbuild-")}
        require(shown == ours, f"{said}: the pointer {metadata} is not that of {chain[-1][0]}")
    chain.insert(0, (None, None))
    for (_, older), (_, newer) in pairwise(chain):
        _check_step(older, newer, said)
    return chain


def _object(site: Site, name: str, said: str) -> bytes:
    require(f"{FOLDER}/{name}" in site.gcs.names(BUCKET), f"{said}: there is no {name}")
    return site.gcs.data(BUCKET, f"{FOLDER}/{name}")


def _check_step(older: Stamp | None, newer: Stamp | None, said: str) -> None:
    before, after = ({image.slot: image for image in it.images} if it else {} for it in (older, newer))
    if older and newer and older.anchor.generation != newer.anchor.generation:
        before = {}  # what was replaced had other images
    moved = [slot for slot in before.keys() & after.keys() if before[slot].digest != after[slot].digest]
    not_on_index = {
        ("serve", *slot[1:]) for slot in moved if slot[0] == "train"
    }  # built on the image that was replaced
    before = {slot: it for slot, it in before.items() if slot in after or slot not in not_on_index}
    changed = [slot for slot in before.keys() | after.keys() if before.get(slot) != after.get(slot)]
    require(before.keys() <= after.keys(), f"{said}: an image is gone: {before.keys() - after.keys()}")
    require(len(changed) <= 1, f"{said}: one record changed {changed}")


def _check_success(it: Ended, chains: Mapping[str, Chain], said: str) -> None:
    """A success stands in the history of the very model that was looked at, and overwrote only what was seen."""
    assert it.result is not None
    require(it.saw is not None, f"{said} never looked")
    assert it.saw is not None
    chain = chains[it.saw.generation]
    names = [name for name, _ in chain]
    require(it.result.record in names, f"{said} was told {it.result.record}, which is in no history")
    first = names.index(pointed(it.saw.metadata, said))
    generation = it.saw.generation
    digests = [_digest(record, it, generation) for _, record in chain[first : names.index(it.result.record) + 1]]
    require(digests[-1] == it.job.entry.digest, f"{said} was told a success, and there is {digests[-1]}")
    steps = [after for before, after in pairwise(digests) if before != after]
    require(steps in ([], [it.job.entry.digest]), f"{said} overwrote what it had not seen: {digests}")


def _check_failure(it: Ended, chain: Chain, said: str) -> None:
    """A failure is whole, and did not put its image where it is now, unless it says that this cannot be known."""
    require(isinstance(it.error, StampError), f"{said}: {it.error!r}")
    assert isinstance(it.error, StampError)
    require(bool(it.error.what and it.error.where and it.error.todo), f"{said}: {it.error!r}")
    if it.word == "not to be known":
        return
    by = None
    for (_, older), (_, newer) in pairwise(chain):
        if newer is not None and _digest(older, it, newer.anchor.generation) != _digest(newer, it):
            by = newer.by
    require(by != it.job.name, f"{said} was told {it.error.what!r}, and its image is there")


def _digest(record: Stamp | None, it: Ended, generation: str = "") -> Digest | None:
    """The image in the job's place, if the record is of the content that is asked about."""
    if record is None or record.anchor.generation != (generation or record.anchor.generation):
        return None
    image = record.image(it.job.entry.slot)
    return image.digest if image else None
