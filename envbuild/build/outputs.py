"""Where the image goes besides a registry: a layout, an archive, an engine; and the build context for people."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from envbuild.attest.attach import attest, check_key, sign
from envbuild.attest.parts import read_parts
from envbuild.attest.statement import DEBIAN, Facts
from envbuild.build.context import Context, write_context
from envbuild.build.request import LAYOUT_NAME, PLATFORMS, BuildRequest, BuildResult, PlatformImage, each_image
from envbuild.errors import BuildError, RegistryError, StampError, UsageError
from envbuild.files import staged_folder
from envbuild.manifest.model import Model, TrainingManifest
from envbuild.oci.digest import Digest
from envbuild.oci.image import Content, joined
from envbuild.oci.layout import Archive, write_archive, write_layout
from envbuild.oci.reference import Reference
from envbuild.registry.push import PushResult, publish, stamped_tag
from envbuild.report import Reporter
from envbuild.stamp.history import Signer, Snapshot
from envbuild.stamp.record import ModelFiles, StampEntry
from envbuild.stamp.stamping import StampResult, stamp

if TYPE_CHECKING:
    from envbuild.engine.load import Loaded
    from envbuild.verify.sources import Side

_TODO = (
    "give the model that this run saved, or the manifest of the run that saved this one; --stamp-anyway stamps it all "
    "the same, and the record says so"
)
_LOADABLE = "do what the findings say; --stamp-anyway, and for serve --gate off too, goes on all the same"


def write_outputs(
    request: BuildRequest,
    images: Sequence[PlatformImage],
    content: Content,
    pushed: PushResult | None,
    report: Reporter,
) -> BuildResult:
    """Write the context, and the image wherever it is wanted; an OCI layout where nothing else was asked for.

    Engines are given the image of gzip, where there are two.
    """
    layout = None if pushed or request.archive or request.load else request.out
    if layout:
        report.step(f"writing the OCI layout {layout}")
    # What a layout has already stays where it is; a new one appears whole.
    layout_exists = layout is not None and (layout / "index.json").exists()
    with staged_folder(request.out) as folder:
        for image in images:
            name = "context" if len(images) == 1 else f"context/{image.platform.replace('/', '-')}"
            context = Context(recipe=image.recipe, lock=image.lock, pylock=image.pylock, wheelhouse=image.wheelhouse)
            write_context(folder / name, context, request)
        if layout and not layout_exists:
            write_layout(content, folder, name=LAYOUT_NAME)
        # Where one of these fails, no folder is left that looks like a success.
        for_engines = joined([image.image for image in images])
        if request.archive:
            write_into_archive(request, request.archive, for_engines, report)
        loaded = None
        if request.load:
            load = images[0].tag_in_engine or (lambda name: load_into_engine(name, for_engines, report))
            loaded = load(request.load)
    if layout and layout_exists:
        write_layout(content, layout, name=LAYOUT_NAME)
    return BuildResult(
        images=tuple(images), content=content, pushed=pushed, layout=layout, archive=request.archive, loaded=loaded
    )


def write_into_archive(request: BuildRequest, path: Path, content: Content, report: Reporter) -> None:
    """Write the image into a file; BuildError."""
    report.step(f"writing the archive {path}")
    if request.compression.level:
        report.note("its layers are of zstd, which Docker loads from release 23.0 on")
    names = tuple(name for name in (request.load, request.push) if name)[:1]
    total = Archive(content, names).size
    try:
        write_archive(content, path, names, lambda done: report.progress("writing", done, total))
    except OSError as error:
        if error.filename is not None:  # it says itself what cannot be read or written
            raise
        todo = "free space there, or give --archive another file"
        if request.push:
            todo += f"; {request.push} has the image by now"
        raise BuildError(f"the archive cannot be written: {error.strerror}", where=str(path), todo=todo) from error


def load_into_engine(name: Reference, content: Content, report: Reporter) -> "Loaded":
    """Give the image to the container engine; MissingComponentError."""
    report.step(f"loading {name} into the container engine")
    from envbuild.engine.client import connected  # noqa: PLC0415 - Docker's library is slow to import
    from envbuild.engine.load import INSTEAD, load_into  # noqa: PLC0415 - Docker's library is slow to import

    with connected(INSTEAD) as client:
        return load_into(client, content, [name], report)


def check_attestations(request: BuildRequest) -> None:
    """Fail before the long work where nothing could be signed; UsageError, and what `check_key` raises."""
    if request.attestations.key and request.push is None:
        what, todo = "signatures lie beside an image in a registry, and nothing is pushed", "give --push REPO too"
        raise UsageError(what, where="--sign", todo=todo)
    check_key(request.attestations)


def publish_images(
    request: BuildRequest,
    images: Sequence[PlatformImage],
    pushed: PushResult | None,
    report: Reporter,
    started: datetime,
) -> None:
    """Attach what is wanted to each image that was built and pushed, sign their index, and only then set tags.

    A reused image keeps what its builder attached. Errors as `attest`.
    """
    every = each_image(images)
    tags = {image.pushed.reference: image.tags for image in every if image.pushed}
    index = pushed.reference if pushed and len(every) > 1 else None
    if index:
        tags[index] = (request.push.tag,) if request.push and request.push.tag else ()

    def attach() -> None:
        for image in every:
            if image.pushed and image.reused:
                report.note("the reused image keeps the SBOM and provenance that its builder attached")
            elif image.pushed:
                attest(_facts(request, image, image.pushed, started, report), request.attestations, report)
        if index:
            sign(index, request.attestations, report)

    publish(tags, attach)


def _facts(
    request: BuildRequest, image: PlatformImage, pushed: PushResult, started: datetime, report: Reporter
) -> Facts:
    recipe, own_base = image.recipe, image.recipe.base_name.startswith(DEBIAN)
    # The base has fields of its own, and as an option it may be a folder of this machine.
    overrides = [(f"set {key}", value) for key, value in image.plan.stack.overrides if key != "base"]
    return Facts(
        reference=pushed.reference,
        image=image.image,
        locks=(image.lock,),
        lock_digests=(Digest.of(image.pylock),),
        role="train",
        variant=image.plan.stack.variant,
        platform=PLATFORMS[recipe.target.machine],
        environment=recipe.environment,
        base_name=recipe.base_asked or (recipe.base_name if own_base else ""),
        base_digest=recipe.base_digest,
        manifest=Digest.of(request.manifest_bytes),
        read_parts=partial(
            read_parts,
            image.base,
            image.lock.wheels,
            request.index_settings(),
            request.cache,
            report,
            proven=bool(request.attestations.key),
        ),
        parameters=(*build_options(replace(request, compression=recipe.compression)), *overrides),
        started=started,
        finished=datetime.now(UTC),
    )


def build_options(request: BuildRequest) -> Iterator[tuple[str, str]]:
    """The options that say how it is built, switches only if on; destinations and folders of wheels are left out."""
    yield "builder", request.builder
    yield "resolver", request.resolver
    yield "cuda-source", request.cuda_source
    if request.compression.level:
        yield "compression", str(request.compression.plain)
    switches = {
        "build": request.build_from_source,
        "bytecode": request.bytecode,
        "offline": request.offline,
        "recompress-base": request.compression.base,
        "require-identical": request.require_identical,
    }
    for name in (name for name, is_on in switches.items() if is_on):
        yield name, "yes"


def check_model_files(
    request: BuildRequest, manifest: TrainingManifest, stamp_before: Snapshot, report: Reporter | None = None
) -> ModelFiles | None:
    """Read the files of the model that is to be stamped, and return them for the stamp record; None if none are known.

    The files have to be those that the manifest lists, else those that the stamp in place (`stamp_before`) lists;
    otherwise StampError, or with `stamp_anyway` a warning, and `forced` says why. If this manifest was stamped before
    and records are signed, the files have to be those of that record: manifests have CRC32C checksums, which other
    content can have too. A mismatch that was forced for this manifest before need not be forced again.
    """
    from envbuild.verify.rules.model import compare_files, size_note  # noqa: PLC0415 - a build without a stamp needs no rules
    from envbuild.verify.sources.model import as_stamped, content_of, files_now, folder_of, mismatch, recorded  # noqa: PLC0415

    uri, previous = request.stamp, stamp_before.continued
    assert uri is not None, "the caller looked"
    files_before = previous.content if previous else None
    in_manifest, in_stamp = recorded(manifest.model, None, uri), recorded(None, files_before, uri)
    exact = request.attestations.key is not None
    same_manifest = previous is not None and Digest.of(request.manifest_bytes) in {
        image.manifest_sha256 for image in previous.images
    }
    expected = as_stamped(manifest.model, files_before if exact and same_manifest else None, uri) or in_stamp
    place = folder_of(uri, manifest) if stamp_before.is_file else uri
    present = files_now(place, in_manifest or in_stamp, patient=True)
    problem = mismatch(expected, present, request.manifest_bytes, by_run=bool(in_manifest), exact=exact)
    if in_manifest is None and report:
        report.warn(f"{request.manifest_name} lists no files of the model, so nothing says that {uri} is its run's")
    if in_manifest and expected and present and report and not problem:
        sizes = size_note(compare_files(expected, present, by_name=True))
        if sizes:
            report.warn(f"the files of {uri} are as {request.manifest_name} records them{sizes}")
    content = content_of(present) if present else ModelFiles(files=(), file_count=None)
    kept = not in_manifest or (problem and same_manifest and files_before and files_before.forced)
    if files_before and in_stamp and kept and not mismatch(in_stamp, present, request.manifest_bytes, exact=exact):
        return replace(content, forced=files_before.forced)
    if not problem:
        return content if present else None
    elsewhere = f"that {request.manifest_name} records, which was saved to {in_manifest.uri}" if in_manifest else ""
    earlier = f"that was stamped at {previous.created}, and {request.manifest_name} lists no files" if previous else ""
    what = f"the model is not the one {elsewhere or earlier}: {problem}"
    if not request.stamp_anyway:
        raise StampError(what, where=uri, todo=_TODO)
    if report:
        report.warn(f"stamping {uri} although {what}")
    return replace(content, forced=problem)


def check_loading(request: BuildRequest, model: Model | None, environment: "Side", report: Reporter) -> None:
    """Warn of all that may keep an environment from loading the model; VerifyError for errors if they are refused.

    The files themselves are read if they are to be stamped and the manifest does not say what wrote them.
    """
    from envbuild.verify.reports import judge, report_finding  # noqa: PLC0415 - a build without a model needs no rules
    from envbuild.verify.rules import loading_faults  # noqa: PLC0415
    from envbuild.verify.sources.model import files_now  # noqa: PLC0415

    if request.unloadable == "ignore":
        return
    if request.stamp and (model is None or model.format is None):
        model = files_now(request.stamp)
    faults = loading_faults(model, environment) if model else ()
    if model and request.unloadable == "refuse":
        judge(
            faults, f"{environment.name} may not load the model, or predict other numbers", model.uri, report, _LOADABLE
        )
    else:
        for it in faults:
            report_finding(it, report)


def signer_for(request: BuildRequest, trusted: Sequence[str] = ()) -> Signer | None:
    """Return what signs stamp records; None without a key. Records of the `trusted` public keys are continued too."""
    if request.attestations.key is None:
        return None
    from envbuild.attest.bundle import record_signer  # noqa: PLC0415 - its libraries are slow to import

    return record_signer(request.attestations.key, trusted, request.minimum_record)


def report_stamps(results: Sequence[StampResult], report: Reporter, *, signed: bool) -> None:
    """Say the number of the last record, if it is signed, and which images of the record before it does not name."""
    last = results[-1].stamp
    for result in results:
        for image in result.dropped:
            if last.image(image.slot) is None:
                lost = f"its {' '.join(image.slot)} was not stamped again: it was {image.image}; build it again"
                report.warn(f"{result.reason_dropped}, and {lost}")
    if any(it.unsigned_now for it in results):
        report.warn("this stamp is not signed, and the one before was: --signed refuses the model now; give --sign KEY")
    if not any(it.changed for it in results):
        report.note(f"the model already has this stamp, of {last.created}")
    if signed:
        report.note(f"record {last.counter} of the model, signed; --minimum-record {last.counter} refuses older ones")


def stamp_images(
    model: str,
    request: BuildRequest,
    images: Sequence[PlatformImage],
    now: datetime,
    report: Reporter,
    stamp_before: Snapshot,
) -> str:
    """Stamp each platform's image, if the model is unchanged since the build began; the last record names them all."""
    for image in each_image(images):
        tag_as_stamped(image.pushed.reference if image.pushed else None, report)
    signer = signer_for(request, request.trusted_keys)
    content = check_model_files(request, images[0].plan.manifest, stamp_before, report)
    write, results = partial(stamp, model, now=now, stamp_before=stamp_before, signer=signer, content=content), []
    for image in images:
        entry = StampEntry(
            role="train",
            variant=image.plan.stack.variant,
            platform=PLATFORMS[image.recipe.target.machine],
            reference=str(image.pushed.reference) if image.pushed else None,
            digest=image.digest,
            environment=image.recipe.environment,
            overrides=image.plan.stack.overrides,
            identity=image.proof.summary,
            tag=request.push.tag if request.push else None,
            compression=image.recipe.compression,
            zstd=image.zstd.digest if image.zstd else None,
        )
        results.append(write(entry, manifest=request.manifest_bytes, lock=image.pylock))
    report_stamps(results, report, signed=signer is not None)
    return results[-1].record


def tag_as_stamped(reference: Reference | None, report: Reporter) -> None:
    """Give a pushed image the tag that cleanup policies keep; warn if the registry refuses it."""
    if reference is None:
        return
    assert reference.digest is not None, "a push ends with a reference by digest"
    try:
        publish({reference: (stamped_tag(reference.digest),)})
    except RegistryError as error:
        tag = stamped_tag(reference.digest)
        report.warn(f"cannot set the tag {tag}, which cleanup policies keep: {error.what}")
