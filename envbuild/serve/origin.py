"""The training image that a serving image starts with: from the stamp, or built again from the same lock."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path

from envbuild.build.build import build
from envbuild.build.extend import find_parent, is_nameless, recorded_base
from envbuild.build.request import PLATFORMS, BuildRequest, PlatformImage, make_plans
from envbuild.cache import workplace
from envbuild.errors import BaseError, StampError, UsageError, VerifyError
from envbuild.image.child import Parent
from envbuild.lock.formats import is_local
from envbuild.lock.model import Lock, LockedWheel
from envbuild.manifest.model import TrainingManifest
from envbuild.manifest.reader import read_manifest
from envbuild.match.stack import Variant
from envbuild.oci.image import Image
from envbuild.oci.layout import ARCHITECTURES, find_layout, read_layout
from envbuild.oci.reference import Reference
from envbuild.report import Reporter
from envbuild.serve.model import Origin, ServeOrder
from envbuild.stamp.history import Proof
from envbuild.stamp.record import StampedImage, lock_name
from envbuild.verify.registries import check_signed
from envbuild.verify.sources.model import StampedModel, artifact_findings, current_stamp, manifest_copy, read_model

_CARRIED = "python"
"""What was set by hand for one variant that goes for another as well."""


def check_parent(order: ServeOrder, image: StampedImage, model: str, report: Reporter) -> None:
    """VerifyError unless the parent key, by default the public half of --sign's, has signed the stamped training image.

    Everyone who can write to the model's folder can change its stamp, so the stamp alone proves nothing.
    Without either key nothing is asked; errors as `check_signed`.
    """
    key, named = order.parent_key, f"by {order.parent_key}"
    if not key and order.build_request.attestations.key:
        from envbuild.attest.keys import KEYLESS, Identity, signer_of  # noqa: PLC0415 - its libraries are slow to import

        public, named = signer_of(order.build_request.attestations.key).public_key, "by --sign's key"
        if isinstance(public, Identity):
            key = f"{KEYLESS}:{public.issuer}={public.name}"
        else:
            key = str(public.keyval["public"])
    if not key:
        return
    todo = "give --parent-key, or push the training image with --sign; verify --deep builds it again and compares"
    if not image.reference:
        what = f"the training image {image.digest} is not signed {named}: it was never pushed"
        raise VerifyError(what, where=model, todo=todo)
    report.step(f"looking for signatures of the training image {image.reference}")
    wrong = [it.says for it in check_signed(Reference.parse(image.reference), key) if not it.agrees]
    if wrong:
        what = f"the training image {image.reference} is not signed {named}: {'; '.join(wrong)}"
        raise VerifyError(what, where=model, todo=todo)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a serving image will start from, as far as that is known before anything is pulled or built."""

    name: str
    """The model or manifest, for messages."""
    manifest: TrainingManifest
    manifest_bytes: bytes
    variant: str
    platform: str
    stamped: StampedModel | None = None
    """The model and its stamp; None where only a manifest was given."""
    image: StampedImage | None = None
    """The training image of this variant and platform that the model is stamped with."""
    nearest: StampedImage | None = None
    """The one whose lock another is made from."""

    @property
    def reference(self) -> Reference | None:
        """Where the training image lies; None where it has to be found or made."""
        return Reference.parse(self.image.reference) if self.image and self.image.reference else None

    @property
    def lock(self) -> Lock | None:
        """What the nearest image was made from; None without a stamp."""
        return self.stamped.locks.get(self.nearest.slot) if self.stamped and self.nearest else None

    @property
    def slot(self) -> str:
        """`cpu linux/amd64`."""
        return f"{self.variant} {self.platform}"


def find_start(order: ServeOrder, report: Reporter) -> Start:
    """Read the model or the manifest, and say what a serving image starts from; writes nothing.

    StampError for a model without a stamp that holds, VerifyError for one whose files are not what the run saved.
    """
    if order.model:
        return _start_of_model(order, order.model, report)
    name, data = order.build_request.manifest_name, order.build_request.manifest_bytes
    manifest = read_manifest(data, name)
    plan = make_plans(order.build_request, manifest)[0]
    return Start(
        name=name,
        manifest=manifest,
        manifest_bytes=data,
        variant=plan.stack.variant,
        platform=PLATFORMS[plan.stack.machine],
    )


def find_origin(order: ServeOrder, report: Reporter, now: datetime) -> Origin:
    """Have the training image: by its digest from the stamp, else built, and pushed where the serving image goes.

    Errors are those of `find_start`, of pulling and of building; VerifyError where what is built is not the image that
    is stamped, another variant would have other versions, or it has to be signed and is not.
    """
    start = find_start(order, report)
    if start.nearest:  # of a manifest, the training image is made and signed here
        check_parent(order, start.nearest, start.name, report)
    image = start.image
    lock = start.stamped.locks.get(image.slot) if start.stamped and image else None
    parent = (
        _parent(start, _located(lock, order.build_request.find_links), order.build_request.out, report)
        if lock
        else None
    )
    if parent is None or image is None:
        return _built(start, order.build_request, report, now)
    return _origin(start)(
        parent=parent,
        reference=start.reference,
        environment=image.environment,
        overrides=image.overrides,
        identity=image.identity,
    )


def _origin(start: Start) -> "partial[Origin]":
    return partial(
        Origin,
        manifest=start.manifest,
        manifest_bytes=start.manifest_bytes,
        variant=start.variant,
        platform=start.platform,
        stamped=start.stamped,
        built_on=start.nearest,
    )


def _start_of_model(order: ServeOrder, uri: str, report: Reporter) -> Start:
    model = read_model(uri, _proof(order))
    stamp = current_stamp(model)
    data, folder = (
        manifest_copy(model, stamp),
        "copy the model's whole folder, envbuild/ with it, from where it was stamped",
    )
    if model.manifest is None or data is None:
        faults = "; ".join(f"{name}: {fault}" for name, fault in sorted(model.faults.items()))
        what = f"the copy of the run's manifest cannot be used: {faults or 'it was changed'}"
        raise StampError(what, where=uri, todo=f"{folder}, or give the run's manifest")
    _check_files(model, report)
    images = [it for it in stamp.images if it.role == "train"]
    variant, platform = _chosen(order.build_request, images, model.manifest, uri)
    start = Start(
        name=uri,
        manifest=model.manifest,
        manifest_bytes=data,
        variant=variant,
        platform=platform,
        stamped=model,
        image=stamp.image(("train", variant, platform)),
        # The image itself where it is stamped; else first the same platform's, as those have one base.
        nearest=min(images, key=lambda it: (it.platform != platform, it.variant != variant)),
    )
    if start.lock is None and start.nearest:
        name = lock_name(start.nearest)
        what = f"the lock of its training image cannot be used: {model.faults.get(name, 'it is not there')}"
        raise StampError(what, where=f"{uri}, {name}", todo=folder)
    return start


def _proof(order: ServeOrder) -> Proof | None:
    """What the stamp has to prove: what is signed here is made from what it names."""
    key, named = order.build_request.attestations.key, order.training_keys
    if not named and not key:
        return None
    from envbuild.attest.bundle import record_keys, record_signer  # noqa: PLC0415 - its libraries are slow to import

    # With a parent key alone, the stamp may be training's or an earlier one of this very signer.
    keys = record_keys(named) if order.signed or not key else record_signer(key, named)
    return Proof(keys=keys, minimum=order.build_request.minimum_record)


def _check_files(model: StampedModel, report: Reporter) -> None:
    """Refuse a model one of whose files is not what the run saved; VerifyError."""
    wrong = [it for it in artifact_findings(model) if not it.agrees]
    grave = [it for it in wrong if it.severity == "error" and it.rule == "artifact-files"]
    if grave:
        each = (f"{it.says}: recorded {it.wanted}, found {it.found}" for it in grave)
        says = "\n  - ".join(("the model is not the one that was trained:", *each))
        raise VerifyError(says, where=model.uri, todo=grave[0].todo)
    for it in wrong:
        (report.note if it.severity == "note" else report.warn)(f"{it.about}: {it.says}")


def _chosen(
    order: BuildRequest, images: Sequence[StampedImage], manifest: TrainingManifest, uri: str
) -> tuple[str, str]:
    """The variant and platform: those that were asked for, else the run's own as far as they are stamped."""
    if not images:
        todo = "stamp it with its run first: envbuild from-manifest MANIFEST --push REPOSITORY --stamp MODEL"
        raise StampError("the model is stamped with no training image", where=uri, todo=todo)
    own = PLATFORMS.get(manifest.platform.machine or "", "")
    stamped = [it.platform for it in images]
    platform = order.platforms[0] if order.platforms else own if own in stamped else stamped[0]
    variants = {it.variant for it in images if it.platform == platform} or {it.variant for it in images}
    variant = order.variant if order.variant != "auto" else "gpu" if "gpu" in variants else "cpu"
    return variant, platform


def _parent(start: Start, lock: Lock, out: Path, report: Reporter) -> Parent | None:
    """The stamped training image, in its registry or in a layout at or beside --out; None where it is in neither."""
    if start.reference:
        report.step(f"training image {start.reference}")
        return find_parent(start.reference, lock)
    assert start.image is not None, "a lock is an image's"
    folder = find_layout(start.image.digest, (out, out.parent, Path()))
    image = _in_layout(folder, start.image) if folder else None
    if image is None:
        places = f"neither in {out} nor in a folder beside it"
        report.note(f"the training image {start.image.digest} was never pushed, and lies {places}: it is built again")
        return None
    report.step(f"training image {folder}@{image.digest}")
    return Parent(image=image, lock=lock)


def _located(lock: Lock, folders: Sequence[Path]) -> Lock:
    """Say where wheels that came from no index lie now; the stamped lock only has their names."""

    def locate(wheel: LockedWheel) -> LockedWheel:
        names = dict.fromkeys((wheel.filename, wheel.plain_name))
        path = next((it for folder in folders for name in names if (it := folder / name).is_file()), None)
        return replace(wheel, url=path.absolute().as_uri()) if path and is_local(wheel) else wheel

    return replace(lock, wheels=tuple(map(locate, lock.wheels)))


def _in_layout(folder: Path, stamped: StampedImage) -> Image | None:
    """The image that the model is stamped with, if a layout has all of it; UsageError for an unknown platform."""
    machines = {f"linux/{name}": machine for machine, name in ARCHITECTURES.items()}
    if stamped.platform not in machines:
        raise UsageError("no image is made for this platform", where=stamped.platform, todo="give another --platform")
    with suppress(BaseError):  # damaged: then it is built again
        image = read_layout(folder, machine=machines[stamped.platform], digest=stamped.digest)
        return image if image.digest == stamped.digest else None
    return None


def _built(start: Start, request: BuildRequest, report: Reporter, now: datetime) -> Origin:
    """Build the training image, or find it by its environment where it would be pushed; nothing is stamped."""
    why = "it is built" if start.stamped is None else "it is made from the run's manifest and lock"
    report.step(f"training image for {start.slot}: {why}")
    with workplace(request.cache) as folder:
        request = _training_request(start, request, folder / "out")
        image = build(request, make_plans(request, start.manifest), report, now).images[0]
    _check_built(start, image)
    reference = image.pushed.reference if image.pushed else None
    found = find_parent(reference, image.lock) if reference else Parent(image=image.image, lock=image.lock)
    return _origin(start)(
        parent=found,
        reference=reference,
        environment=image.recipe.environment,
        overrides=image.plan.stack.overrides,
        identity=image.proof.summary,
        pylock=image.pylock if start.stamped is None else b"",
    )


def _training_request(start: Start, request: BuildRequest, out: Path) -> BuildRequest:
    """The build request of the training image: without a tag of its own, and without what goes above it."""
    plain = replace(
        request,
        manifest_bytes=start.manifest_bytes,
        manifest_name=start.name,
        out=out,
        push=replace(request.push, tag=None) if request.push else None,
        archive=None,
        load=None,
        stamp=None,
        unloadable="ignore",
        bytecode=False,
    )
    if start.nearest is None or start.lock is None:
        return plain
    same = start.nearest.platform == start.platform
    base = request.base or recorded_base(start.lock, variant=start.variant, same_platform=same)
    if base is None and start.image and is_nameless(start.lock):
        what, todo = "the training image's base lies in a folder, which nothing names", "give that OCI layout by --base"
        raise UsageError(what, where=f"{start.name}, {start.slot}", todo=todo)
    overrides = {key: text for key, text in start.nearest.overrides if start.image or key == _CARRIED}
    variant: Variant = "gpu" if start.variant == "gpu" else "cpu"
    return replace(
        plain,
        variant=variant,
        platforms=(start.platform,),
        base=base,
        overrides=overrides,
        compression=start.image.compression if start.image else request.compression,
        drop=request.drop or start.lock.drops,
        as_of=request.as_of or start.lock.as_of,
    )


def _check_built(start: Start, image: PlatformImage) -> None:
    """VerifyError where what was built is not what is stamped, or has other versions than the lock it is made from."""
    where = f"{start.name}, {start.slot}"
    if start.image and image.digest != start.image.digest:
        what = f"the model is stamped with {start.image.digest}, and its manifest now gives {image.digest}"
        todo = "push the stamped image from where it still lies, or build, push and stamp the training image again"
        raise VerifyError(what, where=where, todo=todo)
    known = {it.name: it.version for it in start.lock.wheels} if start.lock else {}
    moved = [
        f"{it.name} {known[it.name]} -> {it.version}"
        for it in image.lock.wheels
        if known.get(it.name, it.version) != it.version
    ]
    if moved:
        what = "\n  - ".join(("this variant would have other versions than the one that is stamped:", *moved))
        todo = "have an index or a folder (--find-links DIR) that still has the stamped versions"
        raise VerifyError(what, where=where, todo=todo)
