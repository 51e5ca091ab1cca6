"""What commands that lock share: their options, and how progress is told."""

import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild.cli.console import PLAIN_INTERVAL, Progress

if TYPE_CHECKING:
    from envbuild.lock.facts import Counted
    from envbuild.match.stack import Stack


class VariantName(StrEnum):
    """What --variant takes."""

    AUTO = "auto"
    GPU = "gpu"
    CPU = "cpu"


class ResolverName(StrEnum):
    """What --resolver takes."""

    UV = "uv"
    PIP_TOOLS = "pip-tools"


class CudaSourceName(StrEnum):
    """What --cuda-source takes."""

    AUTO = "auto"
    WHEELS = "wheels"
    BASE = "base"


Variant = Annotated[VariantName, typer.Option(help="auto: gpu if the run used GPUs.")]
CudaSource = Annotated[CudaSourceName, typer.Option(help="Where CUDA comes from; auto: wheels where they serve.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override base, cuda, cudnn, driver_minimum or python.", metavar="KEY=VALUE"),
]
Platform = Annotated[
    str | None,
    typer.Option(
        help="What to build for: linux/amd64 or linux/arm64; by default what the run had.", metavar="PLATFORM"
    ),
]
Resolver = Annotated[ResolverName, typer.Option(help="What does the locking.")]
RequireIdentical = Annotated[
    bool, typer.Option("--require-identical", help="Fail unless every wheel is proven to be the run's.")
]
Build = Annotated[bool, typer.Option("--build", help="Build what no index has as a wheel; runs its projects' code.")]
FindLinks = Annotated[
    list[Path] | None, typer.Option(help="Take wheels from this folder too; may be repeated.", metavar="DIR")
]
ExcludeNewer = Annotated[
    str | None,
    typer.Option(
        help="Complete an incomplete record as of this date, or none; by default the record's own.", metavar="DATE|none"
    ),
]
Drop = Annotated[
    list[str] | None,
    typer.Option(help="Leave this distribution of the run out, and record it; may be repeated.", metavar="NAME"),
]
Offline = Annotated[bool, typer.Option("--offline", help="Look for wheels in folders only, and in no index.")]


def tell_changes(stack: "Stack", progress: Progress) -> None:
    """Say how the requirements differ from the run's distributions."""
    for change in stack.changes:
        progress.note(f"{change.before or 'nothing'} -> {change.after or 'dropped'}: {change.reason}")


def counter(progress: Progress) -> "Counted":
    """Tell now and then how many wheels were compared, where that takes long."""
    last = time.monotonic()

    def told(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= PLAIN_INTERVAL:
            last = time.monotonic()
            progress.note(f"{done} of {total} wheels compared")

    return told
