"""`envbuild profiles`: list the known releases of the frameworks, and show the stack of one."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from envbuild.cli.command import WHAT, App, advanced_option, examples, grouped, option, where_option
from envbuild.cli.options import AsJson, CudaSource, Set, VariantName
from envbuild.errors import UsageError

if TYPE_CHECKING:
    from envbuild.match.match import ReleaseStack
    from envbuild.match.rows import Driver, FrameworkWheel, Opener

app = App(help="List the known releases of the frameworks, or show the stack of one.")
FrameworkName = Literal["tensorflow", "torch", "jax"]
Folder = Annotated[
    Path | None, advanced_option("--profiles", help="Where the profiles are: envbuild's own by default.", metavar="DIR")
]
_COLUMNS = ("RELEASE", "MACHINE", "PYTHON", "CUDA", "CUDNN", "KERAS", "GLIBC")


@app.command("list", epilog=examples("envbuild profiles list tensorflow", "envbuild profiles list --json"))
def list_(
    framework: Annotated[FrameworkName | None, typer.Argument(help="All when none is named.")] = None,
    folder: Folder = None,
    *,
    as_json: Annotated[bool, where_option("--json", help="Print a JSON list, one object a row.")] = False,
) -> None:
    """List the releases that are known, and what each was built with."""
    from envbuild.files import data_folder
    from envbuild.match.profiles import FRAMEWORKS, load_framework

    place = folder or data_folder("profiles")
    profiles = [load_framework(place, name) for name in ([framework] if framework else FRAMEWORKS)]
    rows = [(release, wheel) for profile in profiles for release in profile.releases for wheel in release.wheels]
    if as_json:
        objects = [
            asdict(it) | {"sha256": it.sha256, "keras": it.keras, "jaxlib": it.jaxlib, "notes": list(release.notes)}
            for release, it in rows
        ]
        typer.echo(json.dumps(objects, indent=2))
        return
    table = [_COLUMNS, *(_cells(wheel) for _, wheel in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@app.command(
    "show",
    epilog=examples("envbuild profiles show tensorflow==2.15.1", "envbuild profiles show torch==2.6.0 --gpu H100"),
)
@grouped()
def show(
    release: Annotated[str, typer.Argument(help="NAME==VERSION, such as tensorflow==2.15.1.", metavar="RELEASE")],
    *,
    python: str | None = option(WHAT, "3.11 or 3.11.7; the newest that serves by default.", "VERSION"),
    variant: VariantName = option(WHAT, "auto: gpu where the named distribution has a CUDA build.", default="auto"),
    cuda_source: CudaSource = "auto",
    platform: str = option(WHAT, "linux/amd64 or linux/arm64.", "PLATFORM", default="linux/amd64"),
    gpu: list[str] | None = option(WHAT, "A GPU that it has to run on, such as H100; none for the CPU.", "NAME"),
    set_: Set = None,
    folder: Folder = None,
    as_json: AsJson = False,
) -> None:
    """Show what an image of a release gets: each value with its reason and its source.

    Of another project that opens CUDA, such as onnxruntime-gpu, show what is known of the release.
    """
    from envbuild.files import data_folder
    from envbuild.match.match import MatchOptions, show_release
    from envbuild.match.openers import show_opener
    from envbuild.match.profiles import load_profiles
    from envbuild.match.stack import pairs_of, read_overrides

    if shown_opener := show_opener(release, profiles := load_profiles(folder or data_folder("profiles"))):
        if python or gpu or set_ or (variant, cuda_source, platform) != ("auto", "auto", "linux/amd64"):
            todo = "leave out all options but --json and --profiles"
            raise UsageError("only a framework's release has a stack to decide", where=release, todo=todo)
        _print_opener(*shown_opener, as_json=as_json)
        return
    overrides = read_overrides(pairs_of(set_ or ()))
    options = MatchOptions(variant=variant, cuda_source=cuda_source, overrides=overrides)
    shown = show_release(release, profiles, options, python=python, machine=platform, gpus=tuple(gpu or ()))
    if as_json:
        typer.echo(json.dumps(_json_of(shown), indent=2))
    else:
        _print_shown(shown)


def _print_opener(row: "Opener", driver: "Driver | None", *, as_json: bool) -> None:
    """What is known of another project that opens CUDA."""
    known = {key: value for key, value in asdict(row).items() if value} | ({"driver": driver.minimum} if driver else {})
    if as_json:
        typer.echo(json.dumps(known, indent=2))
        return
    for key, value in known.items():
        text = ", ".join(value) if isinstance(value, tuple) else "yes" if value is True else value
        typer.echo(f"{key.replace('_', ' ')}: {text}")


def _json_of(shown: "ReleaseStack") -> dict[str, Any]:
    """The stack by key, with what is decided and why; not what differs from a run, as there was none."""
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
