"""`envbuild deploy-check`: whether an image may serve a model, in one line of a deployment's pipeline."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild.cli.arguments import parse_platform
from envbuild.cli.command import HOW, grouped, option
from envbuild.cli.console import Progress, one_line
from envbuild.cli.options import AsJson, MinimumRecord, Platform, Signed, check_not_empty, read_reference
from envbuild.cli.targets import kind_of, marks_of, proof_of, required_keys, signature_findings
from envbuild.errors import UsageError, VerifyError, counted

if TYPE_CHECKING:
    from envbuild.oci.reference import Reference
    from envbuild.verify.findings import Finding


@grouped()
def run(
    model: Annotated[
        str, typer.Argument(help="The stamped model: gs://, a file or folder.", metavar="MODEL", show_default=False)
    ],
    image: Annotated[
        str,
        typer.Argument(help="The image to deploy: NAME:TAG or NAME@DIGEST.", metavar="IMAGE", show_default=False),
    ],
    *,
    policy: Path | None = option(HOW, "Severities and accepted findings, as for verify.", "FILE"),
    signed: Signed = None,
    minimum_record: MinimumRecord = None,
    platform: Platform = None,
    as_json: AsJson = False,
) -> None:
    """Check that an image may serve a model.

    Prints its reference by digest, and nothing else, if it may. The model has to be stamped with the image, or the
    image has to have all of the training image's environment; and the model's files have to be the stamped ones. No
    container engine is needed. Findings go to stderr. Exit code 16 if a finding fails the policy (by default: any
    error). With --signed the key has to have signed the stamp and the image, and the stamp has to name the image.
    """
    from envbuild.registry.pull import pull
    from envbuild.serve.deploy import RULES, deploy_findings, digest_of
    from envbuild.verify.reports import Policy, Verdict, lines, read_policy, sound
    from envbuild.verify.rules.catalogue import TITLES
    from envbuild.verify.sources.model import read_model

    given, machine = _reference(model, image), parse_platform(platform)
    judge = read_policy(policy, [*TITLES, *RULES]) if policy else Policy()
    keys = required_keys(signed, judge.keys)
    reference, failure = None, None
    found: tuple[Finding, ...] = ()
    with Progress() as progress:
        try:
            progress.step(f"reading model {one_line(model)}")
            stamped = read_model(kind_of(model)[1], proof_of(keys, minimum_record))
            progress.step(f"reading image {given}")
            pulled = pull(given, machine=machine)
            reference = given.at(digest_of(pulled))  # as a tag may move meanwhile
            findings_of_image = deploy_findings(stamped, given, pulled, progress.progress)
            signatures = signature_findings({str(reference): reference}, keys, progress)
            found = (*findings_of_image, *signatures, *judge.registry_findings(reference))
        except VerifyError as error:
            failure = error
    findings, failed = judge.judged(found, datetime.now(UTC).date()), failure.what if failure else ""
    verdict = Verdict(targets=(model, str(given)), findings=findings, policy=judge, failed=failed)
    if as_json:
        deploy = None if verdict.wrong or failure else str(reference)
        typer.echo(json.dumps(sound({"image": deploy, **verdict.to_dict()}), indent=2))
    if failure:
        raise failure
    for line in () if as_json else lines(findings):
        typer.echo(one_line(line), err=True)
    if wrong := len(verdict.wrong):
        what = f"this image must not be deployed: {wrong} of {counted(len(findings), 'finding')} failed"
        todo = "do what the findings say, or deploy an image that the model is stamped with"
        raise VerifyError(what, where=one_line(f"{model} {image}"), todo=todo)
    if not as_json:
        typer.echo(str(reference))


def _reference(model: str, image: str) -> "Reference":
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
    if marks_of(Path(image)) or os.path.isfile(image):  # noqa: PTH113 - raises nothing
        what = "this image is on this machine, and only one in a registry can be deployed"
        todo = "push it, and give HOST/NAME:TAG or HOST/NAME@sha256:...; `envbuild verify` compares it here"
        raise UsageError(what, where=f"IMAGE {one_line(image)}", todo=todo)
    todo = "give an image of a registry: HOST/NAME:TAG or HOST/NAME@sha256:..."
    return read_reference(image.removeprefix("image:").removeprefix("docker://"), "IMAGE", todo)
