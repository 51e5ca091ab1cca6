"""What stamps of training and serving images share: the model's files, the key that signs, what people are told."""

from collections.abc import Sequence
from dataclasses import replace

from envbuild.build.order import Order, Reporter
from envbuild.errors import StampError
from envbuild.manifest.model import TrainingManifest
from envbuild.oci.digest import Digest
from envbuild.stamp.history import Snapshot
from envbuild.stamp.record import Content
from envbuild.stamp.signature import Signer
from envbuild.stamp.stamping import StampResult
from envbuild.stamp.store import parse_model_uri

_TODO = (
    "give the model that this run saved, or the manifest of the run that saved this one; --stamp-anyway stamps it all "
    "the same, and the record says so"
)


def stamp_content(
    order: Order, manifest: TrainingManifest, early: Snapshot, report: Reporter | None = None
) -> Content | None:
    """Read the files of the model that is to be stamped; StampError where they are not those that the manifest lists.

    Where it lists none, they have to be those of the stamp in place. With a key, files that were stamped for this very
    manifest have to be those of then: other content can have the checksum that a manifest has. What was forced there
    for this manifest need not be forced again. `early` is that stamp, as it was read at first.
    """
    from envbuild.verify.rules.model import compare_files, doubt  # noqa: PLC0415 - a build without a stamp needs no rules
    from envbuild.verify.sources.model import as_stamped, content_of, files_now, folder_of, mismatch, recorded  # noqa: PLC0415  # noqa: PLC0415

    uri, stamp = order.stamp, early.continued
    assert uri is not None, "the caller looked"
    before = stamp.content if stamp else None
    saved, stamped = recorded(manifest.model, None, uri), recorded(None, before, uri)
    exact = order.attestations.key is not None
    again = stamp is not None and Digest.of(order.manifest) in {image.manifest_sha256 for image in stamp.images}
    wanted = as_stamped(manifest.model, before if exact and again else None, uri) or stamped
    place = uri if parse_model_uri(uri).folder else folder_of(uri, manifest)
    now = files_now(place, saved or stamped, patient=True)
    problem = mismatch(wanted, now, order.manifest, by_run=bool(saved), exact=exact)
    if saved is None and report:
        report.warn(f"{order.manifest_name} lists no files of the model, so nothing says that {uri} is its run's")
    if (
        saved
        and wanted
        and now
        and report
        and not problem
        and (sizes := doubt(compare_files(wanted, now, by_name=True)))
    ):
        report.warn(f"the files of {uri} are as {order.manifest_name} records them{sizes}")
    content = content_of(now) if now else Content(files=(), file_count=None)
    unchanged = before and stamped and not mismatch(stamped, now, order.manifest, exact=exact)
    if before and unchanged and (not saved or (problem and again and before.forced)):
        return replace(content, forced=before.forced)
    if not problem:
        return content if now else None
    elsewhere = f"that {order.manifest_name} records, which was saved to {saved.uri}" if saved else ""
    earlier = f"that was stamped at {stamp.created}, and {order.manifest_name} lists no files" if stamp else ""
    what = f"the model is not the one {elsewhere or earlier}: {problem}"
    if not order.stamp_anyway:
        raise StampError(what, where=uri, todo=_TODO)
    if report:
        report.warn(f"stamping {uri} although {what}")
    return replace(content, forced=problem)


def signer_for(order: Order, trusted: Sequence[str] = ()) -> Signer | None:
    """What signs records; None without a key. Records of the `trusted` public keys are continued as well."""
    if order.attestations.key is None:
        return None
    from envbuild.attest.bundle import record_signer  # noqa: PLC0415 - its libraries are slow to import

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
    if not any(it.changed for it in results):
        report.note(f"the model already has this stamp, of {last.created}")
    if signed:
        report.note(f"record {last.counter} of the model, signed; --minimum-record {last.counter} refuses older ones")
