"""The order that the options of from-manifest and serve make, checked before anything is read."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from envbuild.cli import records
from envbuild.cli.command import how_option
from envbuild.cli.console import Progress, is_stdout
from envbuild.cli.options import FactOptions, ImageOptions, LockOptions
from envbuild.cli.references import repository
from envbuild.errors import UsageError

if TYPE_CHECKING:
    from envbuild.build.cloud_plan import CloudBuild
    from envbuild.build.order import Order
    from envbuild.oci.reference import Reference

_CLOUD_KEYS = {
    "project": "project",
    "region": "region",
    "bucket": "cloudbuild_bucket",
    "timeout": "cloudbuild_timeout",
    "machine": "cloudbuild_machine",
    "account": "cloudbuild_account",
    "pool": "cloudbuild_pool",
    "secret": "cloudbuild_secret",
}
"""The keys of --cloudbuild, and the options of before."""

BuilderName = Literal["assemble", "docker", "cloudbuild"]


@dataclass(kw_only=True, repr=False, eq=False)
class BuilderOptions:
    """What builds the image."""

    builder: Annotated[
        BuilderName, how_option(help="assemble: envbuild itself; the others build from the build context.")
    ] = "assemble"
    builder_name: Annotated[
        str | None, how_option(help="With --builder docker: the builder of docker buildx.", metavar="NAME")
    ] = None
    template: Annotated[
        str | None, how_option(help="Take the build context's templates from here; see envbuild eject.", metavar="DIR")
    ] = None


_Hidden = Annotated[str | None, how_option(hidden=True)]


@dataclass(kw_only=True, repr=False)
class CloudOptions:
    """How Cloud Build builds; all but the first are options of before."""

    cloudbuild: Annotated[
        list[str] | None,
        how_option(
            help="With --builder cloudbuild; repeatable. Keys: project, region, bucket (gs://...), timeout (seconds), "
            "machine, account, pool, secret (pip, netrc or ca=projects/P/secrets/S).",
            metavar="KEY=VALUE",
        ),
    ] = None
    project: _Hidden = None
    region: _Hidden = None
    cloudbuild_bucket: _Hidden = None
    cloudbuild_timeout: Annotated[int | None, how_option(hidden=True)] = None
    cloudbuild_machine: _Hidden = None
    cloudbuild_account: _Hidden = None
    cloudbuild_pool: _Hidden = None
    cloudbuild_secret: Annotated[list[str] | None, how_option(hidden=True)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderOptions:
    """All options that decide the image of a run."""

    image: ImageOptions
    locks: LockOptions
    record: FactOptions
    builder: BuilderOptions = field(default_factory=BuilderOptions)
    cloud: CloudOptions = field(default_factory=CloudOptions)

    def check(self) -> None:
        """Refuse what does not go together, before anything is read; UsageError."""
        from envbuild.oci.reference import refuse_login

        image = self.image
        check_not_empty({
            "--base": image.base, "--platform": image.platform, "--push": image.push, "--stamp": image.stamp,
            "--load": image.load, "--out": image.out, "--template": self.builder.template,
        })  # fmt: skip
        if image.sign is not None and not image.sign.strip():
            raise UsageError(
                "--sign is empty", where="--sign", todo="give a key, or leave it out; is a variable unset?"
            )
        refuse_login(image.base or "", "--base")  # before the plan shows it
        if image.archive is not None and (str(image.archive) == "-" or is_stdout(image.archive)):
            what, todo = "an archive goes into a file, as stdout is for the digest", "give --archive a file"
            raise UsageError(what, where=f"--archive {image.archive}", todo=todo)
        if image.create_repository and image.push is None:
            todo = "give --push REPO too, or leave it out"
            raise UsageError("no repository is pushed to", where="--create-repository", todo=todo)
        if image.push is not None:
            repository(image.push, "--push")
        if self.builder.builder == "cloudbuild":
            _cloud_values(self.cloud)
        else:
            cloud_build(self.cloud, chosen=False)

    def read(self, manifest: str, progress: Progress) -> tuple[str, bytes]:
        """Return the name of a record, and the bytes of the manifest that it makes; ManifestError."""
        return records.read_record(manifest, self.record.kind, records.given_facts(self.record), progress)

    def order(self, name: str, data: bytes) -> "Order":
        """Make the order for a manifest; UsageError for options that make none."""
        from envbuild.attest.attach import AttestOptions
        from envbuild.build.order import Order
        from envbuild.files import cache_folder
        from envbuild.match.stack import pairs_of

        image, locks, builder = self.image, self.locks, self.builder
        return Order(
            manifest=data,
            manifest_name=name,
            variant=locks.variant,
            base=image.base,
            cuda_source=locks.cuda_source,
            overrides=pairs_of(locks.set_ or ()),
            platforms=_platforms(image.platform),
            drop=tuple(locks.drop or ()),
            archive=image.archive,
            load=_engine_name(image.load),
            bytecode=bool(image.bytecode),
            resolver=locks.resolver,
            exclude_newer=locks.exclude_newer,
            out=Path(image.out),
            templates=Path(builder.template) if builder.template else None,
            builder=builder.builder,
            builder_name=builder.builder_name or "",
            cloud=cloud_build(self.cloud, chosen=builder.builder == "cloudbuild"),
            ca_bundle=image.ca_bundle,
            system_packages=image.system_packages,
            push=repository(image.push, "--push") if image.push is not None else None,
            create_repository=image.create_repository,
            stamp=image.stamp,
            stamp_anyway=image.stamp_anyway,
            minimum_record=image.minimum_record or 0,
            cache=cache_folder(),
            require_identical=locks.require_identical,
            import_check=image.import_check,
            build=locks.build,
            find_links=tuple(locks.find_links or ()),
            offline=locks.offline,
            remote_cache=not image.no_remote_cache,
            attestations=AttestOptions(statements=not image.no_attest, key=image.sign),
        )


def check_not_empty(options: dict[str, str | None]) -> None:
    """UsageError for an option with an empty value; pathlib would take an empty path for this folder."""
    for name, value in options.items():
        if value is not None and not value.strip():
            todo = "give it a value, or leave it out; is a variable unset?"
            raise UsageError(f"{name} is empty", where=name, todo=todo)


def _engine_name(text: str | None) -> "Reference | None":
    """Read the name of an image in an engine: a reference, whose registry may be left out."""
    from envbuild.oci.reference import Reference

    try:
        return Reference.parse(text) if text is not None else None
    except ValueError as error:
        raise UsageError(str(error), where=f"--load {text}", todo="give a name such as churn:7") from error


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
    before = asdict(options)
    values: dict[str, Any] = {key: before[name] for key, name in _CLOUD_KEYS.items()}
    for pair in options.cloudbuild or ():
        key, equals, value = pair.partition("=")
        where = f"--cloudbuild {pair}"
        if key not in _CLOUD_KEYS or not equals or not value:
            todo = f"give KEY=VALUE; the keys are {', '.join(_CLOUD_KEYS)}"
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
