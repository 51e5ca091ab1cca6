"""What stamps of training and serving images share: the key that signs records, and what people are told."""

from collections.abc import Sequence

from envbuild.pipeline.order import Order, Reporter
from envbuild.stamp import Signer, StampResult


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
