"""The golden sample of a verification: whose it is, and where it is run."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from envbuild.cli.console import Progress
from envbuild.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from envbuild.manifest.model import TrainingManifest
    from envbuild.verify.findings import Finding
    from envbuild.verify.golden.runners import Runner
    from envbuild.verify.targets import Target

    _Runners = Callable[[ExitStack, Path, Progress], Iterator[Runner]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What was asked of the golden sample, and which interpreter host is."""

    golden: bool
    run: bool
    python: str | None


def golden_findings(targets: "Sequence[Target]", machine: str, asked: Asked, progress: Progress) -> "Iterator[Finding]":
    """Run the first target's sample in each image, or only see that it could be; UsageError at once where it cannot.

    Images are those among the targets, and beside them the interpreter of a host; else those that the model is stamped
    with for this machine. Nothing is run before the first finding is asked for.
    """
    from envbuild.verify.golden.check import unfit

    manifest, model = _whose(targets[0])
    name = targets[0].name
    if (fault := unfit(manifest)) is not None:
        return iter((fault.with_targets(name, name),))
    python = asked.python if any(it.side.kind == "host" for it in targets) else None
    names = _images(targets, machine, stamped=python is None)
    if not asked.run:
        return iter((_could(manifest, [*names, *filter(None, (python,))]).with_targets(name, name),))
    if not names and python is None:
        todo = "give an image after the model, or host and --python, or stamp the model with an image that was pushed"
        raise UsageError("there is nothing to run the sample in", where="--golden --run", todo=todo)
    return _run(manifest, model, partial(_runners, python, names, machine), progress)


def _run(manifest: "TrainingManifest", model: str, runners: "_Runners", progress: Progress) -> "Iterator[Finding]":
    from envbuild.files import cache_folder
    from envbuild.verify.golden.check import check

    with ExitStack() as stack:
        cache = cache_folder()
        yield from check(manifest, model, runners(stack, cache, progress), cache=cache, report=progress)


def _runners(
    python: str | None, images: "Sequence[str]", machine: str, stack: ExitStack, cache: Path, progress: Progress
) -> "Iterator[Runner]":
    """The interpreter first: it needs no engine, which may be missing."""
    from envbuild.verify.golden.runners import InInterpreter, in_image

    if python is not None:
        yield InInterpreter(name=python)
    for name in images:
        yield stack.enter_context(in_image(name, machine=machine, cache=cache, report=progress))


def _whose(first: "Target") -> "tuple[TrainingManifest, str]":
    manifest = first.manifest or (first.model.manifest if first.model else None)
    model = first.model.uri if first.model else manifest.model_uri if manifest else None
    if manifest is None or model is None:
        todo = "give a stamped model first, or the manifest of a run that says where its model lies"
        raise UsageError("nothing says which sample and model are meant", where="--golden", todo=todo)
    return manifest, model


def _images(targets: "Sequence[Target]", machine: str, *, stamped: bool) -> list[str]:
    """The images that are given; else, if `stamped`, those that the model is stamped with for this machine."""
    from envbuild.oci.layout import ARCHITECTURES

    given = [it.name for it in targets if it.image]
    stamp = targets[0].model.stamp if targets[0].model else None
    if given or stamp is None or not stamped:
        return given
    platform = f"linux/{ARCHITECTURES.get(machine, machine)}"
    return [it.reference for it in stamp.images if it.reference and it.platform == platform]


def _could(manifest: "TrainingManifest", images: Sequence[str]) -> "Finding":
    from envbuild.verify.findings import Finding

    assert manifest.golden is not None, "unfit() says so before"
    where = ", ".join(images) or "an image that is given, or by --python where host is"
    count = len(manifest.golden.outputs)
    sample = f"a sample of {count} output{'' if count == 1 else 's'} is recorded"
    says = f"{sample}; with --run it is run in {where}"
    return Finding(about="golden", rule="golden-sample", agrees=True, says=says)
