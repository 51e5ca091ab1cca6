"""`envbuild profiles`: what is known of the frameworks' releases: made anew from the index, checked, listed, shown."""

import json
import time
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envbuild.cli.command import App
from envbuild.cli.console import Progress
from envbuild.cli.options import CudaSource, Set, VariantName
from envbuild.errors import VerifyError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envbuild.match.profiles import FrameworkProfile, FrameworkWheel, Release
    from envbuild.match.release import Shown

app = App(
    help="Show what is known of the frameworks' releases; make it anew from the package index, or check it against it.",
)


class FrameworkName(StrEnum):
    """What FRAMEWORK takes."""

    TENSORFLOW = "tensorflow"
    TORCH = "torch"
    JAX = "jax"


Chosen = Annotated[list[FrameworkName] | None, typer.Argument(help="All when none is named.", metavar="FRAMEWORK")]
Folder = Annotated[
    Path | None, typer.Option("--profiles", help="Where the profiles are: envbuild's own by default.", metavar="DIR")
]
_MEBI = 1 << 20
_COUNTED = {"jax": "releases"}
"""What is read as one, where it is no single wheel."""


@app.command("refresh")
def refresh(
    frameworks: Chosen = None,
    out: Annotated[
        Path | None, typer.Option(help="Where to write them: over envbuild's own by default.", metavar="DIR")
    ] = None,
) -> None:
    """Make the profiles anew from the wheels on the index.

    Reads METADATA and build information of every release by range requests. All files are written, or none.
    """
    from envbuild.files import data_folder, staged_folder
    from envbuild.refresh.toml import to_toml

    with Progress() as progress:
        texts = {profile.name: to_toml(profile) for profile in _read(_names(frameworks), progress)}
        folder = out or data_folder("profiles")
        with staged_folder(folder) as staged:
            for name, text in texts.items():
                (staged / f"{name}.toml").write_text(text, "utf-8")
    for name in texts:
        typer.echo(folder / f"{name}.toml")


@app.command("check")
def check(frameworks: Chosen = None, folder: Folder = None) -> None:
    """Compare the profiles with the wheels on the index.

    Fails, with exit code 16, when a release has no row, a row no release, or a row is not what its wheel says.
    """
    from envbuild.files import data_folder
    from envbuild.match.profiles import load_framework
    from envbuild.refresh.compare import differences

    place = folder or data_folder("profiles")
    kept = {name: load_framework(place, name) for name in _names(frameworks)}
    with Progress() as progress:
        found = [line for profile in _read(kept, progress) for line in differences(kept[profile.name], profile)]
    if found:
        what = "\n  - ".join((f"the profiles are not what the index has: {len(found)} differences", *found))
        raise VerifyError(what, where=str(place), todo="look at what changed, then: envbuild profiles refresh")
    typer.echo(f"{', '.join(kept)}: every release has its rows, and every row is what its wheel says")


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
    profiles = [load_framework(place, name) for name in _names([framework] if framework else None)]
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
    from envbuild.match import load_profiles, pairs_of
    from envbuild.match.match import Asked
    from envbuild.match.overrides import read_overrides
    from envbuild.match.release import show_release

    overrides = read_overrides(pairs_of(set_ or ()))
    asked = Asked(variant=variant, cuda_source=cuda_source, overrides=overrides)
    profiles = load_profiles(folder or data_folder("profiles"))
    shown = show_release(release, profiles, asked, python=python, machine=platform, gpus=tuple(gpu or ()))
    if as_json:
        typer.echo(json.dumps(_shown(shown), indent=2))
    else:
        _print_shown(shown)


def _shown(shown: "Shown") -> dict[str, Any]:
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


def _print_shown(shown: "Shown") -> None:
    for it in shown.stack.decisions:
        value, warning = it.value or "none is known", "warning: " if it.warning else ""
        typer.echo(f"{it.what}: {value}\n  {warning}{it.reason}\n  [{it.source}]")
    typer.echo("requirements:")
    for requirement in shown.stack.requirements:
        typer.echo(f"  {requirement}")
    typer.echo(f"limits: {'; '.join(shown.limits)}")
    for note in shown.notes:
        typer.echo(f"note: {note}")


def _names(frameworks: list[FrameworkName] | None) -> list[str]:
    return list(dict.fromkeys(it.value for it in frameworks or FrameworkName))


def _read(names: Iterable[str], progress: Progress) -> "Iterator[FrameworkProfile]":
    """Read frameworks one after the other, each in parallel."""
    from envbuild.lock.settings import read_settings
    from envbuild.refresh import READERS
    from envbuild.refresh.index import Index

    with Index.open(read_settings()) as index:
        for name in names:
            started, before = time.monotonic(), index.received
            progress.step(f"reading {name}")

            def report(done: int, total: int, name: str = name, before: int = before) -> None:
                if done == 0:
                    progress.note(f"{total} {_COUNTED.get(name, 'wheels')}")
                received = index.received - before
                progress.progress(name, received, received if done == total else None)

            profile = READERS[name](index, report)
            rows = sum(len(it.wheels) for it in profile.releases)
            seconds, size = time.monotonic() - started, (index.received - before) / _MEBI
            progress.note(f"{len(profile.releases)} releases, {rows} rows, {size:.0f} MiB in {seconds:.0f} s")
            yield profile


def _object(release: "Release", wheel: "FrameworkWheel") -> dict[str, Any]:
    """A row with everything that is known of it; absent facts are null."""
    from dataclasses import asdict

    return asdict(wheel) | {
        "sha256": wheel.sha256.hex,
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
