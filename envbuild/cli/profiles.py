"""`envbuild profiles`: list the known releases of the frameworks, and show the stack of one."""

import json
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envbuild.cli.command import App
from envbuild.cli.options import CudaSource, Set, VariantName

if TYPE_CHECKING:
    from envbuild.match.match import ReleaseStack
    from envbuild.match.profiles import FrameworkWheel, Release

app = App(
    help="List the known releases of the frameworks, or show the stack of one.",
)


class FrameworkName(StrEnum):
    """What FRAMEWORK takes."""

    TENSORFLOW = "tensorflow"
    TORCH = "torch"
    JAX = "jax"


Folder = Annotated[
    Path | None, typer.Option("--profiles", help="Where the profiles are: envbuild's own by default.", metavar="DIR")
]


@app.command("list")
def list_(
    framework: Annotated[FrameworkName | None, typer.Argument(help="All when none is named.")] = None,
    folder: Folder = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list, one object a row.")] = False,
) -> None:
    """List the releases that are known, and what each was built with."""
    from envbuild.files import data_folder
    from envbuild.match.profiles import load_framework

    place = folder or data_folder("profiles")
    profiles = [load_framework(place, name) for name in ([framework] if framework else FrameworkName)]
    rows = [(release, wheel) for profile in profiles for release in profile.releases for wheel in release.wheels]
    if as_json:
        typer.echo(json.dumps([_object(release, wheel) for release, wheel in rows], indent=2))
    else:
        _print_table(wheel for _, wheel in rows)


@app.command("show")
def show(
    release: Annotated[str, typer.Argument(help="NAME==VERSION, such as tensorflow==2.15.1.", metavar="RELEASE")],
    python: Annotated[
        str | None, typer.Option(help="3.11 or 3.11.7; the newest that serves by default.", metavar="VERSION")
    ] = None,
    variant: Annotated[
        VariantName, typer.Option(help="auto: gpu where the named distribution has a CUDA build.")
    ] = "auto",
    cuda_source: CudaSource = "auto",
    platform: Annotated[str, typer.Option(help="linux/amd64 or linux/arm64.", metavar="PLATFORM")] = "linux/amd64",
    gpu: Annotated[
        list[str] | None,
        typer.Option(help="A GPU that it has to run on, such as H100; none for the CPU.", metavar="NAME"),
    ] = None,
    set_: Set = None,
    folder: Folder = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what an image of a release gets: each value with its reason and its source."""
    from envbuild.files import data_folder
    from envbuild.match.match import MatchOptions, show_release
    from envbuild.match.profiles import load_profiles
    from envbuild.match.stack import pairs_of, read_overrides

    overrides = read_overrides(pairs_of(set_ or ()))
    options = MatchOptions(variant=variant, cuda_source=cuda_source, overrides=overrides)
    profiles = load_profiles(folder or data_folder("profiles"))
    shown = show_release(release, profiles, options, python=python, machine=platform, gpus=tuple(gpu or ()))
    if as_json:
        typer.echo(json.dumps(_json_of(shown), indent=2))
    else:
        _print_shown(shown)


def _json_of(shown: "ReleaseStack") -> dict[str, Any]:
    """The stack by key, with what is decided and why; not what differs from a run, as there was none."""
    from dataclasses import asdict

    stack = {key: value for key, value in asdict(shown.stack).items() if key not in {"changes", "gaps"}}
    pairs = {key: dict(stack[key]) for key in ("variables", "overrides")}
    stack["base"] = shown.stack.base or None
    wheel = {
        "built_cuda": shown.wheel.cuda,
        "keras": shown.wheel.keras,
        "compute_capabilities": list(shown.wheel.compute_capabilities),
    }
    return stack | pairs | wheel | {"limits": list(shown.limits), "notes": list(shown.notes)}


def _print_shown(shown: "ReleaseStack") -> None:
    for it in shown.stack.decisions:
        value, warning = it.value or "none is known", "warning: " if it.warning else ""
        typer.echo(f"{it.what}: {value}\n  {warning}{it.reason}\n  [{it.source}]")
    typer.echo("requirements:")
    for requirement in shown.stack.requirements:
        typer.echo(f"  {requirement}")
    typer.echo(f"limits: {'; '.join(shown.limits)}")
    for note in shown.notes:
        typer.echo(f"note: {note}")


def _object(release: "Release", wheel: "FrameworkWheel") -> dict[str, Any]:
    """A row with everything that is known of it; absent facts are null."""
    from dataclasses import asdict

    return asdict(wheel) | {
        "sha256": wheel.sha256,
        "keras": wheel.keras,
        "jaxlib": wheel.jaxlib,
        "notes": list(release.notes),
    }


def _print_table(wheels: "Iterable[FrameworkWheel]") -> None:
    columns = ("RELEASE", "MACHINE", "PYTHON", "CUDA", "CUDNN", "KERAS", "GLIBC")
    rows = [columns, *map(_cells, wheels)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(columns))]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _cells(wheel: "FrameworkWheel") -> tuple[str, ...]:
    extra = f"[{wheel.extra}]" if wheel.extra else ""
    pythons = f"{wheel.pythons[0]}-{wheel.pythons[-1]}" if len(wheel.pythons) > 1 else "".join(wheel.pythons)
    return (
        f"{wheel.distribution}{extra}=={wheel.version}",
        wheel.machine,
        pythons,
        wheel.cuda or "-",
        wheel.cudnn_built or wheel.cudnn or "-",
        wheel.keras or "-",
        wheel.glibc,
    )
