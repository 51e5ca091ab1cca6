"""The chosen image in the engine here: pulled by digest or built from the run's lock; and how its pins differ."""

import platform
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import docker

from envbuild.build import Order, Reporter, build, make_plans
from envbuild.build.extend import recorded_base
from envbuild.cache import workplace
from envbuild.errors import UsageError, counted
from envbuild.local.model import Choice, Subject
from envbuild.local.subject import load_image, machine_of
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

_NAME = Reference(DOCKER_HUB, "library/envbuild-local")
_NO_MANIFEST = "give the run's manifest, or stamp the model again from its run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Building:
    """How a missing environment is built."""

    cache: Path
    base: str | None = None
    """The base that the user gave."""
    find_links: tuple[Path, ...] = ()
    offline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """An image in the engine."""

    image: str
    """Its name or id in the engine."""
    digest: str | None
    """`host/repo@sha256:...` if a registry has it."""
    lock: Lock | None
    """Its lock, if known."""
    parent: Reference | Image | None = None
    """The image for others on top of it: by digest in a registry, or as built here; None if only its name is known."""
    built: bool = False
    remarks: tuple[str, ...] = field(default=())
    """How it differs from the stamped image."""


def acquire(
    client: docker.DockerClient,
    subject: Subject,
    choice: Choice,
    building: Building,
    report: Reporter,
    now: datetime,
) -> Here:
    """Pull the image into the engine, or build it; RegistryError, BuildError and the errors of building."""
    named = subject.image or (f"docker://{choice.pull.reference}" if choice.pull else None)
    if named:
        identity, digest = load_image(named, client, machine_of(choice.platform), report)
        lock = subject.locks.get(choice.pull.slot) if choice.pull else None
        parent = Reference.parse(choice.pull.reference) if choice.pull and choice.pull.reference else None
        return Here(image=identity, digest=digest, lock=lock, parent=parent)
    if subject.manifest_bytes is None:
        raise UsageError("no manifest says what this environment consists of", where=subject.name, todo=_NO_MANIFEST)
    with workplace(building.cache) as folder:
        order = order_of(subject, choice, building, folder / "out")
        outcome = build(order, make_plans(order), report, now)
    part, image = outcome.parts[0], outcome.loaded
    assert image is not None, "the order loads it"
    if choice.expected and choice.expected.digest == part.digest:
        remarks: tuple[str, ...] = (f"it is the stamped image, bit for bit: {part.digest}",)
    else:
        remarks = _changes_since(subject, choice.nearest, part.lock)
    return Here(image=image.id, digest=None, lock=part.lock, parent=image.image, built=True, remarks=remarks)


def order_of(subject: Subject, choice: Choice, building: Building, out: Path) -> Order:
    """Return the order for a build: the chosen variant and platform, on the base that was recorded."""
    assert subject.manifest_bytes is not None, "the caller checks it"
    nearest = choice.expected or choice.nearest
    lock, base = subject.locks.get(nearest.slot) if nearest else None, building.base
    if nearest and lock and base is None:
        base = recorded_base(lock, variant=choice.variant, same_platform=nearest.platform == choice.platform)
    # One tag for each environment, so that the next build replaces it.
    tag = f"{Digest.of(subject.manifest_bytes).hex[:12]}-{choice.variant}-{choice.platform.rpartition('/')[2]}"
    return Order(
        manifest=subject.manifest_bytes,
        manifest_name=subject.name,
        variant=choice.variant,
        base=base,
        drop=lock.dropped if lock else (),
        exclude_newer=lock.exclude_newer if lock else None,
        resolver="uv",
        out=out,
        push=None,
        stamp=None,
        cache=building.cache,
        platforms=(choice.platform,),
        load=Reference(_NAME.registry, _NAME.repository, tag),
        find_links=building.find_links,
        offline=building.offline,
    )


def stamped_lock(subject: Subject, choice: Choice) -> Lock | None:
    """Return the stamped lock of the choice; None if the model has none."""
    stamped = choice.pull or choice.expected
    return subject.locks.get(stamped.slot) if stamped else None


def check_known(subject: Subject) -> TrainingManifest:
    """Return the manifest that is locked; UsageError without one."""
    if subject.manifest is None:
        raise UsageError("no manifest says what this environment consists of", where=subject.name, todo=_NO_MANIFEST)
    return subject.manifest


def lock_here(subject: Subject, choice: Choice, building: Building, report: Reporter) -> Lock:
    """Lock the run's pins for this machine's C library; LockError, MatchError, UsageError without a manifest."""
    manifest = check_known(subject)
    plan = make_plans(order_of(subject, choice, building, Path("unused")))[0]
    libc, version = platform.libc_ver()
    if libc != "glibc":
        todo = "leave out --venv to run it in a container"
        raise UsageError("wheels are locked for Linux with glibc only", where=libc or platform.system(), todo=todo)
    report.step(f"locking {counted(len(plan.stack.requirements), 'distribution')} for this machine")
    options = Options(
        cache=building.cache,
        settings=read_settings(building.find_links, offline=building.offline),
        reporter=report,
    )
    target = Target(python=plan.stack.python, machine=plan.stack.machine, glibc=version)
    run = lock_stack(plan.stack, target, manifest, options)
    for warning in run.warnings:
        report.warn(warning)
    return run.lock


def known_changes(subject: Subject, choice: Choice) -> tuple[str, ...]:
    """Return how a stamped image differs from that of the other variant, before it is pulled."""
    lock = subject.locks.get(choice.pull.slot) if choice.pull else None
    others = (it for it in subject.images if it.role == "train" and it.variant != choice.variant)
    return _changes_since(subject, next(others, None), lock) if lock else ()


def _changes_since(subject: Subject, image: StampedImage | None, lock: Lock) -> tuple[str, ...]:
    before = subject.locks.get(image.slot) if image else None
    if before is None or image is None:
        return ()
    changes = pin_changes(before, lock)
    name = f"the stamped {image.variant} image for {image.platform}"
    return (f"other than {name}:", *changes) if changes else (f"the same versions as {name}",)


def pin_changes(nearest: Lock, now: Lock) -> tuple[str, ...]:
    """Return what changed from one lock to another: frameworks first, packages that serve a GPU alone in one line."""
    before, after = ({it.name: it.version for it in lock.wheels} for lock in (nearest, now))
    # The same framework under another name: tensorflow and tensorflow-cpu.
    new = {family(name): name for name in sorted(after.keys() - before.keys(), reverse=True)}
    renamed: dict[str, str] = {}
    for name in sorted(before.keys() - after.keys()):
        if (framework := family(name)) and (other := new.pop(framework, None)):
            renamed[name] = other
    one, other_target = nearest.target, now.target
    target = (
        ("Python", one.python, other_target.python),
        ("", one.machine, other_target.machine),
        ("glibc", one.glibc, other_target.glibc),
    )
    return (
        *(f"{name} {old} -> {new}".lstrip() for name, old, new in target if old != new),
        *(f"{old} {before[old]} -> {name} {after[name]}" for old, name in sorted(renamed.items())),
        *_changed(before, after),
        *_grouped("dropped", before, before.keys() - after.keys() - renamed.keys()),
        *_grouped("added", after, after.keys() - before.keys() - set(renamed.values())),
        *_rebuilt(nearest.wheels, now.wheels),
        *_debian_changes(nearest, now),
    )


def _changed(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(before.keys() & after.keys()):
        if before[name] != after[name]:
            yield f"{name} {before[name]} -> {after[name]}"


def _grouped(what: str, pins: Mapping[str, str], names: Collection[str]) -> Iterator[str]:
    """Yield a line for each pin, and one for all of NVIDIA's."""
    yield from (f"{name} {pins[name]} {what}" for name in sorted(names) if not is_nvidia(name))
    if gpu := sorted(filter(is_nvidia, names)):
        yield f"{counted(len(gpu), 'package')} for GPUs {what}: {listing([f'{name} {pins[name]}' for name in gpu])}"


def _rebuilt(before: tuple[LockedWheel, ...], after: tuple[LockedWheel, ...]) -> Iterator[str]:
    """Yield other files of the same versions, as another machine, Python or index has them."""
    digests = {(it.name, it.version): it.sha256 for it in before}
    names = [it.name for it in after if digests.get((it.name, it.version), it.sha256) != it.sha256]
    if names:
        yield f"{counted(len(names), 'wheel')} of the same version with another content: {listing(names)}"


def _debian_changes(nearest: Lock, now: Lock) -> Iterator[str]:
    before, after = ({it.name: it.version for it in lock.packages} for lock in (nearest, now))
    yield from (f"Debian's {it}" for it in _changed(before, after))
    for what, names in (("dropped", before.keys() - after.keys()), ("added", after.keys() - before.keys())):
        if names:
            yield f"Debian's {listing(sorted(names))} {what}"
