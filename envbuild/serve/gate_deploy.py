"""Whether an image may serve a model: it is one that the model is stamped with, or shares what the model trained in."""

from collections.abc import Iterator
from dataclasses import replace

from envbuild.compare.pair import Report
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image
from envbuild.oci.index import platform_name
from envbuild.oci.layout import ARCHITECTURES
from envbuild.oci.reference import Reference
from envbuild.registry import pull
from envbuild.stamp import Stamp, StampedImage
from envbuild.verify.findings import Finding
from envbuild.verify.sharing import prove_sharing
from envbuild.verify.sides.model import StampedModel, artifact_findings
from envbuild.verify.stamped import registry_findings, tag_findings

RULE = "deploy-image"
RULES = {RULE: "an image that the model is stamped with"}
"""What the rule is about that is this check's own."""
_OTHERS = "nobody has stamped it on the model, so that only what it holds speaks for it"
_ALONE = "nothing says that it computes as the model was trained"


def digest_of(image: Image) -> Digest:
    """The digest that a registry has an image by."""
    return image.found_as or image.digest


def deploy_findings(model: StampedModel, given: Reference, image: Image, report: Report) -> Iterator[Finding]:
    """Hold a model's files, its stamp and an image in a registry against each other; no engine is needed.

    RegistryError where a registry cannot be asked, BuildError for a layer that cannot be read.
    """
    yield from (it.held(model.uri, model.uri) for it in artifact_findings(model))
    if model.stamp is not None:
        found = _stamped(model.stamp, given, image, report)
        yield from (it if any(it.between) else it.held(model.uri, str(given)) for it in found)


def _stamped(stamp: Stamp, given: Reference, image: Image, report: Report) -> Iterator[Finding]:
    digest = digest_of(image)
    own = min((it for it in stamp.images if it.digest == digest), key=lambda it: it.role != "serve", default=None)
    if own is None:
        yield from _of_others(stamp, given, image, report)
        return
    name = f"{own.role} {own.variant} {own.platform}"
    says = f"{digest} is the model's image for {name}, as stamped at {stamp.created}"
    yield Finding(about="image", rule=RULE, agrees=True, says=says, wanted=str(digest), found=str(digest))
    if own.reference and Reference.parse(own.reference).name == given.name:  # else it is a copy, which was just read
        yield from registry_findings(replace(stamp, images=(own,)))
    yield from tag_findings(stamp, given)


def _of_others(stamp: Stamp, given: Reference, image: Image, report: Report) -> Iterator[Finding]:
    """What somebody else made has to have all of the training environment."""
    yield from tag_findings(stamp, given)
    digest, platform = digest_of(image), platform_name(image)
    trained = [it for it in stamp.images if it.role == "train" and it.platform == platform and it.reference]
    says = f"{digest} is none of the model's {len(stamp.images)} images"
    if not trained:
        yield _unknown(f"{says}, and none of these is a training image for {platform} in a registry", stamp, digest)
        return
    yield replace(_unknown(f"{says}: held against the training image", stamp, digest), severity="note", why=_OTHERS)
    train, below = _below(trained, image)
    yield from (it.held(str(train.reference), str(given)) for it in prove_sharing(below, image, report))


def _unknown(says: str, stamp: Stamp, found: Digest) -> Finding:
    wanted = ", ".join(str(it.digest) for it in stamp.images)
    todo = "deploy an image that envbuild from-manifest MODEL --role serve stamped on the model"
    return Finding(
        about="image", rule=RULE, agrees=False, says=says, wanted=wanted, found=str(found), why=_ALONE, todo=todo
    )


def _below(trained: list[StampedImage], image: Image) -> tuple[StampedImage, Image]:
    """The training image whose layers an image begins with; the first where it begins with none of them."""
    pulled = [(it, _pulled(str(it.reference), it.platform)) for it in trained]
    return next((pair for pair in pulled if _begins(pair[1], image)), pulled[0])


def _begins(train: Image, image: Image) -> bool:
    ours = [it.diff_id for it in train.layers]
    return [it.diff_id for it in image.layers[: len(ours)]] == ours


def _pulled(reference: str, platform: str) -> Image:
    machine = next(name for name, architecture in ARCHITECTURES.items() if platform == f"linux/{architecture}")
    return pull(Reference.parse(reference), machine=machine)
