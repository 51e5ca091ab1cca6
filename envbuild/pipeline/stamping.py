"""What stamps of training and serving images share: the model's files, the key that signs, what people are told."""

from collections.abc import Sequence
from dataclasses import replace

from envbuild.errors import StampError
from envbuild.manifest.model import TrainingManifest
from envbuild.pipeline.order import Order, Reporter
from envbuild.stamp import Content, Signer, StampResult, parse_model_uri

_TODO = (
    "give the model that this run saved, or the manifest of the run that saved this one; --stamp-anyway stamps it all "
    "the same, and the record says so"
)


def stamp_content(
    order: Order, manifest: TrainingManifest, carried: Content | None = None, report: Reporter | None = None
) -> Content | None:
    """Read the files of the model that is to be stamped; StampError where they are not those that the manifest lists.

    `carried` is what a stamp that is continued says of them: what was forced there need not be forced again.
    """
    from envbuild.verify.rules.modelfiles import compared, doubt  # noqa: PLC0415 - a build without a stamp needs no rules
    from envbuild.verify.sides.content import content_of, mismatch, recorded  # noqa: PLC0415
    from envbuild.verify.sides.model import files_now, folder_of  # noqa: PLC0415

    uri = order.stamp
    assert uri is not None, "the caller looked"
    saved = recorded(manifest.model, None, uri)
    place = uri if parse_model_uri(uri).folder else folder_of(uri, manifest)
    now = files_now(place, saved, patient=True)
    if now is None or not now.files:
        problem = f"its files cannot be read: {now.unread if now else 'the answer makes no sense'}" if saved else ""
    else:
        problem = mismatch(saved, now, order.manifest) if saved else ""
    if saved is None and report:
        report.warn(f"{order.manifest_name} lists no files of the model, so nothing says that {uri} is its run's")
    content = content_of(now) if now else None
    if not problem:
        if report and saved and now and (sizes := doubt(compared(saved, now, by_name=True))):
            report.warn(f"the files of {uri} are as {order.manifest_name} records them{sizes}")
        return content
    then = recorded(None, carried, uri)
    if carried and carried.forced and then and now and not mismatch(then, now, order.manifest):
        return replace(content_of(now), forced=carried.forced)
    if not order.stamp_anyway:
        where = saved.uri if saved else "elsewhere"
        what = f"the model is not the one that {order.manifest_name} records, which was saved to {where}: {problem}"
        raise StampError(what, where=uri, todo=_TODO)
    if report:
        report.warn(f"stamping {uri} although it is not the model that {order.manifest_name} records: {problem}")
    return replace(content, forced=problem) if content else Content(files=(), file_count=None, forced=problem)


def signer_for(order: Order, trusted: Sequence[str] = ()) -> Signer | None:
    """What signs records; None without a key. Records of the `trusted` public keys are continued as well."""
    if order.attestations.key is None:
        return None
    from envbuild.attest.records import record_signer  # noqa: PLC0415 - its libraries are slow to import

    return record_signer(order.attestations.key, trusted, order.minimum_record)


def report_stamps(results: Sequence[StampResult], report: Reporter, *, signed: bool) -> None:
    """Say the number of the last record, if it is signed, and which images of the record before it does not name."""
    last = results[-1].stamp
    for result in results:
        for image in result.dropped:
            if last.image(image.slot) is None:
                slot = " ".join(image.slot)
                report.warn(f"{result.reason_dropped}, and its {slot} was not stamped again: it was {image.image}")
    if any(it.unsigned_now for it in results):
        report.warn("this stamp is not signed, and the one before was: --signed refuses the model now; give --sign KEY")
    if signed:
        report.note(f"record {last.counter} of the model, signed; --minimum-record {last.counter} refuses older ones")
