"""Whether an image may serve a model: it is one that the model is stamped with, or shares what the model trained in."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

from envbuild.oci.digest import Digest
from envbuild.oci.image import Image, Layer, platform_name
from envbuild.oci.layout import ARCHITECTURES
from envbuild.oci.reference import Reference
from envbuild.registry.pull import pull
from envbuild.report import Reporter
from envbuild.serve.model import NOT_STARTED, UNTRIED, untried
from envbuild.stamp.record import Stamp
from envbuild.verify.findings import Finding
from envbuild.verify.registries import RULE as SIGNED
from envbuild.verify.registries import registry_findings, tag_findings
from envbuild.verify.rules import ARTIFACT, apply_rules
from envbuild.verify.rules.contract import variable_value
from envbuild.verify.rules.model import model_files
from envbuild.verify.sharing import list_first, other_distributions, prove_sharing
from envbuild.verify.sources import Side, side_of_lock
from envbuild.verify.sources.image import files_of, model_inside, model_place, side_of_config
from envbuild.verify.sources.model import Slot, StampedModel, artifact_findings, side_of_model

RULE = "deploy-image"
RULES = {RULE: "an image that the model is stamped with", UNTRIED: "an image that was started before it was pushed"}
"""What the rules are about that are this check's own."""
_OTHERS = "it is not stamped on the model, so that only its content is checked"
_SERVE = "deploy an image that envbuild serve MODEL stamped on the model"
_FORMER = "somebody stamped another image in its place, and may have had a reason"
_ROLES = ("serve", "train")
"""Those of a signed stamp that may be deployed."""
_UNSIGNED = "everyone who can push to the registry can put other files into such an image"


def digest_of(image: Image) -> Digest:
    """The digest that a registry has an image by."""
    return image.found_as or image.digest


def deploy_findings(model: StampedModel, given: Reference | str, image: Image, report: Reporter) -> Iterator[Finding]:
    """Hold a model's files, its stamp and an image against each other; no engine is needed.

    `given` is a reference, or the path of an image on this machine, which has no tag that could move.
    RegistryError where a registry cannot be asked, BuildError for a config or layer that cannot be read.
    """
    side_of_config(image, str(given), machine="")  # refuses what the comparisons cannot read
    yield from (it.with_targets(model.uri, model.uri) for it in artifact_findings(model))
    if model.stamp is not None:
        found = _stamped(model, model.stamp, given, image, report)
        yield from (it if any(it.between) else it.with_targets(model.uri, str(given)) for it in found)


def _stamped(
    model: StampedModel, stamp: Stamp, given: Reference | str, image: Image, report: Reporter
) -> Iterator[Finding]:
    digest = digest_of(image)
    own = min((it for it in stamp.images if digest in it.digests), key=lambda it: it.role != "serve", default=None)
    if model.history.proven and (own is None or own.role not in _ROLES):
        says = f"the signed stamp does not name {digest}"
        yield _disagreeing(stamp, digest)(rule=SIGNED, says=says, why=_UNSIGNED)
        return
    if own is None:
        yield from _of_others(model, stamp, given, image, report)
        return
    says = f"{digest} is the model's image for {' '.join(own.slot)}, as stamped at {stamp.created}"
    yield Finding(about="image", rule=RULE, agrees=True, says=says, wanted=str(digest), found=str(digest))
    if own.role == "train":
        yield _starts_no_server(stamp, digest, "it is the image that the model was trained in")
    if own.gate == NOT_STARTED:
        todo = "build it again where an engine runs (--gate require)"
        yield untried("nothing started it before it was stamped", todo)
    if isinstance(given, Reference):
        if own.reference and Reference.parse(own.reference).name == given.name:  # else a copy, which was just read
            yield from registry_findings(replace(stamp, images=(own,)))
        yield from tag_findings(stamp, given)
    # What it was stamped with was checked when it was built, so none of its layers is read.
    yield from _compare_content(model, given, image, (), own.slot, report)


def _disagreeing(stamp: Stamp, found: Digest) -> "partial[Finding]":
    """A finding on an image that the stamp does not name, unless the fields say otherwise."""
    return partial(
        Finding,
        about="image",
        rule=RULE,
        agrees=False,
        wanted=", ".join(str(it.digest) for it in stamp.images),
        found=str(found),
        why="nothing says that it computes as the model was trained",
        todo=_SERVE,
    )


def _starts_no_server(stamp: Stamp, digest: Digest, what: str) -> Finding:
    says, why = f"{what}, and it does not start a server", "a deployment that names no command of its own starts none"
    wanted = ", ".join(str(it.digest) for it in stamp.images if it.role == "serve")
    return _disagreeing(stamp, digest)(about="role", severity="note", says=says, wanted=wanted, why=why)


def _of_others(
    model: StampedModel, stamp: Stamp, given: Reference | str, image: Image, report: Reporter
) -> Iterator[Finding]:
    """Check that an image of somebody else has all of the training environment."""
    if isinstance(given, Reference):
        yield from tag_findings(stamp, given)
    digest, platform = digest_of(image), platform_name(image)
    trained = [it for it in stamp.images if it.role == "train" and it.platform == platform and it.reference]
    replaced = _replaced_at(model, digest)
    says = f"{digest} is none of the model's {len(stamp.images)} images" if replaced is None else f"{digest} {replaced}"
    finding = _disagreeing(stamp, digest)
    if not trained:
        yield finding(says=f"{says}, and none of these is a training image for {platform} in a registry")
        return
    machine = next(name for name, architecture in ARCHITECTURES.items() if platform == f"linux/{architecture}")
    pulled = [(it, pull(Reference.parse(str(it.reference)), machine=machine)) for it in trained]
    diff_ids = [it.diff_id for it in image.layers]

    def is_below(train: Image) -> bool:
        return [it.diff_id for it in train.layers] == diff_ids[: len(train.layers)]

    train, below = next((pair for pair in pulled if is_below(pair[1])), pulled[0])
    if _command(image) == _command(below):
        yield _starts_no_server(stamp, digest, "its command is that of the training image")
    if all(other_distributions(it, image) for _, it in pulled):
        others = other_distributions(below, image)
        says = f"{says}, and has other distributions than training: {list_first(others)}"
        yield finding(rule="shared-layers", says=says, packages=others)
        return
    report.step(f"{says}: comparing it with the training image")
    why = _OTHERS if replaced is None else _FORMER
    yield finding(says=f"{says}: compared with the training image", severity="note", why=why)
    # What was stamped was checked when it was built; the model in it is read below.
    proven = () if replaced is None else [it.descriptor.digest for it in image.layers]
    proof = prove_sharing(below, image, report.progress, proven)
    yield from (it.with_targets(str(train.reference), str(given)) for it in proof)
    added = image.layers[len(below.layers) :] if is_below(below) else image.layers
    yield from _compare_content(model, given, image, added, train.slot, report)


def _command(image: Image) -> tuple[Any, Any]:
    inner = json.loads(image.config).get("config") or {}
    return inner.get("Entrypoint") or None, inner.get("Cmd") or None


def _replaced_at(model: StampedModel, digest: Digest) -> str | None:
    """Say when another image replaced a stamped one; None if the image was never stamped on this model."""
    stamps = [it.stamp for it in model.history.records if it.stamp]
    for newer, older in pairwise(stamps):
        if own := next((it for it in older.images if digest in it.digests and older.anchor == newer.anchor), None):
            return f"was the model's image for {' '.join(own.slot)} until another was stamped at {newer.created}"
    return None


def _compare_content(
    model: StampedModel, given: Reference | str, image: Image, layers: Sequence[Layer], slot: Slot, report: Reporter
) -> Iterator[Finding]:
    """Compare the model with the image's variables, its packages by their lock, and a model in some of its layers."""
    inner = json.loads(image.config).get("config") or {}
    variables, name = dict(str(it).partition("=")[::2] for it in inner.get("Env") or ()), str(given)
    place = model_place(variables, str(inner.get("WorkingDir") or "/"))
    inside = model_inside(files_of(layers, place, name, report.progress), place, name) if layers else None
    side = side_of_lock(model.locks[slot], name) if slot in model.locks else Side(name=name, kind="image")
    side = replace(side, kind="image", variables=variables, names=frozenset(variables), model=inside)
    yield from apply_rules(side_of_model(model), side, (variable_value, *ARTIFACT, model_files))
