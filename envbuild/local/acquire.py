"""The chosen image in the engine here: pulled by digest, or built from the run's lock and loaded."""

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import docker

from envbuild.build import Order, Reporter, build, make_plans
from envbuild.build.again import recorded_base
from envbuild.cache import workplace
from envbuild.errors import UsageError
from envbuild.local.model import Choice, Subject
from envbuild.local.named import brought
from envbuild.local.pins import remarks
from envbuild.local.subject import machine_of
from envbuild.lock.model import Lock
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image
from envbuild.oci.reference import DOCKER_HUB, Reference

_NAME = Reference(DOCKER_HUB, "library/envbuild-local")


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
