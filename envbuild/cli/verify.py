"""`envbuild verify`: whether what trains, what serves and what is stamped agree."""

import json
from contextlib import ExitStack
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envbuild.cli import locking
from envbuild.cli.by_lock import ByLock
from envbuild.cli.console import Progress
from envbuild.cli.golden import Asked, golden_findings
from envbuild.cli.printed import check_stdout
from envbuild.cli.references import AsJson, Platform, machine_of
from envbuild.cli.targets import FORMS, in_one_line, kind_of
from envbuild.cli.vouching import MinimumRecord, Signed, Vouching, proof_of, references_of
from envbuild.errors import EnvbuildError, UsageError, VerifyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuild.stamp.signature import Proof
    from envbuild.verify.findings import Finding
    from envbuild.verify.policy import Policy
    from envbuild.verify.reports import Verdict


class FormName(StrEnum):
    """What --format takes."""

    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"
    JUNIT = "junit"


Targets = Annotated[
    list[str], typer.Argument(help=f"{FORMS}. Each is held against the first.", metavar="TARGET...", show_default=False)
]
LockFile = Annotated[
    Path | None,
    typer.Option("--lock", help="Hold one image against the pylock.toml that it was built from.", metavar="FILE"),
]
Manifest = Annotated[
    str | None,
    typer.Option(
        help="With --lock, the run's manifest: its stack and its CUDA libraries are looked at too.", metavar="FILE"
    ),
]
Base = Annotated[
    str | None,
    typer.Option(
        help="With --lock, the base that the image stands on, where it does not say; as in from-manifest.",
        metavar="REF",
    ),
]
Deep = Annotated[
    bool,
    typer.Option(
        "--deep", help="With --lock, trust nothing: fetch every wheel, and make every layer and the manifest anew."
    ),
]
Golden = Annotated[
    bool, typer.Option("--golden", help="See whether the run recorded a sample of predictions that could be repeated.")
]
RunIt = Annotated[
    bool,
    typer.Option(
        "--run",
        help="With --golden, run the model on it: in the images that are given and, where host and --python are, by "
        "that interpreter; else in the stamped images.",
    ),
]
Python = Annotated[
    str | None,
    typer.Option(help="What host means besides this machine: the environment of this interpreter.", metavar="PATH"),
]
PolicyFile = Annotated[
    Path | None, typer.Option("--policy", help="What fails: severities by rule, and what is accepted.", metavar="FILE")
]
Format = Annotated[
    FormName | None,
    typer.Option("--format", help="What is printed, by default text; sarif and junit are for CI.", show_default=False),
]

_SAYING_ONE_THING = ("image", "lock", "host")
_A = {"model": "a model", "manifest": "a manifest", "lock": "a lock", "context": "a build context", "host": "a machine"}


def run(
    targets: Targets,
    *,
    lock: LockFile = None,
    manifest: Manifest = None,
    base: Base = None,
    cuda_source: locking.CudaSource = locking.CudaSourceName.AUTO,
    set_: locking.Set = None,
    deep: Deep = False,
    golden: Golden = False,
    run_: RunIt = False,
    python: Python = None,
    platform: Platform = None,
    signed: Signed = None,
    minimum_record: MinimumRecord = None,
    policy: PolicyFile = None,
    form: Format = None,
    as_json: AsJson = False,
) -> None:
    """Hold environments against each other: what trained, what is stamped, what will serve, what this machine has.

    The first target is what has to be met. One model alone is held against its own stamp, images and files. Exit code
    16 where a finding fails the policy: by default, where any is an error. --set and --cuda-source are what
    from-manifest was given; they go with --lock and --manifest.
    """
    check_stdout()
    by_lock = ByLock(
        lock=lock or Path(),
        manifest=manifest,
        base=base,
        cuda_source=cuda_source,
        overrides=tuple(set_ or ()),
        deep=deep,
    )
    judge = _policy(policy)
    vouching = Vouching(signed=signed, required=judge.keys)
    _check(targets, by_lock, lock is not None, golden=golden, run_=run_, vouched=bool(vouching.keys))
    vouching.check(targets)
    proof = proof_of(vouching.keys, minimum_record)
    _check_python(targets, python)
    form = _form(form, as_json=as_json)
    more: dict[str, Any] = {}
    failed: EnvbuildError | None = None
    found: tuple[Finding, ...] = ()
    with Progress() as progress:
        if lock is not None:
            image, found = by_lock.findings(targets[0], progress)
            more = {"image": targets[0], "digest": str(image.found_as or image.digest)}
        elif golden or not vouching.alone(targets):
            asked = Asked(golden=golden, run=run_, python=python)
            found, failed = _held(targets, machine_of(platform), asked, proof, progress)
        placed = (one for it in references_of(targets).values() for one in judge.registry_findings(it))
        found = (*found, *vouching.signatures(targets, progress), *placed)
    verdict = _verdict(targets, found, judge, failed.what if failed else "")
    _print(verdict, form, more)
    if failed:
        raise failed
    _judge(verdict)


def _check(targets: list[str], by_lock: ByLock, locked: bool, *, golden: bool, run_: bool, vouched: bool) -> None:
    """Refuse what does not go together, before anything is read."""
    kinds = [kind_of(it)[0] for it in targets]
    if locked and len(targets) == 1 and kinds[0] != "image":
        todo = "give the image that was built from it; or give the lock as a target of its own, without --lock"
        where = f"TARGET {in_one_line(targets[0])}"
        raise UsageError(f"--lock is for an image, and this is {_A[kinds[0]]}", where=where, todo=todo)
    if locked and (len(targets) > 1 or golden):
        todo = "give one image with --lock; or give the lock as a target of its own"
        raise UsageError("--lock is for one image", where=f"--lock {by_lock.lock}", todo=todo)
    given = {
        "--manifest": by_lock.manifest,
        "--base": by_lock.base,
        "--set": by_lock.overrides,
        "--deep": by_lock.deep,
        "--cuda-source": by_lock.cuda_source is not locking.CudaSourceName.AUTO,
    }
    useless = [name for name, value in given.items() if value and not locked]
    if useless:
        todo = "give --lock too, or leave them out; a manifest can be a target of its own"
        raise UsageError("these go with --lock", where=", ".join(useless), todo=todo)
    if not (locked or vouched) and len(targets) == 1 and kinds[0] in _SAYING_ONE_THING:
        todo = "give what it has to agree with before it: a model, a manifest, a lock or an image; or --lock"
        raise UsageError("there is nothing to hold this against", where=f"TARGET {targets[0]}", todo=todo)
    if run_ and not golden:
        raise UsageError("--run says how far --golden goes", where="--run", todo="give --golden too")


def _check_python(targets: list[str], python: str | None) -> None:
    if python is None:
        return
    if not python.strip():
        todo = "give the path of an interpreter, such as ./venv/bin/python"
        raise UsageError("this names no interpreter", where=f"--python {python!r}", todo=todo)
    if not any(kind_of(it)[0] == "host" for it in targets):
        todo = "give host as a target too, or leave --python out"
        raise UsageError("--python says what host is, and no target is host", where=f"--python {python}", todo=todo)


def _form(form: FormName | None, *, as_json: bool) -> FormName:
    if as_json and form not in (None, FormName.JSON):
        raise UsageError("--json is another format", where=f"--format {form}, --json", todo="leave one of them out")
    return FormName.JSON if as_json else form or FormName.TEXT


def _policy(path: Path | None) -> "Policy":
    from envbuild.verify.policy import Policy, read_policy
    from envbuild.verify.rules.catalogue import TITLES

    return read_policy(path, TITLES) if path else Policy()


def _held(
    targets: list[str], machine: str, asked: "Asked", proof: "Proof | None", progress: Progress
) -> "tuple[tuple[Finding, ...], EnvbuildError | None]":
    """What was found, and what ended the golden part, if anything did: the rest is known by then."""
    from envbuild.cli.opening import Opening
    from envbuild.manifest.model import Contract
    from envbuild.verify.targets import verify_targets

    with ExitStack() as stack:
        opening = Opening(machine=machine, python=asked.python, stack=stack, progress=progress, proof=proof)
        first = opening.target(targets[0], Contract())
        opened = [first, *(opening.target(text, first.side.contract) for text in targets[1:])]
        more = golden_findings(opened, machine, asked, progress) if asked.golden else iter(())
        progress.step("holding them against each other")
        findings = list(verify_targets(opened, progress.progress))
        try:
            findings.extend(more)
        except EnvbuildError as error:
            return tuple(findings), error
    return tuple(findings), None


def _verdict(targets: list[str], found: "Sequence[Finding]", judge: "Policy", failed: str) -> "Verdict":
    from envbuild.verify.reports import Verdict

    findings = judge.judged(found, datetime.now(UTC).date())
    return Verdict(targets=tuple(targets), findings=findings, policy=judge, failed=failed)


def _print(verdict: "Verdict", form: FormName, more: dict[str, Any]) -> None:
    from envbuild.verify.reports import junit, lines, sarif, sound
    from envbuild.verify.rules.catalogue import TITLES

    match form:
        case FormName.JSON:
            typer.echo(json.dumps(sound({**more, **verdict.to_dict()}), indent=2))
        case FormName.SARIF:
            typer.echo(json.dumps(sound(sarif(verdict, TITLES)), indent=2))
        case FormName.JUNIT:
            typer.echo(junit(verdict))
        case FormName.TEXT:
            for line in lines(verdict.findings):
                typer.echo(in_one_line(line))


def _judge(verdict: "Verdict") -> None:
    """VerifyError where a finding fails the policy."""
    if verdict.wrong:
        count, wrong = len(verdict.findings), len(verdict.wrong)
        what = f"{wrong} of {count} {'finding' if count == 1 else 'findings'} {'differs' if wrong == 1 else 'differ'}"
        todo = "do not serve with this before it is known why"
        raise VerifyError(what, where=in_one_line(" ".join(verdict.targets)), todo=todo)
