"""The options of `envbuild from-manifest`, and the order that they make."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild.cli import cloudbuild, locking, records, references
from envbuild.cli.attesting import Attesting, wanted_of
from envbuild.cli.console import Progress
from envbuild.cli.printed import is_stdout
from envbuild.errors import UsageError

if TYPE_CHECKING:
    from envbuild.build import Order
    from envbuild.build.cloudbuild import CloudBuild
    from envbuild.oci.reference import Reference


class BuilderName(StrEnum):
    """The values of --builder."""

    ASSEMBLE = "assemble"
    DOCKER = "docker"
    CLOUDBUILD = "cloudbuild"


class ImportCheckName(StrEnum):
    """The values of --import-check."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


Base = Annotated[
    str | None, typer.Option(help="An image reference, an OCI layout folder, or debian:SUITE.", metavar="REF")
]
Out = Annotated[str, typer.Option(help="Where the build context and the OCI layout go.", metavar="DIR")]
Archive = Annotated[
    Path | None, typer.Option(help="Write the image to this file, which docker load and podman load read.")
]
Bytecode = Annotated[
    bool | None,
    typer.Option(
        "--bytecode/--no-bytecode",
        help="Compile modules by the base's Python: larger, and faster to start; by default what serves.",
        show_default=False,
    ),
]
Load = Annotated[
    str | None, typer.Option(help="Load the image into the container engine here under this name.", metavar="NAME")
]
Push = Annotated[str | None, typer.Option(help="Push to this repository instead of writing a layout.", metavar="REPO")]
CreateRepository = Annotated[
    bool,
    typer.Option("--create-repository", help="Create the repository in Artifact Registry if it is not there."),
]
Platforms = Annotated[
    str | None,
    typer.Option(
        help="What to build for: linux/amd64, linux/arm64, or both with a comma; by default what the run had.",
        metavar="PLATFORMS",
    ),
]
Template = Annotated[
    str | None,
    typer.Option(help="Take the build context's templates from this folder; see envbuild eject.", metavar="DIR"),
]
Builder = Annotated[
    BuilderName, typer.Option(help="What makes the image: envbuild itself, or another from the build context.")
]
BuilderNamed = Annotated[
    str | None, typer.Option(help="With --builder docker: build by this builder of docker buildx.", metavar="NAME")
]
CaBundle = Annotated[
    Path | None, typer.Option(help="Certificate authorities to believe indexes by, in PEM.", metavar="FILE")
]
StampOn = Annotated[
    str | None, typer.Option(help="Write the digest on this model: gs://..., or a folder.", metavar="MODEL_URI")
]
StampAnyway = Annotated[
    bool,
    typer.Option("--stamp-anyway", help="Stamp a model though its files are not those of the manifest, and record it."),
]
SystemPackages = Annotated[
    bool,
    typer.Option(
        "--system-packages/--no-system-packages",
        help="Put in the Debian packages that the run had libraries loaded from and the base lacks.",
    ),
]
ImportCheck = Annotated[
    ImportCheckName,
    typer.Option(help="Import in the image what the run imported, before it is pushed; auto: where nothing proves it."),
]
NoRemoteCache = Annotated[
    bool, typer.Option("--no-remote-cache", help="Build even if the registry has this environment.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which environment."""

    variant: locking.Variant = locking.VariantName.AUTO
    base: Base = None
    cuda_source: locking.CudaSource = locking.CudaSourceName.AUTO
    set_: locking.Set = None
    platform: Platforms = None
    drop: locking.Drop = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Where it goes."""

    out: Out = "envbuild-out"
    push: Push = None
    create_repository: CreateRepository = False
    archive: Archive = None
    load: Load = None
    stamp: StampOn = None
    stamp_anyway: StampAnyway = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Building:
    """How the image is made."""

    builder: Builder = BuilderName.ASSEMBLE
    builder_name: BuilderNamed = None
    template: Template = None
    bytecode: Bytecode = None
    system_packages: SystemPackages = True
    import_check: ImportCheck = ImportCheckName.AUTO
    no_remote_cache: NoRemoteCache = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Locks:
    """How wheels are found."""

    resolver: locking.Resolver = locking.ResolverName.UV
    exclude_newer: locking.ExcludeNewer = None
    require_identical: locking.RequireIdentical = False
    build: locking.Build = False
    find_links: locking.FindLinks = None
    offline: locking.Offline = False
    ca_bundle: CaBundle = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the record does not say."""

    kind: records.From = None
    python: records.Python = None
    gpu: records.Gpu = None
    ran_on: records.RanOn = None
    framework: records.Framework = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """All options that training and serving images have in common."""

    wanted: Wanted
    outputs: Outputs
    building: Building
    cloud: cloudbuild.Cloud
    locks: Locks
    known: Known
    attesting: Attesting


def ordered(manifest: str, asked: Asked, progress: Progress) -> "Order":
    """Read the manifest and make the order; UsageError for what cannot be meant, ManifestError."""
    check_asked(asked)
    if asked.outputs.stamp_anyway and asked.outputs.stamp is None:
        raise UsageError(
            "no model is stamped", where="--stamp-anyway", todo="give --stamp MODEL_URI too, or leave it out"
        )
    name, data = read(manifest, asked.known, progress)
    return order_of(name, data, asked)


def read(manifest: str, known: Known, progress: Progress) -> tuple[str, bytes]:
    """What a record is called, and the bytes of the manifest that it makes; ManifestError."""
    from envbuild.manifest.importers.environment import RecordOptions

    framework = known.framework.value if known.framework else None
    facts = RecordOptions(python=known.python, gpu=known.gpu, platform=known.ran_on, framework=framework)
    return records.read_record(manifest, known.kind, facts, progress)


def check_asked(asked: Asked) -> None:
    """Refuse what cannot be meant, before anything is read; UsageError."""
    from envbuild.oci.login import refuse_login

    wanted, outputs, building = asked.wanted, asked.outputs, asked.building
    given = {"--base": wanted.base, "--platform": wanted.platform}
    given |= {"--push": outputs.push, "--stamp": outputs.stamp, "--load": outputs.load}
    check_given(given | {"--out": outputs.out, "--template": building.template})
    refuse_login(wanted.base or "", "--base")  # before the plan shows it
    if outputs.archive is not None and (str(outputs.archive) == "-" or is_stdout(outputs.archive)):
        what, todo = "stdout is for the digest", "give --archive a file; `docker load --input FILE` takes it"
        raise UsageError(f"an archive goes into a file, as {what}", where=f"--archive {outputs.archive}", todo=todo)
    if outputs.create_repository and outputs.push is None:
        todo = "give --push REPO too, or leave it out"
        raise UsageError("nothing is pushed that a repository is needed for", where="--create-repository", todo=todo)
    _repository(outputs)
    if building.builder is not BuilderName.CLOUDBUILD:
        _cloud(asked)


def order_of(name: str, data: bytes, asked: Asked) -> "Order":
    """Make the order for a manifest; UsageError for what cannot be meant."""
    from envbuild.build import Order
    from envbuild.files import cache_folder
    from envbuild.match.stack import pairs_of

    wanted, outputs, building, locks = asked.wanted, asked.outputs, asked.building, asked.locks
    return Order(
        manifest=data,
        manifest_name=name,
        variant=wanted.variant.value,
        base=wanted.base,
        cuda_source=wanted.cuda_source.value,
        overrides=pairs_of(wanted.set_ or ()),
        platforms=_platforms(wanted.platform),
        drop=tuple(wanted.drop or ()),
        archive=outputs.archive,
        load=_name(outputs.load),
        bytecode=bool(building.bytecode),
        resolver=locks.resolver.value,
        exclude_newer=locks.exclude_newer,
        out=Path(outputs.out),
        templates=Path(building.template) if building.template else None,
        builder=building.builder.value,
        builder_name=building.builder_name or "",
        cloud=_cloud(asked),
        ca_bundle=locks.ca_bundle,
        system_packages=building.system_packages,
        push=_repository(outputs),
        create_repository=outputs.create_repository,
        stamp=outputs.stamp,
        stamp_anyway=outputs.stamp_anyway,
        cache=cache_folder(),
        require_identical=locks.require_identical,
        import_check=building.import_check.value,
        build=locks.build,
        find_links=tuple(locks.find_links or ()),
        offline=locks.offline,
        remote_cache=not building.no_remote_cache,
        attestations=wanted_of(asked.attesting),
    )


def _repository(outputs: Outputs) -> "Reference | None":
    return references.repository(outputs.push, "--push") if outputs.push is not None else None


def _cloud(asked: Asked) -> "CloudBuild | None":
    return cloudbuild.options(asked.cloud, chosen=asked.building.builder is BuilderName.CLOUDBUILD)


def check_given(options: dict[str, str | None]) -> None:
    """UsageError for an option that is there and says nothing; pathlib would take an empty path for this folder."""
    todo = "give it a value, or leave it out; is a variable unset?"
    for name, value in options.items():
        if value is not None and not value.strip():
            raise UsageError(f"{name} is empty", where=name, todo=todo)


def _name(text: str | None) -> "Reference | None":
    """What an image is called in an engine: a reference, whose registry may be left out."""
    from envbuild.oci.reference import Reference

    try:
        return Reference.parse(text) if text is not None else None
    except ValueError as error:
        raise UsageError(str(error), where=f"--load {text}", todo="give a name such as churn:7") from error


def _platforms(text: str | None) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",")) if text else ()
    if len(set(names)) < len(names) or not all(names):
        raise UsageError("a platform is there twice, or has no name", where=f"--platform {text}", todo="name each once")
    return names
