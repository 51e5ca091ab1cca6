"""The options that several commands have in common, and the build request that from-manifest and serve make of them."""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from envbuild.cli.command import (
    ADVANCED,
    HOW,
    WHAT,
    WHERE,
    advanced_option,
    flag,
    how_option,
    option,
    what_option,
    where_option,
)
from envbuild.errors import UsageError

if TYPE_CHECKING:
    from envbuild.build.cloud_plan import CloudBuild
    from envbuild.build.request import BuildRequest
    from envbuild.oci.compression import Compression
    from envbuild.oci.reference import Reference

VariantName = Literal["auto", "gpu", "cpu"]
CudaSourceName = Literal["auto", "wheels", "base"]
BuilderKind = Literal["assemble", "docker", "cloudbuild"]
ResolverName = Literal["uv", "pip-tools"]
ImportCheckName = Literal["auto", "always", "never"]
SignatureFormatName = Literal["bundle", "legacy", "both"]
FrameworkName = Literal["tensorflow", "torch", "jax", "none"]
FormatName = Literal[
    "pip-freeze", "pip-list", "pip-inspect", "requirements", "pylock", "uv-lock", "poetry-lock", "pdm-lock",
    "pipfile-lock", "conda-environment", "conda-list", "pixi-lock", "conda-lock", "mlflow", "wandb",
]  # fmt: skip

Manifest = Annotated[
    str,
    typer.Argument(
        help="A manifest, or another tool's record as for `envbuild convert`: a path, - for stdin, or gs://.",
        metavar="MANIFEST",
    ),
]
AsJson = Annotated[bool, where_option("--json", help="Print one JSON object.")]
Platform = Annotated[
    str | None, what_option(help="linux/amd64 or linux/arm64; by default this machine's.", metavar="PLATFORM")
]
CreateRepository = Annotated[
    bool, where_option("--create-repository", help="Create the repository in Artifact Registry if it does not exist.")
]
CudaSource = Annotated[
    CudaSourceName, advanced_option(help="Where CUDA comes from; auto: from wheels where there are any.")
]
Set = Annotated[
    list[str] | None,
    advanced_option("--set", help="Override base, cuda, cudnn, driver_minimum or python.", metavar="KEY=VALUE"),
]
FindLinks = Annotated[
    list[Path] | None, how_option(help="Take wheels from this folder too; repeatable.", metavar="DIR")
]
Offline = Annotated[bool, how_option("--offline", help="Take wheels from folders only, and ask no index.")]
Signed = Annotated[
    str | None,
    how_option(help="Require signatures by this public key, in PEM, or keyless:ISSUER=IDENTITY.", metavar="KEY"),
]
MinimumRecord = Annotated[
    int | None,
    advanced_option(help="Refuse a signed stamp with a lower number.", metavar="N", min=1),
]


@dataclass(kw_only=True, repr=False, eq=False)
class FactOptions:
    """The facts of a run that its record lacks."""

    kind: FormatName | None = option(
        ADVANCED, "The record's format, such as pip-freeze; by default detected.", "FORMAT", "--from"
    )
    python: str | None = option(WHAT, "The run's Python, as in 3.10.12, if the record lacks it.", "VERSION")
    gpu: str | None = option(WHAT, 'The run\'s GPU, such as "Tesla T4", if the record lacks it.', "NAME|none")
    ran_on: str | None = option(WHAT, "The run's platform, if the record lacks it: linux/amd64.", "OS/MACHINE")
    framework: FrameworkName | None = option(WHAT, "The framework that the run used, if the record has several.")
    imported: list[str] | None = option(WHAT, "What the run imported, if the record lacks it: pandas,sklearn.", "NAMES")


@dataclass(kw_only=True, repr=False, eq=False)
class LockOptions:
    """How wheels are chosen and found."""

    variant: VariantName = option(WHAT, "auto: gpu if the run used GPUs.", default="auto")
    cuda_source: CudaSource = "auto"
    set_: Set = None
    drop: list[str] | None = option(WHAT, "Leave this distribution of the run out; repeatable.", "NAME[=REASON]")
    only_imported: bool = flag(WHAT, "Leave out what the run neither imported nor required for that.")
    resolver: ResolverName = option(ADVANCED, "The program that resolves.", default="uv")
    exclude_newer: str | None = option(
        ADVANCED, "Complete an incomplete record as of this date; else its own.", "DATE|none"
    )
    require_identical: bool = flag(HOW, "Fail unless every wheel is proven to be the run's.")
    build: bool = flag(HOW, "Build distributions without a wheel; runs their code.")
    find_links: FindLinks = None
    offline: Offline = False


@dataclass(kw_only=True, repr=False, eq=False)
class ImageOptions:
    """The image, and where it goes."""

    base: str | None = option(WHAT, "The base: an image reference, an OCI layout, or debian:SUITE.", "REF")
    platform: str | None = option(WHAT, "linux/amd64,linux/arm64 or one of them; by default the run's.", "PLATFORMS")
    out: str = option(WHERE, "Write the build context and the OCI layout here.", "DIR", default="envbuild-out")
    push: str | None = option(WHERE, "Push to this repository instead of writing a layout.", "REPO")
    create_repository: CreateRepository = False
    archive: Path | None = option(WHERE, "Write the image to this file, for docker load or podman load.", "FILE")
    load: str | None = option(WHERE, "Load the image into the local engine under this name.", "NAME")
    stamp: str | None = option(WHERE, "Stamp the digest on this model: gs://..., or a folder.", "MODEL_URI")
    stamp_anyway: bool = flag(ADVANCED, "Stamp a model with other files, recorded, or that may not load.")
    sign: str | None = option(WHERE, "Sign with this private key: PEM, env://VARIABLE, gcpkms://... or keyless.", "KEY")
    signature_format: SignatureFormatName | None = option(
        ADVANCED, "bundle (sigstore's), legacy (cosign's tags) or both, the default.", "FORMAT"
    )
    no_attest: bool = flag(ADVANCED, "Attach no bill of materials and no provenance.")
    signed: str | None = option(
        HOW,
        "PEM, or keyless:ISSUER=IDENTITY. With --sign: continue this key's records too. "
        "When serving: the key that signed the stamp.",
        "KEY",
    )
    minimum_record: MinimumRecord = None
    bytecode: bool | None = option(
        HOW, "Compile modules: larger, starts faster. On for serving.", None,
        "--bytecode/--no-bytecode", show_default=False,
    )  # fmt: skip
    system_packages: bool = option(
        HOW, "Add the Debian packages whose libraries the run loaded and the base lacks.", default=True
    )
    import_check: ImportCheckName = option(
        HOW, "Import the run's modules in the image before it is pushed; auto: if in doubt.", default="auto"
    )
    compression: str = option(HOW, "For new layers; gzip,zstd: both in an index.", "gzip|zstd[:LEVEL]", default="gzip")
    recompress_base: bool = flag(ADVANCED, "Compress the base's layers as --compression says, too.")
    no_remote_cache: bool = flag(ADVANCED, "Build even if the registry has this environment.")
    ca_bundle: Path | None = option(ADVANCED, "Trust these certificate authorities (PEM) for indexes.", "FILE")
    dry_run: bool = flag(HOW, "Print the plan, and stop.")
    as_json: AsJson = False


@dataclass(kw_only=True, repr=False, eq=False)
class BuilderOptions:
    """What builds the image."""

    builder: BuilderKind = option(
        HOW, "assemble: envbuild itself; the others build from the build context.", default="assemble"
    )
    builder_name: str | None = option(HOW, "With --builder docker: the builder of docker buildx.", "NAME")
    template: str | None = option(HOW, "Take the build context's templates from here; see envbuild eject.", "DIR")


@dataclass(kw_only=True, repr=False)
class CloudOptions:
    """How Cloud Build builds; all but the first are deprecated options."""

    cloudbuild: list[str] | None = option(
        HOW,
        "With --builder cloudbuild; repeatable. Keys: project, region, bucket (gs://...), timeout (seconds), "
        "machine, account, pool, secret (pip, netrc or ca=projects/P/secrets/S).",
        "KEY=VALUE",
    )
    project: str | None = option(HOW, "", hidden=True)
    region: str | None = option(HOW, "", hidden=True)
    cloudbuild_bucket: str | None = option(HOW, "", hidden=True)
    cloudbuild_timeout: int | None = option(HOW, "", hidden=True)
    cloudbuild_machine: str | None = option(HOW, "", hidden=True)
    cloudbuild_account: str | None = option(HOW, "", hidden=True)
    cloudbuild_pool: str | None = option(HOW, "", hidden=True)
    cloudbuild_secret: list[str] | None = option(HOW, "", hidden=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """All options that decide the image of a run."""

    image: ImageOptions
    locks: LockOptions
    facts: FactOptions
    builder: BuilderOptions = field(default_factory=BuilderOptions)
    cloud: CloudOptions = field(default_factory=CloudOptions)

    def check(self) -> None:
        """Refuse what does not go together, before anything is read; UsageError."""
        from envbuild.oci.reference import refuse_login

        image = self.image
        check_not_empty({
            "--base": image.base, "--platform": image.platform, "--push": image.push, "--stamp": image.stamp,
            "--load": image.load, "--out": image.out, "--template": self.builder.template,
            "--sign": image.sign,
        })  # fmt: skip
        refuse_login(image.base or "", "--base")  # before the plan shows it
        _compressions(image)
        if str(image.archive) == "-":
            what, todo = "an archive goes into a file, as stdout is for the digest", "give --archive a file"
            raise UsageError(what, where="--archive -", todo=todo)
        if image.create_repository and image.push is None:
            todo = "give --push REPO too, or leave it out"
            raise UsageError("no repository is pushed to", where="--create-repository", todo=todo)
        if image.push is not None:
            repository(image.push, "--push")
        if self.builder.builder == "cloudbuild":
            _cloud_values(self.cloud)
        else:
            cloud_build(self.cloud, chosen=False)

    def build_request(self, name: str, data: bytes) -> "BuildRequest":
        """Make the build request for a manifest; UsageError for options that contradict each other."""
        from envbuild.attest.attach import AttestOptions
        from envbuild.build.request import BuildRequest
        from envbuild.files import cache_folder
        from envbuild.match.stack import pairs_of

        image, locks, builder = self.image, self.locks, self.builder
        compression, zstd = _compressions(image)
        return BuildRequest(
            manifest_bytes=data,
            manifest_name=name,
            variant=locks.variant,
            base=image.base,
            cuda_source=locks.cuda_source,
            overrides=pairs_of(locks.set_ or ()),
            platforms=_platforms(image.platform),
            drop=tuple(locks.drop or ()),
            imported_only=locks.only_imported,
            archive=image.archive,
            load=read_reference(image.load, "--load", "give a name such as churn:7") if image.load else None,
            bytecode=bool(image.bytecode),
            compression=compression,
            zstd=zstd,
            resolver=locks.resolver,
            as_of=locks.exclude_newer,
            out=Path(image.out),
            templates=Path(builder.template) if builder.template else None,
            builder=builder.builder,
            buildx_name=builder.builder_name or "",
            cloud=cloud_build(self.cloud, chosen=builder.builder == "cloudbuild"),
            ca_bundle=image.ca_bundle,
            system_packages=image.system_packages,
            push=repository(image.push, "--push") if image.push is not None else None,
            create_repository=image.create_repository,
            stamp=image.stamp,
            stamp_anyway=image.stamp_anyway,
            unloadable="warn" if image.stamp is None or image.stamp_anyway else "refuse",
            minimum_record=image.minimum_record or 0,
            cache=cache_folder(),
            require_identical=locks.require_identical,
            import_check=image.import_check,
            build_from_source=locks.build,
            find_links=tuple(locks.find_links or ()),
            offline=locks.offline,
            remote_cache=not image.no_remote_cache,
            attestations=AttestOptions(statements=not image.no_attest, key=image.sign, format=image.signature_format),
        )


def check_not_empty(options: dict[str, str | None]) -> None:
    """UsageError for an option with an empty value; pathlib would take an empty path for this folder."""
    for name, value in options.items():
        if value is not None and not value.strip():
            todo = "give it a value, or leave it out; is a variable unset?"
            raise UsageError(f"{name} is empty", where=name, todo=todo)


def read_reference(text: str, where: str, todo: str) -> "Reference":
    """Read the name of an image that an argument `where` has; UsageError with `todo` for one that is none."""
    from envbuild.oci.reference import Reference, refuse_login

    refuse_login(text, where)
    try:
        return Reference.parse(text)
    except ValueError as error:
        raise UsageError(str(error), where=f"{where} {text}", todo=todo) from error


def repository(text: str, where: str) -> "Reference":
    """Read the reference that an argument `where` pushes to; UsageError for one that cannot be pushed to."""
    from envbuild.oci.reference import is_own_tag

    todo = "give a repository such as europe-docker.pkg.dev/PROJECT/REPO/IMAGE or 127.0.0.1:5000/IMAGE"
    reference = read_reference(text, where, todo)
    if "/" not in text:
        raise UsageError("the repository has no registry", where=f"{where} {text}", todo=todo)
    if reference.tag and is_own_tag(reference.tag):
        todo = "choose another tag; envbuild keeps its own records under such tags"
        raise UsageError("the tag is reserved for envbuild", where=f"{where} {text}", todo=todo)
    if reference.digest:
        todo = "leave out what follows @"
        raise UsageError("a push cannot choose its digest", where=f"{where} {text}", todo=todo)
    return reference


def _compressions(image: ImageOptions) -> "tuple[Compression, Compression | None]":
    """Return the compression, and that of a second image in zstd."""
    from envbuild.oci.compression import Compression

    where, todo = f"--compression {image.compression}", "give gzip, zstd, a level such as zstd:1, or gzip,zstd"
    try:
        parsed = [Compression.parse(text.strip()) for text in image.compression.split(",")]
    except ValueError as error:
        raise UsageError(str(error), where=where, todo=todo) from error
    first, *others = sorted((replace(it, base=image.recompress_base) for it in parsed), key=lambda it: it.level)
    if len(others) > 1 or (others and (first.level or not others[0].level)):
        raise UsageError("only gzip and zstd go together, each once", where=where, todo=todo)
    return first, others[0] if others else None


def _platforms(text: str | None) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",")) if text else ()
    if len(set(names)) < len(names) or not all(names):
        raise UsageError("a platform is there twice, or is empty", where=f"--platform {text}", todo="name each once")
    return names


def cloud_build(options: CloudOptions, *, chosen: bool) -> "CloudBuild | None":
    """Return how Cloud Build builds; None for other builders, which have none of these options (UsageError)."""
    if not chosen:
        if options != CloudOptions():
            todo = "add --builder cloudbuild, or leave them out"
            raise UsageError("options of Cloud Build need --builder cloudbuild", where="--builder", todo=todo)
        return None
    from envbuild.build.cloud_plan import CloudBuild, Secret, find_project

    values = _cloud_values(options)
    return CloudBuild(
        project=find_project(values["project"]),
        region=values["region"] or "global",
        bucket=values["bucket"] or "",
        timeout=3600 if values["timeout"] is None else values["timeout"],
        machine_type=values["machine"] or "",
        service_account=values["account"] or "",
        worker_pool=values["pool"] or "",
        secrets=tuple(Secret.parse(text) for text in values["secret"] or ()),
    )


def _cloud_values(options: CloudOptions) -> dict[str, Any]:
    """Return the settings by the keys of --cloudbuild; UsageError for unknown ones, and for one that is given twice."""
    values = {name.removeprefix("cloudbuild_"): value for name, value in asdict(options).items()}
    del values["cloudbuild"]
    for pair in options.cloudbuild or ():
        key, equals, value = pair.partition("=")
        where = f"--cloudbuild {pair}"
        if key not in values or not equals or not value:
            todo = f"give KEY=VALUE; the keys are {', '.join(values)}"
            raise UsageError("unknown setting of Cloud Build", where=where, todo=todo)
        if key == "secret":
            values[key] = [*(values[key] or ()), value]
        elif values[key] is not None:
            raise UsageError(f"{key} is given twice", where=where, todo="give it once")
        else:
            values[key] = value
    if isinstance(timeout := values["timeout"], str):
        if not timeout.isdecimal():
            where, todo = f"--cloudbuild timeout={timeout}", "give a whole number, such as timeout=3600"
            raise UsageError("the timeout is not a number of seconds", where=where, todo=todo)
        values["timeout"] = int(timeout)
    return values
