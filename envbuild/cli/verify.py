"""`envbuild verify`: whether environments agree: what trains, what serves, what is stamped, what is installed."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from envbuild.cli.arguments import base_named_by, base_of, import_record, parse_platform, read_lock
from envbuild.cli.command import HOW, WHAT, WHERE, flag, grouped, option
from envbuild.cli.console import Progress, one_line
from envbuild.cli.options import AsJson, CudaSource, MinimumRecord, Platform, Set, Signed
from envbuild.cli.targets import (
    FORMS,
    TargetReader,
    check_key,
    check_signable,
    kind_of,
    proof_of,
    references_of,
    required_keys,
    run_golden,
    signature_findings,
)
from envbuild.errors import EnvbuildError, UsageError, VerifyError, counted

if TYPE_CHECKING:
    from envbuild.manifest.model import TrainingManifest
    from envbuild.oci.image import Image
    from envbuild.verify.findings import Finding
    from envbuild.verify.reports import Verdict
    from envbuild.verify.targets import Target

FormName = Literal["text", "json", "sarif", "junit"]

_INCOMPARABLE_ALONE = ("image", "lock", "host")
_NAMES = {
    "model": "a model",
    "manifest": "a manifest",
    "lock": "a lock",
    "context": "a build context",
    "host": "a machine",
}
_NAMED = 8
"""Failed checks that the error names."""
_NO_IMAGE = ("docker-daemon:", "docker-archive:", "oci-archive:")


@dataclass(kw_only=True, repr=False, eq=False)
class VerifyOptions:
    """The options of `envbuild verify`."""

    lock: Path | None = option(WHAT, "Compare one image with the pylock.toml that it was built from.", "FILE")
    manifest: str | None = option(
        WHAT, "With --lock, the run's manifest: check its stack and its CUDA libraries too.", "FILE"
    )
    base: str | None = option(WHAT, "With --lock, the image's base, if its annotations do not name it.", "REF")
    cuda_source: CudaSource = "auto"
    set_: Set = None
    deep: bool = flag(HOW, "With --lock: fetch every wheel, and make every layer and the image manifest again.")
    golden: bool = flag(WHAT, "Check that the run recorded a golden sample.")
    run_: bool = flag(
        HOW,
        "With --golden, run the model on the sample: in the given images and by --python; else in the stamped images.",
        "--run",
    )
    python: str | None = option(WHAT, "For host: the environment of this interpreter, besides the machine.", "PATH")
    platform: Platform = None
    signed: Signed = None
    minimum_record: MinimumRecord = None
    policy: Path | None = option(HOW, "Severities by rule, and accepted findings.", "FILE")
    form: FormName | None = option(
        WHERE, "The output, by default text; sarif and junit are for CI.", None, "--format", show_default=False
    )
    as_json: AsJson = False


@grouped()
def run(
    targets: Annotated[
        list[str],
        typer.Argument(help=f"{FORMS}. Each is compared with the first.", metavar="TARGET...", show_default=False),
    ],
    *,
    options: VerifyOptions,
) -> None:
    """Compare environments with each other.

    What trained, what is stamped, what will serve, what this machine has. Each target has to agree with the first.
    One model alone is compared with its own stamp, images and files. Exit code 16 where a finding fails the policy:
    by default, where any is an error. --set and --cuda-source are what from-manifest was given; they go with --lock
    and --manifest.
    """
    from envbuild.verify.reports import Policy, Verdict, read_policy
    from envbuild.verify.rules.catalogue import TITLES

    judge = read_policy(options.policy, TITLES) if options.policy else Policy()
    keys = required_keys(options.signed, judge.keys)
    _check(targets, options, signed=bool(keys))
    if options.signed is not None:
        check_signable(targets)
    for key in keys:
        check_key(key)
    proof = proof_of(keys, options.minimum_record)
    more: dict[str, Any] = {}
    failure: EnvbuildError | None = None
    found: tuple[Finding, ...] = ()
    with Progress() as progress:
        if options.lock is not None:
            image, found = _lock_findings(targets[0], options.lock, options, progress)
            more = {"image": targets[0], "digest": str(image.found_as or image.digest)}
        elif options.golden or not (keys and [kind_of(it)[0] for it in targets] == ["image"]):
            with ExitStack() as stack:
                machine, python = parse_platform(options.platform), options.python
                reader = TargetReader(machine=machine, python=python, stack=stack, progress=progress, proof=proof)
                found, failure = _findings(targets, reader, options)
        references = references_of(targets)
        placed = [one for it in references.values() for one in judge.registry_findings(it)]
        found = (*found, *signature_findings(references, keys, progress), *placed)
    findings, failed = judge.judged(found, datetime.now(UTC).date()), failure.what if failure else ""
    verdict = Verdict(targets=tuple(targets), findings=findings, policy=judge, failed=failed)
    _print(verdict, "json" if options.as_json else options.form or "text", more)
    if failure:
        raise failure
    if wrong := verdict.wrong:
        names = list(dict.fromkeys(it.about for it in wrong))
        named = one_line(", ".join((*names[:_NAMED], *["..."] * (len(names) > _NAMED))))
        what = f"{len(wrong)} of {counted(len(findings), 'check')} failed: {named}"
        todo = "do what their lines say, before you serve with this"
        raise VerifyError(what, where=one_line(" ".join(targets)), todo=todo)


def _check(targets: list[str], options: VerifyOptions, *, signed: bool) -> None:
    """Refuse what does not go together, before anything is read."""
    kinds, lock = [kind_of(it)[0] for it in targets], options.lock
    if lock is not None and len(targets) == 1 and kinds[0] != "image":
        todo = "give the image that was built from it; or give the lock as a target of its own, without --lock"
        where = f"TARGET {one_line(targets[0])}"
        raise UsageError(f"--lock is for an image, and this is {_NAMES[kinds[0]]}", where=where, todo=todo)
    if lock is not None and (len(targets) > 1 or options.golden):
        todo = "give one image with --lock; or give the lock as a target of its own"
        raise UsageError("--lock is for one image", where=f"--lock {lock}", todo=todo)
    matched = options.set_ or options.cuda_source != "auto"
    useless = {
        "--manifest": options.manifest,
        "--base": options.base,
        "--set": options.set_,
        "--deep": options.deep,
        "--cuda-source": options.cuda_source != "auto",
    }
    if lock is None and any(useless.values()):
        todo = "give --lock too, or leave them out; a manifest can be a target of its own"
        where = ", ".join(name for name, value in useless.items() if value)
        raise UsageError("these go with --lock", where=where, todo=todo)
    if lock is not None and not options.manifest and matched:
        todo = "give the run's --manifest too, or leave them out"
        raise UsageError("these need the run's manifest", where="--set, --cuda-source", todo=todo)
    if lock is None and not signed and len(targets) == 1 and kinds[0] in _INCOMPARABLE_ALONE:
        todo = "give what it has to agree with before it: a model, a manifest, a lock or an image; or --lock"
        what = f"the one target is read as {_NAMES.get(kinds[0], 'an image')}, which cannot be compared alone"
        raise UsageError(what, where=f"TARGET {targets[0]}", todo=todo)
    if options.run_ and not options.golden:
        raise UsageError("--run goes with --golden", where="--run", todo="give --golden too")
    if options.as_json and options.form not in (None, "json"):
        where = f"--format {options.form}, --json"
        raise UsageError("--json is another format", where=where, todo="leave one of them out")
    _check_python(kinds, options.python)


def _check_python(kinds: Sequence[str], python: str | None) -> None:
    if python is not None and not python.strip():
        todo = "give the path of an interpreter, such as ./venv/bin/python"
        raise UsageError("this names no interpreter", where=f"--python {python!r}", todo=todo)
    if python is not None and "host" not in kinds:
        todo = "give host as a target too, or leave --python out"
        raise UsageError("--python goes with host, and no target is host", where=f"--python {python}", todo=todo)


def _findings(
    targets: list[str], reader: TargetReader, options: VerifyOptions
) -> "tuple[tuple[Finding, ...], EnvbuildError | None]":
    """Compare the targets; return what was found, and the error that ended the golden part."""
    from envbuild.verify.targets import verify_targets

    progress, opened = reader.progress, reader.read_all(targets)
    golden_part = _golden_findings(opened, reader, run_=options.run_) if options.golden else iter(())
    progress.step("comparing them")
    findings = list(verify_targets(opened, progress.progress))
    try:
        findings.extend(golden_part)
    except EnvbuildError as error:
        return tuple(findings), error
    return tuple(findings), None


def _lock_findings(
    image: str, lock: Path, options: VerifyOptions, progress: Progress
) -> "tuple[Image, tuple[Finding, ...]]":
    """Compare an image with its lock and base, and with the run where its manifest is given."""
    from envbuild.files import cache_folder
    from envbuild.lock.settings import read_settings
    from envbuild.match.stack import pairs_of
    from envbuild.verify.image import Inquiry, Run, verify_image

    locked, settings = read_lock(lock), read_settings()
    run = None
    if options.manifest is not None:
        manifest = import_record(options.manifest, progress)[2]
        overrides = pairs_of(options.set_ or ())
        run = Run(manifest=manifest, cuda_source=options.cuda_source, overrides=overrides)
    name = kind_of(image)[1]
    progress.step(f"verifying {one_line(name)}")
    found = _image(name, locked.target.machine)
    named = options.base or base_named_by(found, image, "--base")
    inquiry = Inquiry(
        image=found,
        base=base_of(named, locked.target.machine, progress),
        lock=locked,
        run=run,
        deep=options.deep,
        cache=cache_folder(),
        settings=settings,
    )
    return found, verify_image(inquiry, progress)


def _image(text: str, machine: str) -> "Image":
    from envbuild.base.resolve import layout_image, registry_reference
    from envbuild.oci.reference import exists
    from envbuild.registry.pull import pull

    todo = "give an image reference, or an OCI layout folder"
    if text.startswith(_NO_IMAGE) or (exists(text) and not Path(text, "oci-layout").is_file()):
        raise UsageError("this is in no registry, and no OCI layout", where=f"IMAGE {text}", todo=todo)
    try:
        reference = registry_reference(text)
    except UsageError as error:
        raise UsageError("not an image reference", where=f"IMAGE {text}", todo=todo) from error
    return pull(reference, machine=machine) if reference else layout_image(text, machine)


def _golden_findings(targets: "Sequence[Target]", reader: TargetReader, *, run_: bool) -> "Iterator[Finding]":
    """Run the first target's golden sample, or only check that it can be run; UsageError at once where it cannot.

    It runs in the images among the targets and by the host's interpreter, else in the stamped images for this machine.
    Nothing runs before the first finding is asked for.
    """
    from envbuild.verify.findings import Finding
    from envbuild.verify.golden.check import unfit

    manifest, model = _sample(targets[0])
    name = targets[0].name
    if (fault := unfit(manifest)) is not None:
        return iter((fault.with_targets(name, name),))
    python = reader.python if any(it.side.kind == "host" for it in targets) else None
    images = _golden_images(targets, reader.machine, stamped=python is None)
    if not run_:
        assert manifest.golden is not None, "unfit() returns a finding for none"
        where = ", ".join(filter(None, (*images, python))) or "an image that is given, or by --python with host"
        count = len(manifest.golden.outputs)
        sample = f"a sample of {count} output{'' if count == 1 else 's'} is recorded"
        says = f"{sample}; with --run it is run in {where}"
        return iter((Finding(about="golden", rule="golden-sample", agrees=True, says=says).with_targets(name, name),))
    if not images and python is None:
        todo = (
            "give the image after the model, as from-manifest or serve printed it: FOLDER@sha256:... or a reference; "
            "or host and --python PATH; or run it in a new environment: `envbuild local MODEL --venv DIR --golden`"
        )
        what = "nothing is given to run the sample in, and no image that the model is stamped with is pushed or here"
        raise UsageError(what, where=f"--golden --run, {one_line(name)}", todo=todo)
    return run_golden(manifest, model, images, reader.machine, reader.progress, python)


def _sample(first: "Target") -> "tuple[TrainingManifest, str]":
    manifest = first.manifest or (first.model.manifest if first.model else None)
    model = first.model.uri if first.model else manifest.model_uri if manifest else None
    if manifest is None or model is None:
        todo = "give a stamped model first, or the manifest of a run that records where its model is"
        raise UsageError("the first target has no golden sample and model", where="--golden", todo=todo)
    return manifest, model


def _golden_images(targets: "Sequence[Target]", machine: str, *, stamped: bool) -> list[str]:
    """Return the images that are given; else, if `stamped`, those that the model is stamped with for this machine.

    One that was never pushed is looked for in the layouts of the current folder.
    """
    from envbuild.oci.layout import ARCHITECTURES, find_layout

    given = [it.name for it in targets if it.image]
    stamp = targets[0].model.stamp if targets[0].model else None
    if given or stamp is None or not stamped:
        return given
    platform = f"linux/{ARCHITECTURES.get(machine, machine)}"
    images = [it for it in stamp.images if it.platform == platform]
    layouts = {it.digest: find_layout(it.digest, (Path(),)) for it in images if not it.reference}
    names = (it.reference or (f"{layouts[it.digest]}@{it.digest}" if layouts[it.digest] else "") for it in images)
    return [name for name in names if name]


def _print(verdict: "Verdict", form: FormName, more: dict[str, Any]) -> None:
    from envbuild.verify.reports import junit, lines, sarif, sound
    from envbuild.verify.rules.catalogue import TITLES

    match form:
        case "json":
            typer.echo(json.dumps(sound({**more, **verdict.to_dict()}), indent=2))
        case "sarif":
            typer.echo(json.dumps(sound(sarif(verdict, TITLES)), indent=2))
        case "junit":
            typer.echo(junit(verdict))
        case "text":
            for line in lines(verdict.findings):
                typer.echo(one_line(line))
