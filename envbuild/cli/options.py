"""The options that several commands have in common."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from envbuild.cli.command import advanced_option, how_option, what_option, where_option

VariantName = Literal["auto", "gpu", "cpu"]
CudaSourceName = Literal["auto", "wheels", "base"]
ResolverName = Literal["uv", "pip-tools"]
ImportCheckName = Literal["auto", "always", "never"]
FrameworkName = Literal["tensorflow", "torch", "jax", "none"]
FormatName = Literal[
    "pip-freeze",
    "pip-list",
    "pip-inspect",
    "requirements",
    "pylock",
    "uv-lock",
    "poetry-lock",
    "pdm-lock",
    "pipfile-lock",
    "conda-environment",
    "conda-list",
    "pixi-lock",
    "conda-lock",
    "mlflow",
    "wandb",
]


AsJson = Annotated[bool, where_option("--json", help="Print one JSON object.")]
Platform = Annotated[
    str | None, what_option(help="linux/amd64 or linux/arm64; by default this machine's.", metavar="PLATFORM")
]
CreateRepository = Annotated[
    bool, where_option("--create-repository", help="Create the repository in Artifact Registry if it does not exist.")
]

Manifest = Annotated[
    str,
    typer.Argument(
        help="A manifest, or another tool's record as for `envbuild convert`: a path, - for stdin, or gs://.",
        metavar="MANIFEST",
    ),
]
Python = Annotated[
    str | None, what_option(help="The run's Python, as in 3.10.12, if the record lacks it.", metavar="VERSION")
]

CudaSource = Annotated[
    CudaSourceName, advanced_option(help="Where CUDA comes from; auto: from wheels where there are any.")
]
Set = Annotated[
    list[str] | None,
    advanced_option("--set", help="Override base, cuda, cudnn, driver_minimum or python.", metavar="KEY=VALUE"),
]
RunPlatform = Annotated[
    str | None, what_option("--platform", help="linux/amd64 or linux/arm64; by default the run's.", metavar="PLATFORM")
]

Build = Annotated[bool, how_option("--build", help="Build distributions without a wheel; runs their code.")]
FindLinks = Annotated[
    list[Path] | None, how_option(help="Take wheels from this folder too; repeatable.", metavar="DIR")
]
Offline = Annotated[bool, how_option("--offline", help="Take wheels from folders only, and ask no index.")]

Push = Annotated[str | None, where_option(help="Push to this repository instead of writing a layout.", metavar="REPO")]
Load = Annotated[str | None, where_option(help="Load the image into the local engine under this name.", metavar="NAME")]

Sign = Annotated[
    str | None,
    where_option(
        help="Sign with this private key: a PEM file, env://VARIABLE, gcpkms://..., or keyless.", metavar="KEY"
    ),
]
Signed = Annotated[
    str | None,
    how_option(
        "--signed",
        help="Require signatures by this public key, in PEM, or keyless:ISSUER=IDENTITY.",
        metavar="KEY",
    ),
]
MinimumRecord = Annotated[
    int | None,
    advanced_option(
        "--minimum-record", help="With --signed or --sign: refuse a stamp with a lower number.", metavar="N", min=1
    ),
]


@dataclass(kw_only=True, repr=False, eq=False)
class FactOptions:
    """The facts of a run that its record lacks."""

    kind: Annotated[
        FormatName | None,
        advanced_option(
            "--from", help="The record's format, such as pip-freeze; by default detected.", metavar="FORMAT"
        ),
    ] = None
    python: Python = None
    gpu: Annotated[
        str | None, what_option(help='The run\'s GPU, such as "Tesla T4", if the record lacks it.', metavar="NAME|none")
    ] = None
    ran_on: Annotated[
        str | None, what_option(help="The run's platform, if the record lacks it: linux/amd64.", metavar="OS/MACHINE")
    ] = None
    framework: Annotated[
        FrameworkName | None, what_option(help="The framework that the run used, if the record has several.")
    ] = None


@dataclass(kw_only=True, repr=False, eq=False)
class LockOptions:
    """How wheels are chosen and found."""

    variant: Annotated[VariantName, what_option(help="auto: gpu if the run used GPUs.")] = "auto"
    cuda_source: CudaSource = "auto"
    set_: Set = None
    drop: Annotated[
        list[str] | None, what_option(help="Leave this distribution of the run out; repeatable.", metavar="NAME")
    ] = None
    resolver: Annotated[ResolverName, advanced_option(help="The program that resolves.")] = "uv"
    exclude_newer: Annotated[
        str | None,
        advanced_option(
            help="Complete an incomplete record as of this date; by default the record's own.", metavar="DATE|none"
        ),
    ] = None
    require_identical: Annotated[
        bool, how_option("--require-identical", help="Fail unless every wheel is proven to be the run's.")
    ] = False
    build: Build = False
    find_links: FindLinks = None
    offline: Offline = False


@dataclass(kw_only=True, repr=False, eq=False)
class ImageOptions:
    """The image, and where it goes."""

    base: Annotated[
        str | None, what_option(help="The base: an image reference, an OCI layout, or debian:SUITE.", metavar="REF")
    ] = None
    platform: Annotated[
        str | None,
        what_option(
            "--platform",
            help="linux/amd64, linux/arm64, or both with a comma; by default the run's.",
            metavar="PLATFORMS",
        ),
    ] = None
    out: Annotated[str, where_option(help="Write the build context and the OCI layout here.", metavar="DIR")] = (
        "envbuild-out"
    )
    push: Push = None
    create_repository: CreateRepository = False
    archive: Annotated[
        Path | None, where_option(help="Write the image to this file, for docker load or podman load.", metavar="FILE")
    ] = None
    load: Load = None
    stamp: Annotated[
        str | None, where_option(help="Stamp the digest on this model: gs://..., or a folder.", metavar="MODEL_URI")
    ] = None
    stamp_anyway: Annotated[
        bool,
        advanced_option("--stamp-anyway", help="Stamp although the model's files are not the manifest's; recorded."),
    ] = False
    sign: Sign = None
    no_attest: Annotated[
        bool, advanced_option("--no-attest", help="Attach no bill of materials and no provenance.")
    ] = False
    signed: Signed = None
    minimum_record: MinimumRecord = None
    bytecode: Annotated[
        bool | None,
        how_option(
            "--bytecode/--no-bytecode",
            help="Compile modules: larger, and starts faster; by default to serve.",
            show_default=False,
        ),
    ] = None
    system_packages: Annotated[
        bool,
        how_option(
            "--system-packages/--no-system-packages",
            help="Add the Debian packages whose libraries the run loaded and the base lacks.",
        ),
    ] = True
    import_check: Annotated[
        ImportCheckName,
        how_option(help="Import the run's modules in the image before it is pushed; auto: if in doubt."),
    ] = "auto"
    no_remote_cache: Annotated[
        bool, advanced_option("--no-remote-cache", help="Build even if the registry has this environment.")
    ] = False
    ca_bundle: Annotated[
        Path | None, advanced_option(help="Trust these certificate authorities (PEM) for indexes.", metavar="FILE")
    ] = None
    dry_run: Annotated[bool, how_option("--dry-run", help="Print the plan, and stop.")] = False
    as_json: AsJson = False
