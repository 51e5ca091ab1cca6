"""`envbuild deploy-check`: whether an image may serve a model, in one line of a deployment's pipeline."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild.cli.arguments import parse_platform
from envbuild.cli.command import HOW, flag, grouped, option
from envbuild.cli.console import Progress, one_line
from envbuild.cli.options import AsJson, MinimumRecord, Platform, Signed, check_not_empty, read_reference
from envbuild.cli.targets import kind_of, marks_of, proof_of, required_keys, run_golden, signature_findings
from envbuild.errors import UsageError, VerifyError, counted

if TYPE_CHECKING:
    from envbuild.oci.reference import Reference
    from envbuild.verify.findings import Finding
    from envbuild.verify.reports import Policy
    from envbuild.verify.sources.model import StampedModel


@grouped()
def run(
    model: Annotated[
        str, typer.Argument(help="The stamped model: gs://, a file or folder.", metavar="MODEL", show_default=False)
    ],
    image: Annotated[
        str, typer.Argument(help="NAME:TAG, NAME@DIGEST, or an OCI layout.", metavar="IMAGE", show_default=False)
    ],
    *,
    golden: bool = flag(HOW, "Run the model's golden sample in the image, which tries one that nothing started."),
    policy: Path | None = option(HOW, "Severities and accepted findings, as for verify.", "FILE"),
    signed: Signed = None,
    minimum_record: MinimumRecord = None,
    platform: Platform = None,
    as_json: AsJson = False,
) -> None:
    """Check that an image may serve a model, and print its reference by digest.

    The model has to be stamped with the image, or the image has to have all of the training image's environment; the
    model's files have to be the stamped ones. No engine is needed. Findings go to stderr. Exit code 16 if a finding
    fails the policy (by default: any error). With --signed the key has to have signed the stamp and its image.
    """
    from envbuild.oci.reference import Reference
    from envbuild.serve.deploy import RULES
    from envbuild.verify.reports import Policy, Verdict, lines, read_policy, sound
    from envbuild.verify.rules.catalogue import TITLES
    from envbuild.verify.sources.model import read_model

    given, machine = _read_targets(model, image), parse_platform(platform)
    judge = read_policy(policy, [*TITLES, *RULES]) if policy else Policy()
    keys = required_keys(signed, judge.keys)
    _check_pushed(given, needed=bool(keys or judge.registries))
    deployed, failure = "", None
    found: tuple[Finding, ...] = ()
    with Progress() as progress:
        try:
            progress.step(f"reading model {one_line(model)}")
            stamped = read_model(kind_of(model)[1], proof_of(keys, minimum_record))
            progress.step(f"reading image {given}")
            deployed, found = _findings(stamped, given, machine, progress)
            if isinstance(given, Reference):
                at = Reference.parse(deployed)
                found += (*signature_findings({deployed: at}, keys, progress), *judge.registry_findings(at))
            found = _try_sample(stamped, deployed, machine, found, judge, progress) if golden else found
        except VerifyError as error:
            failure = error
    findings, failed = judge.judged(found, datetime.now(UTC).date()), failure.what if failure else ""
    verdict = Verdict(targets=(model, str(given)), findings=findings, policy=judge, failed=failed)
    if as_json:
        allowed = "" if verdict.wrong or failure else deployed
        typer.echo(json.dumps(sound({"image": allowed or None, **verdict.to_dict()}), indent=2))
    if failure:
        raise failure
    for line in () if as_json else lines(findings):
        typer.echo(one_line(line), err=True)
    if wrong := len(verdict.wrong):
        what = f"this image must not be deployed: {wrong} of {counted(len(findings), 'finding')} failed"
        todo = "do what the findings say, or deploy an image that the model is stamped with"
        raise VerifyError(what, where=one_line(f"{model} {image}"), todo=todo)
    if not as_json:
        typer.echo(deployed)


def _read_targets(model: str, image: str) -> "Reference | str":
    """Return the reference of an image in a registry, or the path of a layout or archive; UsageError."""
    from envbuild.oci.reference import lies_here

    check_not_empty({"MODEL": model, "IMAGE": image})
    kind, name = kind_of(model)
    if kind != "model":
        what, todo = f"MODEL is {kind}, not a model", "give the stamped model first, and then the image"
        if marks := marks_of(Path(name)):
            what = f"MODEL is of the kind {kind}, as it has {' and '.join(marks)}"
            todo = f"remove what does not belong to the model, or give it as model:{one_line(name)}"
        elif kind == "image":
            what = "there is no such file or folder, and an image is not a model"
            todo = "give the stamped model first: its folder, one of its files, or gs://BUCKET/FOLDER"
        raise UsageError(what, where=f"MODEL {one_line(model)}", todo=todo)
    name = image.removeprefix("image:")
    if lies_here(name):
        return name
    name = name.removeprefix("docker://")
    return read_reference(name, "IMAGE", "give HOST/NAME:TAG or HOST/NAME@sha256:..., or the folder of an OCI layout")


def _check_pushed(given: "Reference | str", *, needed: bool) -> None:
    if needed and isinstance(given, str):
        what = "a signature or registry can only be checked for a pushed image, and this one is on this machine"
        raise UsageError(what, where=f"IMAGE {one_line(given)}", todo="push it, and give HOST/NAME@sha256:...")


def _try_sample(
    model: "StampedModel", image: str, machine: str, found: "tuple[Finding, ...]", policy: "Policy", progress: Progress
) -> "tuple[Finding, ...]":
    """Run the golden sample in the image, named by digest, and add what it found; if it agrees, the image was tried.

    An image that fails for another reason does not run.
    """
    from envbuild.serve.model import UNTRIED

    others = policy.judged([it for it in found if it.rule != UNTRIED], datetime.now(UTC).date())
    if any(map(policy.fails, others)):
        return found
    if model.manifest is None:
        todo = "leave it out, or stamp the model by from-manifest --stamp again"
        raise UsageError("the model's stamp has no manifest, which has the golden sample", where="--golden", todo=todo)
    ran = tuple(run_golden(model.manifest, model.uri, [image], machine, progress))
    tried = all(it.agrees for it in ran)
    return (*(it for it in found if not (tried and it.rule == UNTRIED)), *ran)


def _findings(
    model: "StampedModel", given: "Reference | str", machine: str, progress: Progress
) -> "tuple[str, tuple[Finding, ...]]":
    """Compare the model with the image; return the image's name by digest, as a tag may move meanwhile."""
    from envbuild.diff.images import open_image
    from envbuild.files import cache_folder
    from envbuild.oci.reference import split_digest
    from envbuild.serve.deploy import deploy_findings, digest_of

    name = given if isinstance(given, str) else f"docker://{given}"
    with open_image(name, machine=machine, cache=cache_folder(), report=progress) as image:
        found = tuple(deploy_findings(model, given, image, progress))
        if isinstance(given, str):
            return f"{split_digest(given)[0]}@{image.digest}", found
        return str(given.at(digest_of(image))), found
