"""The options of `envbuild local`."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from envbuild.cli import locking
from envbuild.cli.vouching import MinimumRecord, Signed


class CheckName(StrEnum):
    """What --check takes."""

    STRICT = "strict"
    WARN = "warn"
    OFF = "off"


Variant = Annotated[
    locking.VariantName, typer.Option(help="auto: what this machine can run, the stamped one if it can.")
]
Base = Annotated[
    str | None,
    typer.Option(help="The base of what has to be built; by default the recorded one.", metavar="REF"),
]
FindLinks = Annotated[
    list[Path] | None, typer.Option(help="Take wheels from this folder too; may be repeated.", metavar="DIR")
]
Offline = Annotated[bool, typer.Option("--offline", help="Look for wheels in folders only, and in no index.")]
Venv = Annotated[
    Path | None, typer.Option(help="Make a virtual environment there instead; no engine is needed.", metavar="DIR")
]
Jupyter = Annotated[bool, typer.Option("--jupyter", help="Start a notebook server, apart from the environment.")]
Golden = Annotated[
    bool, typer.Option("--golden", help="Run the recorded sample, and print the largest difference of predictions.")
]
Devcontainer = Annotated[
    bool, typer.Option("--devcontainer", help="Write .devcontainer/devcontainer.json, and start nothing.")
]
Compose = Annotated[bool, typer.Option("--compose", help="Write compose.yaml, and start nothing.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be run, and stop before any download.")]
AsJson = Annotated[bool, typer.Option("--json", help="With --dry-run or --golden, print one JSON object.")]
Env = Annotated[
    list[str] | None,
    typer.Option("--env", "-e", help="A variable; without =VALUE, this shell's; repeatable.", metavar="NAME[=VALUE]"),
]
EnvFile = Annotated[
    list[Path] | None,
    typer.Option(help="Variables from this file, such as .env; none is read unasked. Repeatable.", metavar="FILE"),
]
Data = Annotated[
    list[str] | None,
    typer.Option(
        help="Where data lies here: gs://bucket/path=./folder is seen at /gcs/bucket/path; :rw after the path lets it "
        "be written, ,unsafe allows home and system folders. May be repeated.",
        metavar="URI=PATH",
    ),
]
YesData = Annotated[
    bool, typer.Option("--yes-data", help="Mount what the run read and that lies below this folder, at the same path.")
]
WithAdc = Annotated[
    bool, typer.Option("--with-adc", help="Let the container read your Application Default Credentials.")
]
Check = Annotated[CheckName, typer.Option(help="What a broken contract does, before the start and inside.")]
Publish = Annotated[
    list[str] | None,
    typer.Option("--port", "-p", help="A port: HOST:CONTAINER, or one number for both; repeatable.", metavar="PORT"),
]
ShmSize = Annotated[str | None, typer.Option(help="Size of /dev/shm, such as 2GB.", metavar="SIZE")]
Gpus = Annotated[str | None, typer.Option(help="all, none, or the GPUs by index or UUID with commas.", metavar="GPUS")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which environment, and how it is made if it has to be."""

    variant: Variant = locking.VariantName.AUTO
    base: Base = None
    find_links: FindLinks = None
    offline: Offline = False
    signed: Signed = None
    minimum_record: MinimumRecord = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """What is done with it."""

    venv: Venv = None
    jupyter: Jupyter = False
    golden: Golden = False
    devcontainer: Devcontainer = False
    compose: Compose = False
    dry_run: DryRun = False
    as_json: AsJson = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What the program needs."""

    env: Env = None
    env_file: EnvFile = None
    data: Data = None
    yes_data: YesData = False
    with_adc: WithAdc = False
    check: Check = CheckName.STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """How the container is started."""

    port: Publish = None
    shm_size: ShmSize = None
    gpus: Gpus = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The whole command line."""

    target: str
    wanted: Wanted
    mode: Mode
    needs: Needs
    container: Container
    command: tuple[str, ...]
