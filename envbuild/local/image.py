"""How the pins of one lock differ from those of another, in words for people; pure."""

import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import docker

from envbuild.build import Order, Reporter, build, make_plans
from envbuild.build.again import recorded_base
from envbuild.cache import workplace
from envbuild.errors import UsageError, counted
from envbuild.local.model import Choice, Subject
from envbuild.local.subject import brought, machine_of
from envbuild.lock.model import Lock, LockedWheel, Target
from envbuild.lock.run import Options, lock_stack
from envbuild.lock.settings import read_settings
from envbuild.manifest.model import TrainingManifest
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image
from envbuild.oci.reference import DOCKER_HUB, Reference
from envbuild.stamp.record import StampedImage
from envbuild.verify.rules.catalogue import listing
from envbuild.verify.rules.frameworks import family
from envbuild.verify.rules.versions import is_nvidia

Pins = Mapping[str, str]
"""Versions by name."""
_NAME = Reference(DOCKER_HUB, "library/envbuild-local")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Building:
    """How what has to be built is built."""

    cache: Path
    base: str | None = None
    """The base that was asked for."""
    find_links: tuple[Path, ...] = ()
    offline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """An image that the engine has now."""

    image: str
    """What the engine calls it."""
    digest: str | None
    """`host/repo@sha256:...`, where a registry has it."""
    lock: Lock | None
    """What is in it; None where nobody recorded that."""
    parent: Reference | Image | None = None
    """The image for what stands on it: by digest in a registry, or as it was made here; None for one by name alone."""
    built: bool = False
    remarks: tuple[str, ...] = field(default=())
    """What there is to know of how it differs from what the model is stamped with."""


def acquire(
    client: docker.DockerClient,
    subject: Subject,
    choice: Choice,
    building: Building,
    report: Reporter,
    now: datetime,
) -> Here:
    """Have the engine pull the image, or build it; RegistryError, BuildError and all that building can end with."""
    named = subject.image or (f"docker://{choice.pull.reference}" if choice.pull else None)
    if named is None:
        return _built(subject, choice, building, report, now)
    identity, digest = brought(named, client, machine_of(choice.platform), report)
    lock = subject.locks.get(choice.pull.slot) if choice.pull else None
    parent = Reference.parse(choice.pull.reference) if choice.pull and choice.pull.reference else None
    return Here(image=identity, digest=digest, lock=lock, parent=parent)


def _built(subject: Subject, choice: Choice, building: Building, report: Reporter, now: datetime) -> Here:
    if subject.manifest_bytes is None:
        todo = "give the run's manifest, or stamp the model again from its run"
        raise UsageError("nothing says what this environment consists of", where=subject.name, todo=todo)
    with workplace(building.cache) as folder:
        order = order_of(subject, choice, building, folder / "out")
        outcome = build(order, make_plans(order), report, now)
    assert outcome.loaded is not None, "the order asks for it"
    part = outcome.parts[0]
    told = remarks(subject, choice, part.lock, part.digest)
    image = outcome.loaded
    return Here(image=image.id, digest=None, lock=part.lock, parent=image.image, built=True, remarks=told)


def order_of(subject: Subject, choice: Choice, building: Building, out: Path) -> Order:
    """What the pipeline is asked for: the chosen variant and platform, on the base that was recorded."""
    assert subject.manifest_bytes is not None, "the caller looked"
    lock = _nearest_lock(subject, choice)
    return Order(
        manifest=subject.manifest_bytes,
        manifest_name=subject.name,
        variant=choice.variant,
        base=building.base or _base(subject, choice),
        drop=lock.dropped if lock else (),
        exclude_newer=lock.exclude_newer if lock else None,
        resolver="uv",
        out=out,
        push=None,
        stamp=None,
        cache=building.cache,
        platforms=(choice.platform,),
        load=Reference(_NAME.registry, _NAME.repository, _tag(subject, choice)),
        find_links=building.find_links,
        offline=building.offline,
    )


def _nearest_lock(subject: Subject, choice: Choice) -> Lock | None:
    nearest = choice.expected or choice.nearest
    return subject.locks.get(nearest.slot) if nearest else None


def _base(subject: Subject, choice: Choice) -> str | None:
    """The base of the nearest stamped image; None where the profile has to say."""
    nearest, lock = choice.expected or choice.nearest, _nearest_lock(subject, choice)
    if nearest is None or lock is None:
        return None
    return recorded_base(lock, variant=choice.variant, same_platform=nearest.platform == choice.platform)


def _tag(subject: Subject, choice: Choice) -> str:
    """One for each environment that is asked for, so that the next run replaces it and nothing piles up."""
    digest = Digest.of(subject.manifest_bytes or b"").hex[:12]
    return f"{digest}-{choice.variant}-{choice.platform.rpartition('/')[2]}"


def stamped_lock(subject: Subject, choice: Choice) -> Lock | None:
    """The lock that the model is stamped with for what was chosen; None where there is none."""
    stamped = choice.pull or choice.expected
    return subject.locks.get(stamped.slot) if stamped else None


def check_known(subject: Subject) -> TrainingManifest:
    """The manifest that says what is to be locked; UsageError where there is none."""
    if subject.manifest is None:
        todo = "give the run's manifest, or stamp the model again from its run"
        raise UsageError("nothing says what this environment consists of", where=subject.name, todo=todo)
    return subject.manifest


def lock_here(subject: Subject, choice: Choice, building: Building, report: Reporter) -> Lock:
    """Lock the run's pins for this machine's own C library; LockError, MatchError, UsageError without a manifest."""
    manifest = check_known(subject)
    plan = make_plans(order_of(subject, choice, building, Path("unused")))[0]
    libc, version = platform.libc_ver()
    if libc != "glibc":
        todo = "run it in a container: leave out --venv"
        raise UsageError("wheels are locked for Linux with glibc only", where=libc or platform.system(), todo=todo)
    report.step(f"locking {counted(len(plan.stack.requirements), 'distribution')} for this machine")
    options = Options(
        cache=building.cache,
        settings=read_settings(building.find_links, offline=building.offline),
        say=report.note,
        counted=report.compared,
    )
    target = Target(python=plan.stack.python, machine=plan.stack.machine, glibc=version)
    run = lock_stack(plan.stack, target, manifest, options)
    for warning in run.warnings:
        report.warn(warning)
    return run.lock
