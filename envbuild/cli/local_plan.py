"""The options of `envbuild local`, and the plan that they make for this machine."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from envbuild.cli.arguments import import_record
from envbuild.cli.command import ADVANCED, HOW, WHAT, WHERE, flag, option
from envbuild.cli.console import Progress, one_line
from envbuild.cli.options import FindLinks, MinimumRecord, Offline, Signed, VariantName
from envbuild.cli.targets import kind_of, proof_of
from envbuild.errors import UsageError, VerifyError

if TYPE_CHECKING:
    import docker

    from envbuild.local.model import Choice, Machine, Settled, Subject
    from envbuild.local.subject import Building
    from envbuild.lock.run import Options
    from envbuild.stamp.history import Proof
    from envbuild.verify.findings import Finding

CheckName = Literal["strict", "warn", "off"]


@dataclass(kw_only=True, repr=False, eq=False)
class LocalOptions:
    """The options of `envbuild local`."""

    variant: VariantName = option(WHAT, "auto: what this machine can run, the stamped one if it can.", default="auto")
    base: str | None = option(
        ADVANCED, "The base of an image that has to be built; by default the recorded one.", "REF"
    )
    find_links: FindLinks = None
    offline: Offline = False
    signed: Signed = None
    minimum_record: MinimumRecord = None
    venv: Path | None = option(WHERE, "Make a virtual environment there instead; needs no engine.", "DIR")
    jupyter: bool = flag(WHAT, "Start a notebook server, apart from the environment.")
    golden: bool = flag(WHAT, "Run the golden sample, and print the largest difference of predictions.")
    devcontainer: bool = flag(WHERE, "Write .devcontainer/devcontainer.json, and start nothing.")
    compose: bool = flag(WHERE, "Write compose.yaml, and start nothing.")
    dry_run: bool = flag(HOW, "Print the plan, and stop before any download.")
    as_json: bool = flag(WHERE, "With --dry-run or --golden, print one JSON object.", "--json")
    env: list[str] | None = option(
        HOW, "A variable; without =VALUE, this shell's; repeatable.", "NAME[=VALUE]", "--env", "-e"
    )
    env_file: list[Path] | None = option(
        HOW, "Variables from this file, such as .env; none is read by default. Repeatable.", "FILE"
    )
    data: list[str] | None = option(
        HOW,
        "Where data is here: gs://bucket/path=./folder is seen at /gcs/bucket/path; :rw after the path lets "
        "it be written, ,unsafe allows home and system folders. Repeatable.",
        "URI=PATH",
    )
    yes_data: bool = flag(HOW, "Mount the run's data below this folder, at the same path.")
    with_adc: bool = flag(HOW, "Let the container read your Application Default Credentials.")
    check: CheckName = option(HOW, "What a broken contract does, before the start and inside.", default="strict")
    port: list[str] | None = option(
        HOW, "A port: HOST:CONTAINER, or one number for both; repeatable.", "PORT", "--port", "-p"
    )
    shm_size: str | None = option(ADVANCED, "Size of /dev/shm, such as 2GB.", "SIZE")
    gpus: str | None = option(HOW, "all, none, or the GPUs by index or UUID with commas.", "GPUS")

    def building(self) -> "Building":
        """Return how an image that is missing is built."""
        from envbuild.files import cache_folder
        from envbuild.local.subject import Building

        links = tuple(self.find_links or ())
        return Building(cache=cache_folder(), base=self.base, find_links=links, offline=self.offline)

    def lock_options(self, progress: Progress) -> "Options":
        """Return how additions to an environment are locked."""
        from envbuild.files import cache_folder
        from envbuild.lock.run import Options
        from envbuild.lock.settings import read_settings

        settings = read_settings(self.find_links or (), offline=self.offline)
        return Options(cache=cache_folder(), settings=settings, reporter=progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is known before anything is downloaded."""

    subject: "Subject"
    machine: "Machine"
    choice: "Choice"
    settled: "Settled"


def make_plan(
    target: str, options: LocalOptions, machine: "Machine", client: "docker.DockerClient | None", progress: Progress
) -> Plan:
    """Read the target, choose for this machine, and settle the contract; report the decisions."""
    import os

    from envbuild.local.contract import settle
    from envbuild.local.data import resolve_here
    from envbuild.local.machine import choose
    from envbuild.local.subject import known_changes

    proof = proof_of((options.signed,) if options.signed is not None else (), options.minimum_record)
    subject = _subject(target, machine.machine, client, proof, progress)
    choice = choose(subject, machine, options.variant)
    for line in (*choice.reasons, *known_changes(subject, choice)):
        progress.note(line)
    if options.env_file is None and (path := resolve_here(".env")) and path.is_file():
        progress.note("there is a .env, which is not read; give --env-file .env to pass its variables on")
    settled = settle(
        subject,
        options=options.env or (),
        env_files=options.env_file or (),
        maps=options.data or (),
        with_adc=options.with_adc,
        environment=os.environ,
        yes_data=options.yes_data,
    )
    return Plan(subject=subject, machine=machine, choice=choice, settled=settled)


def _subject(
    target: str, machine: str, client: "docker.DockerClient | None", proof: "Proof | None", progress: Progress
) -> "Subject":
    """Read the target; UsageError for what has no environment, VerifyError for a model whose stamp is not proven."""
    from envbuild.local.subject import subject_of_image, subject_of_manifest, subject_of_model

    kind, name = kind_of(target)
    if proof and kind != "model":
        todo = "give the stamped model; envbuild verify IMAGE --signed KEY checks an image"
        raise UsageError("--signed checks the stamp of a model", where=f"TARGET {one_line(target)}", todo=todo)
    progress.step(f"reading {kind} {one_line(name)}")
    match kind:
        case "model":
            from envbuild.verify.sources.model import read_model

            return subject_of_model(read_model(name, proof), name)
        case "manifest":
            return subject_of_manifest(*import_record(name, progress))
        case "image":
            from envbuild.local.subject import side_of_named

            return subject_of_image(name, side_of_named(name, client, machine, progress))
        case _:
            todo = "give a stamped model, the manifest of its run, or an image"
            raise UsageError(f"a {kind} cannot be started", where=one_line(target), todo=todo)


def report_findings(found: "Iterable[Finding]", progress: Progress) -> "tuple[Finding, ...]":
    """Report each finding on stderr, and return them."""
    findings = tuple(found)
    for it in findings:
        report = progress.note if it.agrees or it.severity == "note" else progress.warn
        report(one_line(f"{it.about}: {it.says}"))
        if not it.agrees and it.todo:
            progress.note(one_line(f"  do: {it.todo}"))
    return findings


def refuse_errors(findings: "Sequence[Finding]", check: CheckName) -> None:
    """VerifyError where a finding is an error, and --check is strict."""
    wrong = [it for it in findings if not it.agrees and it.severity == "error"]
    if wrong and check == "strict":
        names = ", ".join(dict.fromkeys(it.about for it in wrong))
        todo = "do what the lines above say, or start all the same with --check warn"
        raise VerifyError("what the run had is missing or different here", where=names, todo=todo)


def plan_object(plan: Plan, findings: "Sequence[Finding]", **more: object) -> dict[str, object]:
    """Return the plan as --json prints it; `more` is what the way of running adds."""
    choice = plan.choice
    return {
        "variant": choice.variant,
        "platform": choice.platform,
        "gpus": choice.gpus,
        "reasons": list(choice.reasons),
        "variables": sorted(plan.settled.variables),
        "missing": list(plan.settled.missing),
        "findings": [it.to_dict() for it in findings],
        **more,
    }


def print_parity(found: "Iterable[Finding]", *, as_json: bool) -> int:
    """Print the result of the golden sample; return 16 where predictions differ."""
    findings = tuple(found)
    if as_json:
        typer.echo(json.dumps({"findings": [it.to_dict() for it in findings]}, indent=2))
    else:
        from envbuild.verify.reports import lines

        for line in lines([replace(it, between=("", "")) for it in findings]):
            typer.echo(one_line(line))
    wrong = [it for it in findings if not it.agrees and it.severity == "error"]
    return VerifyError.exit_code if wrong else 0
