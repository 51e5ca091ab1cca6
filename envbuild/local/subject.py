"""What is to be reproduced, from a stamped model, a manifest or an image; and its image in the engine here."""

import json
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError, NullResource

from envbuild.build.build import build
from envbuild.build.extend import recorded_base
from envbuild.build.request import BuildRequest, make_plans
from envbuild.cache import workplace
from envbuild.diff.images import open_image
from envbuild.engine.client import find_image
from envbuild.engine.load import load_into
from envbuild.errors import BuildError, RegistryError, UsageError, counted
from envbuild.files import cache_folder
from envbuild.local.model import Choice, Subject, Variant
from envbuild.lock.model import Lock, Target
from envbuild.lock.run import Options, lock_stack
from envbuild.lock.settings import read_settings
from envbuild.manifest.model import TrainingManifest
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image
from envbuild.oci.layout import ARCHITECTURES
from envbuild.oci.reference import DOCKER_HUB, Reference, lies_here
from envbuild.report import Reporter
from envbuild.stamp.record import StampedImage
from envbuild.verify.rules.catalogue import listing
from envbuild.verify.rules.packages import family, is_nvidia
from envbuild.verify.sources import Side, frameworks_of, side_of_lock, side_of_manifest
from envbuild.verify.sources.model import StampedModel, artifact_findings, current_stamp, manifest_copy, side_of_model

_ENGINE, _REGISTRY = "docker-daemon:", "docker://"
_FRAMEWORK, _VARIANT, _CUDA = "dev.envbuild.framework", "dev.envbuild.variant", "dev.envbuild.cuda"


def subject_of_model(it: StampedModel, named: str | None = None) -> Subject:
    """A model by its newest stamp; the copy of the manifest is read again for its bytes.

    `named` is what the caller gave: of one file the manifest may say that the folder around it is the model.
    StampError where it has no stamp, or was replaced after it was stamped: the environment would be another model's.
    """
    stamp = current_stamp(it)
    changed = [finding for finding in artifact_findings(it) if not finding.agrees]
    return Subject(
        name=it.uri,
        side=side_of_model(it),
        manifest=it.manifest,
        manifest_bytes=manifest_copy(it, stamp) if it.manifest else None,
        images=stamp.images,
        locks=it.locks,
        model=it.uri,
        named=named if named and not named.startswith("gs://") else None,
        # A missing copy is only a warning.
        findings=tuple(replace(one, severity="warning") if one.rule == "artifact-copies" else one for one in changed),
    )


def subject_of_manifest(name: str, data: bytes, manifest: TrainingManifest) -> Subject:
    """A run by its manifest alone; nothing is stamped with it."""
    return Subject(name=name, side=side_of_manifest(manifest, name), manifest=manifest, manifest_bytes=data)


def subject_of_image(name: str, side: Side) -> Subject:
    """An image that was named itself, and is run as it is."""
    return Subject(name=name, side=side, image=name)


def chosen_side(subject: Subject, variant: Variant, platform: str) -> Side:
    """What would run here, as rules read it: the stamped lock's packages where there is one, else the run's.

    The run's GPU, CPU and all else stay, as this machine is compared with them.
    """
    side = replace(subject.side, kind="image", variant=variant, machine=machine_of(platform))
    lock = subject.locks.get(("train", variant, platform))
    if lock is None:
        return side
    inside = side_of_lock(lock, subject.name)
    return replace(
        side, packages=inside.packages, cuda=inside.cuda or side.cuda, cudnn=inside.cudnn or side.cudnn, complete=True
    )


def machine_of(platform: str) -> str:
    """`x86_64` for `linux/amd64`, and for the names that Go, Windows and macOS have for a machine: `amd64`, `AMD64`."""
    architecture = platform.rpartition("/")[2].lower()
    return next((machine for machine, name in ARCHITECTURES.items() if name == architecture), architecture)


def side_of_named(text: str, client: docker.DockerClient | None, machine: str, report: Reporter) -> Side:
    """Return the facts of an image: of the engine's, else the registry's, or of a layout or archive here."""
    if known := _inspected(text, client):
        return _side(text, str(known.get("Architecture", "")), known.get("Config") or {}, machine)
    if client is not None and not lies_here(text):
        report.note(f"the engine does not have {text}")
    if not lies_here(text) and not set("/:@") & set(text):
        # A bare word is a mistyped model more often than an image of Docker Hub.
        what = "no file here and no image in the engine has this name"
        todo = f"give a model's folder, a manifest, or an image with its registry or tag: {text}:latest"
        raise UsageError(what, where=f"TARGET {text}", todo=todo)
    with open_image(text, machine=machine, cache=cache_folder(), report=report) as image:
        try:
            config = json.loads(image.config)
            return _side(text, str(config.get("architecture", "")), config.get("config") or {}, machine)
        except (ValueError, AttributeError) as error:
            raise BuildError("the image's config is not valid JSON", where=text, todo="build it again") from error


def _inspected(text: str, client: docker.DockerClient | None) -> Mapping[str, Any] | None:
    """What the engine knows of an image; None if it does not have it, or could not have one of such a name."""
    if client is None or lies_here(text):
        return None
    with suppress(NullResource, APIError):
        known: Mapping[str, Any] = client.api.inspect_image(_engine_name(text))
        return known
    return None


def _engine_name(text: str) -> str:
    return text.removeprefix(_ENGINE).removeprefix(_REGISTRY)


def load_image(text: str, client: docker.DockerClient, machine: str, report: Reporter) -> tuple[str, str | None]:
    """The engine's name of an image, and its digest in a registry; what lies here is loaded, all else pulled."""
    if not lies_here(text):
        found = find_image(client, _engine_name(text), report)
        return found.id, found.digest
    with open_image(text, machine=machine, cache=cache_folder(), report=report) as image:
        return load_into(client, image, (), report).id, None


def size_of(text: str, client: docker.DockerClient | None, machine: str, report: Reporter) -> int | None:
    """Bytes of an image's layers, compressed; 0 if the engine has it, None where nobody can be asked."""
    if _inspected(text, client):
        return 0
    with suppress(RegistryError), open_image(text, machine=machine, cache=cache_folder(), report=report) as image:
        return sum(layer.descriptor.size for layer in image.layers)
    return None  # pulling it will say why


def _side(name: str, architecture: str, config: Mapping[str, Any], machine: str) -> Side:
    labels = config.get("Labels") or {}
    variables = dict(str(it).partition("=")[::2] for it in config.get("Env") or ())
    variant = labels.get(_VARIANT)
    framework, _, version = str(labels.get(_FRAMEWORK, "")).partition("==")
    return Side(
        name=name,
        kind="image",
        system="Linux",
        machine=machine_of(architecture or machine),
        frameworks=frameworks_of({framework: version}).frameworks if version else (),
        cuda=labels.get(_CUDA),
        variant=variant if variant in ("gpu", "cpu") else None,
        variables=variables,
        names=frozenset(variables),
    )


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
    remarks: tuple[str, ...] = ()
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
    with workplace(building.cache) as folder:
        request = build_request_of(subject, choice, building, folder / "out")
        result = build(request, make_plans(request, check_known(subject)[0]), report, now)
    image, loaded = result.images[0], result.loaded
    assert loaded is not None, "the request loads it"
    if choice.expected and choice.expected.digest == image.digest:
        remarks: tuple[str, ...] = (f"it is the stamped image, bit for bit: {image.digest}",)
    else:
        remarks = _changes_since(subject, choice.nearest, image.lock)
    return Here(image=loaded.id, digest=None, lock=image.lock, parent=loaded.image, remarks=remarks)


def build_request_of(subject: Subject, choice: Choice, building: Building, out: Path) -> BuildRequest:
    """Return the request for a build: the chosen variant and platform, on the base that was recorded."""
    _, data = check_known(subject)
    nearest = choice.expected or choice.nearest
    lock, base = subject.locks.get(nearest.slot) if nearest else None, building.base
    if nearest and lock and base is None:
        base = recorded_base(lock, variant=choice.variant, same_platform=nearest.platform == choice.platform)
    # One tag for each environment, so that the next build replaces it.
    tag = f"{Digest.of(data).hex[:12]}-{choice.variant}-{choice.platform.rpartition('/')[2]}"
    return BuildRequest(
        manifest_bytes=data,
        manifest_name=subject.name,
        variant=choice.variant,
        base=base,
        drop=lock.drops if lock else (),
        as_of=lock.as_of if lock else None,
        resolver="uv",
        out=out,
        push=None,
        stamp=None,
        cache=building.cache,
        platforms=(choice.platform,),
        load=Reference(DOCKER_HUB, "library/envbuild-local", tag),
        find_links=building.find_links,
        offline=building.offline,
    )


def stamped_lock(subject: Subject, choice: Choice) -> Lock | None:
    """Return the stamped lock of the choice; None if the model has none."""
    stamped = choice.pull or choice.expected
    return subject.locks.get(stamped.slot) if stamped else None


def check_known(subject: Subject) -> tuple[TrainingManifest, bytes]:
    """Return the manifest that is locked, and its bytes; UsageError without one."""
    if subject.manifest is None or subject.manifest_bytes is None:
        todo = "give the run's manifest, or stamp the model again from its run"
        raise UsageError("no manifest says what this environment consists of", where=subject.name, todo=todo)
    return subject.manifest, subject.manifest_bytes


def lock_here(subject: Subject, choice: Choice, building: Building, report: Reporter) -> Lock:
    """Lock the run's pins for this machine's C library; LockError, MatchError, UsageError without a manifest."""
    manifest, _ = check_known(subject)
    plan = make_plans(build_request_of(subject, choice, building, Path("unused")), manifest)[0]
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
    """Return what changed from one lock to another; frameworks first, packages that serve a GPU alone in one line."""
    before, after = _pins(nearest), _pins(now)
    # The same framework under another name: tensorflow and tensorflow-cpu.
    new = {it: name for name in after if name not in before and (it := family(name))}
    renamed = {name: new[it] for name in before if name not in after and (it := family(name)) in new}
    changes = [f"{name} {before[name]} -> {other} {after[other]}" for name, other in renamed.items()]
    changes += [f"{name} {old} -> {after[name]}" for name, old in before.items() if after.get(name, old) != old]
    for what, pins, others in (("dropped", before, after), ("added", after, before)):
        names = [name for name in pins if name not in others and name not in (*renamed, *renamed.values())]
        changes += [f"{name} {pins[name]} {what}" for name in names if not is_nvidia(name)]
        if gpu := [f"{name} {pins[name]}" for name in names if is_nvidia(name)]:
            changes.append(f"{counted(len(gpu), 'package')} for GPUs {what}: {listing(gpu)}")
    # Another machine, Python or index has other files of the same versions.
    digests = {(it.name, it.version): it.sha256 for it in nearest.wheels}
    rebuilt = [it.name for it in now.wheels if digests.get((it.name, it.version), it.sha256) != it.sha256]
    if rebuilt:
        changes.append(f"{counted(len(rebuilt), 'wheel')} of the same version with another content: {listing(rebuilt)}")
    return tuple(changes)


def _pins(lock: Lock) -> dict[str, str]:
    """Versions by name: of Python, the machine, glibc, the wheels, and the packages of the system."""
    wheels = {it.name: it.version for it in sorted(lock.wheels, key=lambda it: it.name)}
    packages = {f"Debian's {it.name}": it.version for it in sorted(lock.packages, key=lambda it: it.name)}
    target = lock.target
    return {"Python": target.python, "machine": target.machine, "glibc": target.glibc, **wheels, **packages}
