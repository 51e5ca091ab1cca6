"""`envbuild deploy-check`: whether an image may serve a model, in one line of a deployment's pipeline."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild.cli.console import Progress
from envbuild.cli.ordering import check_given
from envbuild.cli.printed import check_stdout
from envbuild.cli.references import AsJson, Platform, machine_of
from envbuild.cli.targets import in_one_line, kind_of, marks_of
from envbuild.cli.vouching import MinimumRecord, Signed, proof_of, required_keys
from envbuild.errors import UsageError, VerifyError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from envbuild.oci.reference import Reference
    from envbuild.stamp import Proof
    from envbuild.verify.findings import Finding
    from envbuild.verify.policy import Policy
    from envbuild.verify.reports import Verdict

Model = Annotated[
    str, typer.Argument(help="The stamped model: gs://, a file or folder.", metavar="MODEL", show_default=False)
]
Image = Annotated[
    str,
    typer.Argument(help="What is to be deployed: NAME:TAG or NAME@DIGEST.", metavar="IMAGE", show_default=False),
]
PolicyFile = Annotated[
    Path | None, typer.Option("--policy", help="What fails, as for envbuild verify.", metavar="FILE")
]


def run(
    model: Model,
    image: Image,
    *,
    policy: PolicyFile = None,
    signed: Signed = None,
    minimum_record: MinimumRecord = None,
    platform: Platform = None,
    as_json: AsJson = False,
) -> None:
    """See whether an image may serve a model; print its reference by digest, and nothing else, if it may.

    It has to be an image that the model is stamped with, or one that has all of the training image's environment; and
    the model's files have to be those that were stamped. No container engine is needed. What was found goes to stderr.
    Exit code 16 where a finding fails the policy: by default, where any is an error. With --signed the key has to have
    signed the stamp and the image, and the stamp has to name the image.
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
        found = (*found, *_signatures(reference, keys, progress), *judge.registry_findings(reference))
    verdict = _verdict(model, given, found, judge)
    if as_json:
        _print_json(verdict, reference)
    else:
        _print(verdict)
    if verdict.wrong:
        count, wrong = len(verdict.findings), len(verdict.wrong)
        what = f"this image is not to be deployed: {wrong} of {count} findings {'differs' if wrong == 1 else 'differ'}"
        todo = "see what the findings say, and deploy an image that the model is stamped with"
        raise VerifyError(what, where=in_one_line(f"{model} {image}"), todo=todo)
    if not as_json:
        typer.echo(str(reference))


def _reference(model: str, image: str) -> "Reference":
    from envbuild.oci.login import refuse_login
    from envbuild.oci.reference import Reference

    check_given({"MODEL": model, "IMAGE": image})
    kind, name = kind_of(model)
    if kind != "model" and (marks := marks_of(Path(name))):
        what = f"a model is checked, and this is of the kind {kind}, as {' and '.join(marks)} in it says"
        todo = f"remove what is no part of the model, or give it as model:{in_one_line(name)}"
        raise UsageError(what, where=f"MODEL {in_one_line(model)}", todo=todo)
    if kind == "image":
        todo = "give the stamped model first: its folder, one of its files, or gs://BUCKET/FOLDER"
        what = "no file or folder of this name lies here, and an image is no model"
        raise UsageError(what, where=f"MODEL {in_one_line(model)}", todo=todo)
    if kind != "model":
        todo = "give the stamped model first, and then the image"
        raise UsageError(
            f"a model is checked, and this is of the kind {kind}", where=f"MODEL {in_one_line(model)}", todo=todo
        )
    refuse_login(image, "IMAGE")
    if marks_of(Path(image)) or os.path.isfile(image):  # noqa: PTH113 - raises nothing
        what = "this lies on this machine, and only an image in a registry can be deployed"
        todo = "push it, and give HOST/NAME:TAG or HOST/NAME@sha256:...; `envbuild verify` compares it here"
        raise UsageError(what, where=f"IMAGE {in_one_line(image)}", todo=todo)
    try:
        return Reference.parse(image.removeprefix("image:").removeprefix("docker://"))
    except ValueError as error:
        todo = "give an image of a registry: HOST/NAME:TAG or HOST/NAME@sha256:..."
        raise UsageError(
            f"this is no image that can be deployed: {error}", where=f"IMAGE {in_one_line(image)}", todo=todo
        ) from error


def _policy(path: Path | None) -> "Policy":
    from envbuild.serve.deploy import RULES
    from envbuild.verify.policy import Policy, read_policy
    from envbuild.verify.titles import TITLES

    return read_policy(path, [*TITLES, *RULES]) if path else Policy()


def _findings(
    model: str, given: "Reference", machine: str, proof: "Proof | None", progress: Progress
) -> "tuple[Reference, tuple[Finding, ...]]":
    """The image by the digest that was looked at, and what was found: a tag may name another one meanwhile."""
    from envbuild.registry import pull
    from envbuild.serve.deploy import deploy_findings, digest_of
    from envbuild.verify.sides.model import read_model

    progress.step(f"reading model {in_one_line(model)}")
    stamped = read_model(model, proof)
    progress.step(f"reading image {given}")
    image = pull(given, machine=machine)
    reference = given.at(digest_of(image))
    return reference, tuple(deploy_findings(stamped, given, image, progress.progress))


def _signatures(reference: "Reference", keys: "Sequence[str]", progress: Progress) -> "Iterator[Finding]":
    if not keys:
        return
    from envbuild.verify.signed import check_signed_by_any

    progress.step(f"looking for signatures of {reference}")
    yield from (it.held(str(reference), str(reference)) for it in check_signed_by_any(reference, keys))


def _verdict(
    model: str, given: "Reference", found: "Sequence[Finding]", judge: "Policy", failed: str = ""
) -> "Verdict":
    from envbuild.verify.reports import Verdict

    findings = judge.judged(found, datetime.now(UTC).date())
    return Verdict(targets=(model, str(given)), findings=findings, policy=judge, failed=failed)


def _print(verdict: "Verdict") -> None:
    from envbuild.verify.reports import lines

    for line in lines(verdict.findings):
        typer.echo(in_one_line(line), err=True)


def _print_json(verdict: "Verdict", reference: "Reference | None") -> None:
    from envbuild.verify.reports import sound

    deploy = None if verdict.wrong or reference is None else str(reference)
    typer.echo(json.dumps(sound({"image": deploy, **verdict.to_dict()}), indent=2))
