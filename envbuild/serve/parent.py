"""Whether the training image that a signed serving image starts with is signed itself, by a key that is named."""

from envbuild.build import Reporter
from envbuild.errors import VerifyError
from envbuild.oci.reference import Reference
from envbuild.serve.model import ServeOrder
from envbuild.stamp.record import StampedImage
from envbuild.verify.registries import check_signed


def check_parent(order: ServeOrder, image: StampedImage, model: str, report: Reporter) -> None:
    """VerifyError unless the parent key, by default the public half of --sign's, has signed the stamped training image.

    Whoever may write to the model's folder chooses the image that its stamp names, so the stamp alone is no proof.
    Without either key nothing is asked; errors as `check_signed`.
    """
    key = order.parent_key or _public_half(order.order.attestations.key)
    if not key:
        return
    named = f"by {order.parent_key}" if order.parent_key else "by --sign's key"
    todo = "give --parent-key, or push the training image with --sign; verify --deep builds it again and compares"
    if not image.reference:
        what = f"the training image {image.digest} is not signed {named}: it was never pushed"
        raise VerifyError(what, where=model, todo=todo)
    report.step(f"looking for signatures of the training image {image.reference}")
    wrong = [it.says for it in check_signed(Reference.parse(image.reference), key) if not it.agrees]
    if wrong:
        what = f"the training image {image.reference} is not signed {named}: {'; '.join(wrong)}"
        raise VerifyError(what, where=model, todo=todo)


def _public_half(key: str | None) -> str:
    """The public key of what signs, in PEM, or its identity; empty where nothing does."""
    if not key:
        return ""
    from envbuild.attest.keyless import KEYLESS, Identity  # noqa: PLC0415 - its libraries are slow to import
    from envbuild.attest.keys import signer_of  # noqa: PLC0415 - its libraries are slow to import

    public = signer_of(key).public_key
    if isinstance(public, Identity):
        return f"{KEYLESS}:{public.issuer}={public.name}"
    return str(public.keyval["public"])
