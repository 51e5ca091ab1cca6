"""What both ways of `envbuild local` share: reading the target, and telling what was decided and found."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from envbuild.cli import locking
from envbuild.cli.console import Progress, printable
from envbuild.cli.local_options import Asked, CheckName
from envbuild.cli.targets import in_one_line, kind_of
from envbuild.cli.vouching import proof_of
from envbuild.errors import UsageError, VerifyError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import docker

    from envbuild.build import Reporter
    from envbuild.local.acquire import Building
    from envbuild.local.model import Choice, Machine, Settled, Subject
    from envbuild.lock import Options
    from envbuild.stamp import Proof
    from envbuild.verify.findings import Finding

_REMEDY = "do what the lines above say, or go on all the same with --check warn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """All that is known before anything is downloaded."""

    subject: "Subject"
    machine: "Machine"
    choice: "Choice"
    settled: "Settled"


def subject_of(
    target: str, machine: str, client: "docker.DockerClient | None", proof: "Proof | None", progress: Progress
) -> "Subject":
    """Read the target; UsageError for what has no environment, VerifyError for a model whose stamp is not proven."""
    from envbuild.local.subject import subject_of_image, subject_of_manifest, subject_of_model

    kind, name = kind_of(target)
    if proof and kind != "model":
        todo = "give the stamped model; envbuild verify IMAGE --signed KEY checks an image"
        raise UsageError("--signed is about the stamp of a model", where=f"TARGET {in_one_line(target)}", todo=todo)
    progress.step(f"reading {kind} {in_one_line(name)}")
    match kind:
        case "model":
            from envbuild.verify.sides.model import read_model

            return subject_of_model(read_model(name, proof), name)
        case "manifest":
            from envbuild.cli.records import read_run
            from envbuild.manifest.importers.environment import RecordOptions

            called, data, manifest = read_run(name, None, RecordOptions(), progress)
            return subject_of_manifest(called, data, manifest)
        case "image":
            from envbuild.local.named import side_of_named

            return subject_of_image(name, side_of_named(name, client, machine, progress))
        case _:
            todo = "give a stamped model, the manifest of its run, or an image"
            raise UsageError(f"a {kind} is no environment that could be started", where=in_one_line(target), todo=todo)


def prepared(asked: Asked, machine: "Machine", client: "docker.DockerClient | None", progress: Progress) -> Prepared:
    """Read the target, choose for this machine, and settle the contract; say what was decided."""
    import os

    from envbuild.local.choose import choose
    from envbuild.local.contract import settle
    from envbuild.local.data import resolve_here
    from envbuild.local.pins import known_changes

    wanted = asked.wanted
    proof = proof_of((wanted.signed,) if wanted.signed is not None else (), wanted.minimum_record)
    subject = subject_of(asked.target, machine.machine, client, proof, progress)
    choice = choose(subject, machine, wanted.variant.value)
    for line in (*choice.reasons, *known_changes(subject, choice)):
        progress.note(line)
    needs = asked.needs
    if needs.env_file is None and (found := resolve_here(".env")) and found.is_file():
        progress.note("there is a .env, which is not read; give --env-file .env to pass its variables on")
    settled = settle(
        subject,
        options=needs.env or (),
        env_files=needs.env_file or (),
        maps=needs.data or (),
        with_adc=needs.with_adc,
        environment=os.environ,
        yes_data=needs.yes_data,
    )
    return Prepared(subject=subject, machine=machine, choice=choice, settled=settled)


def building_of(asked: Asked) -> "Building":
    """How what has to be built is built."""
    from envbuild.files import cache_folder
    from envbuild.local.acquire import Building

    wanted = asked.wanted
    links = tuple(wanted.find_links or ())
    return Building(cache=cache_folder(), base=wanted.base, find_links=links, offline=wanted.offline)


def reporter_of(progress: Progress) -> "Reporter":
    """Where the stages of a build tell what they do."""
    from envbuild.build import Reporter

    return Reporter(
        step=progress.step,
        note=progress.note,
        warn=progress.warn,
        progress=progress.progress,
        compared=locking.counter(progress),
    )


def options_of(asked: Asked, progress: Progress) -> "Options":
    """How what is put on top of an environment is locked."""
    from envbuild.files import cache_folder
    from envbuild.lock import Options, read_settings

    settings = read_settings(asked.wanted.find_links or (), offline=asked.wanted.offline)
    return Options(cache=cache_folder(), settings=settings, say=progress.note, counted=locking.counter(progress))


def heard(found: "Iterable[Finding]", progress: Progress) -> "tuple[Finding, ...]":
    """Say each finding on stderr."""
    findings = tuple(found)
    for it in findings:
        tell = progress.note if it.agrees or it.severity == "note" else progress.warn
        tell(in_one_line(printable(f"{it.about}: {it.says}")))
        if not it.agrees and it.todo:
            progress.note(in_one_line(printable(f"  do: {it.todo}")))
    return findings


def stop(findings: "Sequence[Finding]", check: CheckName) -> None:
    """VerifyError where a finding is an error, unless errors are only to be told."""
    wrong = [it for it in findings if not it.agrees and it.severity == "error"]
    if wrong and check is CheckName.STRICT:
        names = ", ".join(dict.fromkeys(it.about for it in wrong))
        raise VerifyError("what the run had is missing or different here", where=names, todo=_REMEDY)


def print_plan(ready: Prepared, findings: "Sequence[Finding]", *, as_json: bool) -> None:
    """Print the decision for --dry-run."""
    choice = ready.choice
    image = ready.subject.image or (choice.pull.image if choice.pull else None)
    if not as_json:
        typer.echo(f"{choice.variant} {choice.platform} {image or 'to be built'}")
        return
    value = {
        "variant": choice.variant,
        "platform": choice.platform,
        "gpus": choice.gpus,
        "image": image,
        "build": image is None,
        "reasons": list(choice.reasons),
        "variables": sorted(ready.settled.variables),
        "missing": list(ready.settled.missing),
        "mounts": [{"source": str(it.source), "target": it.target} for it in ready.settled.mounts],
        "findings": [it.to_dict() for it in findings],
    }
    typer.echo(json.dumps(value, indent=2))


def print_parity(found: "Iterable[Finding]", *, as_json: bool) -> int:
    """Print what came of the golden sample; 16 where predictions differ."""
    findings = tuple(found)
    if as_json:
        typer.echo(json.dumps({"findings": [it.to_dict() for it in findings]}, indent=2))
    else:
        for it in findings:
            typer.echo(in_one_line(printable(str(it))))
    wrong = [it for it in findings if not it.agrees and it.severity == "error"]
    return VerifyError.exit_code if wrong else 0
