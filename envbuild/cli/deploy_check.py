"""`envbuild deploy-check`: whether an image may serve a model, in one line of a deployment's pipeline."""

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild.cli.command import how_option
from envbuild.cli.console import Progress, check_stdout, one_line
from envbuild.cli.options import AsJson, MinimumRecord, Platform, Signed
from envbuild.cli.order import check_not_empty
from envbuild.cli.references import machine_of
from envbuild.cli.targets import kind_of, marks_of, proof_of, required_keys, signature_findings
from envbuild.errors import UsageError, VerifyError

if TYPE_CHECKING:
    from envbuild.oci.reference import Reference
    from envbuild.stamp.history import Proof
    from envbuild.verify.findings import Finding
    from envbuild.verify.policy import Policy
    from envbuild.verify.reports import Verdict


def run(
    model: Annotated[
        str, typer.Argument(help="The stamped model: gs://, a file or folder.", metavar="MODEL", show_default=False)
    ],
    image: Annotated[
        str,
        typer.Argument(help="The image to deploy: NAME:TAG or NAME@DIGEST.", metavar="IMAGE", show_default=False),
    ],
    *,
    policy: Annotated[
        Path | None, how_option("--policy", help="Severities and accepted findings, as for verify.", metavar="FILE")
    ] = None,
    signed: Signed = None,
    minimum_record: MinimumRecord = None,
    platform: Platform = None,
    as_json: AsJson = False,
) -> None:
    """Check that an image may serve a model.

    Prints its reference by digest, and nothing else, if it may. It has to be an image that the model is stamped
    with, or one that has all of the training image's environment; and the model's files have to be those that were
    stamped. No container engine is needed. Findings go to stderr. Exit code 16 where a finding fails the policy: by
    default, where any is an error. With --signed the key has to have signed the stamp and the image, and the stamp
    has to name the image.
    """
    check_stdout()
    given, machine, judge = _reference(model, image), machine_of(platform), _policy(policy)
    keys = required_keys(signed, judge.keys)
    proof = proof_of(keys, minimum_record)
    with Progress() as progress:
        try:
            reference, found = _findings(kind_of(model)[1], given, machine, proof, progress)
        except VerifyError as error:
            if as_json:
                _print_json(_verdict(model, given, (), judge, error.what), None)
            raise
        signatures = signature_findings({str(reference): reference}, keys, progress)
        found = (*found, *signatures, *judge.registry_findings(reference))
    verdict = _verdict(model, given, found, judge)
    if as_json:
        _print_json(verdict, reference)
    else:
        from envbuild.verify.reports import lines

        for line in lines(verdict.findings):
            typer.echo(one_line(line), err=True)
    if verdict.wrong:
        count, wrong = len(verdict.findings), len(verdict.wrong)
        what = f"this image must not be deployed: {wrong} of {count} findings {'differs' if wrong == 1 else 'differ'}"
        todo = "do what the findings say, or deploy an image that the model is stamped with"
        raise VerifyError(what, where=one_line(f"{model} {image}"), todo=todo)
    if not as_json:
        typer.echo(str(reference))


def _reference(model: str, image: str) -> "Reference":
    from envbuild.oci.reference import Reference, refuse_login

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
    refuse_login(image, "IMAGE")
    if marks_of(Path(image)) or os.path.isfile(image):  # noqa: PTH113 - raises nothing
        what = "this image is on this machine, and only one in a registry can be deployed"
        todo = "push it, and give HOST/NAME:TAG or HOST/NAME@sha256:...; `envbuild verify` compares it here"
        raise UsageError(what, where=f"IMAGE {one_line(image)}", todo=todo)
    try:
        return Reference.parse(image.removeprefix("image:").removeprefix("docker://"))
    except ValueError as error:
        todo = "give an image of a registry: HOST/NAME:TAG or HOST/NAME@sha256:..."
        what = f"this image cannot be deployed: {error}"
        raise UsageError(what, where=f"IMAGE {one_line(image)}", todo=todo) from error


def _policy(path: Path | None) -> "Policy":
    from envbuild.serve.deploy import RULES
    from envbuild.verify.policy import Policy, read_policy
    from envbuild.verify.rules.catalogue import TITLES

    return read_policy(path, [*TITLES, *RULES]) if path else Policy()


def _findings(
    model: str, given: "Reference", machine: str, proof: "Proof | None", progress: Progress
) -> "tuple[Reference, tuple[Finding, ...]]":
    """Return the image by the digest that was checked, as a tag may move meanwhile, and what was found."""
    from envbuild.registry.pull import pull
    from envbuild.serve.deploy import deploy_findings, digest_of
    from envbuild.verify.sources.model import read_model

    progress.step(f"reading model {one_line(model)}")
    stamped = read_model(model, proof)
    progress.step(f"reading image {given}")
    image = pull(given, machine=machine)
    reference = given.at(digest_of(image))
    return reference, tuple(deploy_findings(stamped, given, image, progress.progress))


def _verdict(
    model: str, given: "Reference", found: "Sequence[Finding]", judge: "Policy", failed: str = ""
) -> "Verdict":
    from envbuild.verify.reports import Verdict

    findings = judge.judged(found, datetime.now(UTC).date())
    return Verdict(targets=(model, str(given)), findings=findings, policy=judge, failed=failed)


def _print_json(verdict: "Verdict", reference: "Reference | None") -> None:
    from envbuild.verify.reports import sound

    deploy = None if verdict.wrong or reference is None else str(reference)
    typer.echo(json.dumps(sound({"image": deploy, **verdict.to_dict()}), indent=2))
