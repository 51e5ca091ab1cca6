"""The options of `envbuild local`, and the plan that they make for this machine."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from envbuild.cli.command import advanced_option, how_option, what_option, where_option
from envbuild.cli.console import Progress, one_line, printable
from envbuild.cli.options import FindLinks, MinimumRecord, Offline, Signed, VariantName
from envbuild.cli.targets import kind_of, proof_of
from envbuild.errors import UsageError, VerifyError

if TYPE_CHECKING:
    import docker

    from envbuild.local.image import Building
    from envbuild.local.model import Choice, Machine, Settled, Subject
    from envbuild.lock.run import Options
    from envbuild.stamp.signature import Proof
    from envbuild.verify.findings import Finding

CheckName = Literal["strict", "warn", "off"]


@dataclass(kw_only=True, repr=False, eq=False)
class LocalOptions:
    """The options of `envbuild local`."""

    variant: Annotated[VariantName, what_option(help="auto: what this machine can run, the stamped one if it can.")] = (
        "auto"
    )
    base: Annotated[
        str | None,
        advanced_option(help="The base of an image that has to be built; by default the recorded one.", metavar="REF"),
    ] = None
    find_links: FindLinks = None
    offline: Offline = False
    signed: Signed = None
    minimum_record: MinimumRecord = None
    venv: Annotated[
        Path | None, where_option(help="Make a virtual environment there instead; needs no engine.", metavar="DIR")
    ] = None
    jupyter: Annotated[bool, what_option("--jupyter", help="Start a notebook server, apart from the environment.")] = (
        False
    )
    golden: Annotated[
        bool, what_option("--golden", help="Run the golden sample, and print the largest difference of predictions.")
    ] = False
    devcontainer: Annotated[
        bool, where_option("--devcontainer", help="Write .devcontainer/devcontainer.json, and start nothing.")
    ] = False
    compose: Annotated[bool, where_option("--compose", help="Write compose.yaml, and start nothing.")] = False
    dry_run: Annotated[bool, how_option("--dry-run", help="Print the plan, and stop before any download.")] = False
    as_json: Annotated[bool, where_option("--json", help="With --dry-run or --golden, print one JSON object.")] = False
    env: Annotated[
        list[str] | None,
        how_option("--env", "-e", help="A variable; without =VALUE, this shell's; repeatable.", metavar="NAME[=VALUE]"),
    ] = None
    env_file: Annotated[
        list[Path] | None,
        how_option(help="Variables from this file, such as .env; none is read by default. Repeatable.", metavar="FILE"),
    ] = None
    data: Annotated[
        list[str] | None,
        how_option(
            help="Where data is here: gs://bucket/path=./folder is seen at /gcs/bucket/path; :rw after the path lets "
            "it be written, ,unsafe allows home and system folders. Repeatable.",
            metavar="URI=PATH",
        ),
    ] = None
    yes_data: Annotated[
        bool, how_option("--yes-data", help="Mount the run's data below this folder, at the same path.")
    ] = False
    with_adc: Annotated[
        bool, how_option("--with-adc", help="Let the container read your Application Default Credentials.")
    ] = False
    check: Annotated[CheckName, how_option(help="What a broken contract does, before the start and inside.")] = "strict"
    port: Annotated[
        list[str] | None,
        how_option("--port", "-p", help="A port: HOST:CONTAINER, or one number for both; repeatable.", metavar="PORT"),
    ] = None
    shm_size: Annotated[str | None, advanced_option(help="Size of /dev/shm, such as 2GB.", metavar="SIZE")] = None
    gpus: Annotated[
        str | None, how_option(help="all, none, or the GPUs by index or UUID with commas.", metavar="GPUS")
    ] = None

    def building(self) -> "Building":
        """Return how an image that is missing is built."""
        from envbuild.files import cache_folder
        from envbuild.local.image import Building

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

    from envbuild.local.choice import choose
    from envbuild.local.contract import settle
    from envbuild.local.data import resolve_here
    from envbuild.local.image import known_changes

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
            from envbuild.cli.records import read_run
            from envbuild.manifest.importers.environment import RecordOptions

            called, data, manifest = read_run(name, None, RecordOptions(), progress)
            return subject_of_manifest(called, data, manifest)
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


def print_plan(plan: Plan, findings: "Sequence[Finding]", *, as_json: bool) -> None:
    """Print the plan of a container for --dry-run."""
    choice = plan.choice
    image = plan.subject.image or (choice.pull.image if choice.pull else None)
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
        "variables": sorted(plan.settled.variables),
        "missing": list(plan.settled.missing),
        "mounts": [{"source": str(it.source), "target": it.target} for it in plan.settled.mounts],
        "findings": [it.to_dict() for it in findings],
    }
    typer.echo(json.dumps(value, indent=2))


def print_parity(found: "Iterable[Finding]", *, as_json: bool) -> int:
    """Print the result of the golden sample; return 16 where predictions differ."""
    findings = tuple(found)
    if as_json:
        typer.echo(json.dumps({"findings": [it.to_dict() for it in findings]}, indent=2))
    else:
        for it in findings:
            typer.echo(one_line(printable(str(it))))
    wrong = [it for it in findings if not it.agrees and it.severity == "error"]
    return VerifyError.exit_code if wrong else 0
