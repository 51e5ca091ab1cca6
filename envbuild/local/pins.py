"""How the pins of one lock differ from those of another, in words for people; pure."""

from collections.abc import Iterator, Mapping

from envbuild.errors import counted
from envbuild.local.model import Choice, Subject
from envbuild.lock.model import Lock, LockedWheel
from envbuild.oci.digest import Digest
from envbuild.stamp.record import StampedImage
from envbuild.verify.rules.catalogue import listing
from envbuild.verify.rules.frameworks import family
from envbuild.verify.rules.versions import is_nvidia

Pins = Mapping[str, str]
"""Versions by name."""


def pin_changes(nearest: Lock, now: Lock) -> tuple[str, ...]:
    """What became of each pin: frameworks first, what serves a GPU alone in one line; empty where all stayed."""
    before, after = ({it.name: it.version for it in lock.wheels} for lock in (nearest, now))
    renamed = dict(_renamed(before, after))
    gone, new = before.keys() - after.keys() - renamed.keys(), after.keys() - before.keys() - set(renamed.values())
    return (
        *_target(nearest, now),
        *(f"{old} {before[old]} -> {name} {after[name]}" for old, name in sorted(renamed.items())),
        *_moved(before, after),
        *_group("dropped", {name: before[name] for name in gone}),
        *_group("added", {name: after[name] for name in new}),
        *_rebuilt(nearest.wheels, now.wheels),
        *_system(nearest, now),
    )


def remarks(subject: Subject, choice: Choice, lock: Lock, digest: Digest) -> tuple[str, ...]:
    """Say how what was built compares with what the model is stamped with."""
    if choice.expected and choice.expected.digest == digest:
        return (f"it is the stamped image, bit for bit: {digest}",)
    return _beside(subject, choice.nearest, lock)


def known_changes(subject: Subject, choice: Choice) -> tuple[str, ...]:
    """Say before it is pulled how a stamped image differs from the one of the other variant."""
    lock = subject.locks.get(choice.pull.slot) if choice.pull else None
    others = (it for it in subject.images if it.role == "train" and it.variant != choice.variant)
    return _beside(subject, next(others, None), lock) if lock else ()


def _beside(subject: Subject, image: StampedImage | None, lock: Lock) -> tuple[str, ...]:
    before = subject.locks.get(image.slot) if image else None
    if before is None or image is None:
        return ()
    changes = pin_changes(before, lock)
    than = f"the stamped {image.variant} image for {image.platform}"
    return (f"other than {than}:", *changes) if changes else (f"the same versions as {than}",)


def _target(nearest: Lock, now: Lock) -> Iterator[str]:
    """Interpreter, machine and C library."""
    one, other = nearest.target, now.target
    parts = (("Python", one.python, other.python), ("", one.machine, other.machine), ("glibc", one.glibc, other.glibc))
    yield from (f"{name} {old} -> {new}".lstrip() for name, old, new in parts if old != new)


def _renamed(before: Pins, after: Pins) -> Iterator[tuple[str, str]]:
    """The same framework under another distribution's name: `tensorflow` and `tensorflow-cpu`."""
    new = {family(name): name for name in sorted(after.keys() - before.keys(), reverse=True)}
    for name in sorted(before.keys() - after.keys()):
        of = family(name)
        if of and (other := new.pop(of, None)):
            yield name, other


def _moved(before: Pins, after: Pins) -> Iterator[str]:
    for name in sorted(before.keys() & after.keys()):
        if before[name] != after[name]:
            yield f"{name} {before[name]} -> {after[name]}"


def _group(what: str, pins: Pins) -> Iterator[str]:
    """One line for each; NVIDIA's, of which there are a dozen, and whatever else serves a GPU alone, in one."""
    yield from (f"{name} {pins[name]} {what}" for name in sorted(pins) if not is_nvidia(name))
    gpu = sorted(filter(is_nvidia, pins))
    if gpu:
        yield f"{counted(len(gpu), 'package')} for GPUs {what}: {listing([f'{name} {pins[name]}' for name in gpu])}"


def _rebuilt(before: tuple[LockedWheel, ...], after: tuple[LockedWheel, ...]) -> Iterator[str]:
    """Other files of the same versions, as another machine, Python or index has them."""
    digests = {(it.name, it.version): it.sha256 for it in before}
    names = [it.name for it in after if digests.get((it.name, it.version), it.sha256) != it.sha256]
    if names:
        yield f"{counted(len(names), 'wheel')} of the same version with another content: {listing(names)}"


def _system(nearest: Lock, now: Lock) -> Iterator[str]:
    """Debian's packages, which the base lacks."""
    before, after = ({it.name: it.version for it in lock.packages} for lock in (nearest, now))
    yield from (f"Debian's {it}" for it in _moved(before, after))
    for what, gone in (("dropped", before.keys() - after.keys()), ("added", after.keys() - before.keys())):
        if gone:
            yield f"Debian's {listing(sorted(gone))} {what}"
