"""What a build is asked for, the plans that follow, and its result; and the checks before any work."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from packaging.utils import canonicalize_name

from envbuild.attest.attach import AttestOptions
from envbuild.base.resolve import refuse_base
from envbuild.errors import ManifestError, UsageError
from envbuild.files import UNFINISHED, check_stageable, data_folder
from envbuild.image.assembler import Assembled
from envbuild.image.context import check_templates
from envbuild.lock.faults import origin_fault, version_faults
from envbuild.lock.identity import Proof
from envbuild.lock.index import check_bundle
from envbuild.lock.model import Lock
from envbuild.lock.settings import IndexSettings, read_settings
from envbuild.manifest.model import TrainingManifest
from envbuild.manifest.packages import name_of
from envbuild.match.match import match
from envbuild.match.profiles import FRAMEWORKS, Profiles, load_profiles
from envbuild.match.run import frameworks_of
from envbuild.match.stack import CudaChoice, Decision, Stack, VariantChoice
from envbuild.oci.compression import GZIP, Compression
from envbuild.oci.digest import Digest
from envbuild.oci.image import Content, Image, platform_name
from envbuild.oci.layout import check_archive, is_free
from envbuild.oci.reference import Reference
from envbuild.recipe import Recipe
from envbuild.registry.push import PushResult
from envbuild.stamp.store import parse_model_uri

if TYPE_CHECKING:
    from envbuild.build.cloud_plan import CloudBuild
    from envbuild.engine.load import Loaded
    from envbuild.verify.imports import Imports

LAYOUT_NAME = "latest"
"""What a layout calls its image."""
_OURS = {"oci-layout", "index.json", "blobs", "context"}
"""What envbuild writes into a folder."""
_FIRST = b"oci-layout\0"
"""How an archive of ours begins: with the name of its first member."""
PLATFORMS = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}
BuilderKind = Literal["assemble", "docker", "cloudbuild"]
ImportCheck = Literal["auto", "always", "never"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """The options of a build, and the training manifest's bytes, which are stamped as they are."""

    manifest_bytes: bytes
    manifest_name: str
    """Where the manifest came from, for messages."""
    variant: VariantChoice
    base: str | None
    resolver: Literal["uv", "pip-tools"]
    out: Path
    push: Reference | None
    stamp: str | None
    cache: Path
    stamp_anyway: bool = False
    """Whether a model whose files are not those that the manifest lists is stamped all the same."""
    unloadable: Literal["warn", "refuse", "ignore"] = "warn"
    """What becomes of a model that the environment cannot load; `refuse` ends the build before anything is pushed."""
    require_identical: bool = False
    """Whether a wheel that is not proven to be the run's ends the build."""
    import_check: ImportCheck = "auto"
    """Whether the run's imports are tried in the image before it gets a tag; auto: unless every wheel is the run's."""
    build_from_source: bool = False
    """Whether distributions without a wheel may be built from source, which runs their projects' own code."""
    find_links: tuple[Path, ...] = ()
    """Folders to take wheels from."""
    offline: bool = False
    """Whether wheels may only come from folders of this machine."""
    as_of: str | None = None
    """The moment as of which an incomplete record is completed: `none` for no date, None for the record's own."""
    cuda_source: CudaChoice = "auto"
    overrides: Mapping[str, str] = field(default_factory=dict)
    """What --set replaces in the profile's decisions: `{"cuda": "12.2"}`."""
    platforms: tuple[str, ...] = ()
    """`linux/arm64`; several give an index with one image each, an empty tuple means the run's own."""
    drop: tuple[str, ...] = ()
    """Distributions of the run that are left out by hand: `NAME`, or `NAME=REASON`."""
    imported_only: bool = False
    """Whether what the run did not import, and nothing that stays requires, is left out."""
    templates: Path | None = None
    """The folder whose templates replace the built-in ones."""
    archive: Path | None = None
    """The file that the image is written to as `docker load` takes it."""
    bytecode: bool = False
    """Whether the image has bytecode, which makes it larger and its start faster."""
    compression: Compression = GZIP
    """The compression of the layers that are made."""
    zstd: Compression | None = None
    """That of a second image beside the one of gzip, in one index; None for one image a platform."""
    load: Reference | None = None
    """The image's name in the engine that it is loaded into."""
    remote_cache: bool = True
    """Whether images, layers and notes that others published in the repository are used, not built again."""
    create_repository: bool = False
    """Whether a repository of Artifact Registry that is not there may be created."""
    builder: BuilderKind = "assemble"
    buildx_name: str = ""
    """A builder of buildx to build by, on other machines perhaps; empty for the engine itself."""
    cloud: "CloudBuild | None" = None
    ca_bundle: Path | None = None
    """The CA bundle for package indexes; it replaces pip's and this machine's certificate authorities."""
    system_packages: bool = True
    """Whether the image gets the Debian packages that the run had libraries loaded from and the base lacks."""
    attestations: AttestOptions = field(default_factory=AttestOptions)
    """Attestations of each pushed image, and the key that signs them."""
    minimum_record: int = 0
    """The lowest number of a signed record that is accepted and continued."""
    trusted_keys: tuple[str, ...] = ()
    """Public keys whose signed stamp records are continued, besides those of the signing key."""

    @property
    def makes_index(self) -> bool:
        """Whether the result is an index of several images."""
        return len(self.platforms) > 1 or self.zstd is not None

    def index_settings(self) -> IndexSettings:
        """How indexes are asked for wheels."""
        settings = read_settings(self.find_links, offline=self.offline)
        return replace(settings, ca_bundle=str(self.ca_bundle.absolute())) if self.ca_bundle else settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What will be built for one platform, decided from the manifest and the profiles, without the network."""

    manifest: TrainingManifest
    profiles: Profiles
    stack: Stack
    base: str
    """The base of --base, else the profile's."""
    not_on_index: tuple[str, ...] = ()
    """`mylib==1.0: is an editable install of /src`: not from an index, so it must be built or given as a wheel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformImage:
    """The image of one platform."""

    plan: Plan
    recipe: Recipe
    assembled: Assembled
    pushed: PushResult | None
    """What the push of this image did; None when it was not pushed."""
    tags: tuple[str, ...]
    """The tags that the image gets once everything is attached to it."""
    lock: Lock
    pylock: bytes
    """The lock as it is stamped and written into the context."""
    proof: Proof
    """For each distribution, how its wheel compares with the run's."""
    reused: bool = False
    """Whether the image was found in the registry, and not built now."""
    imports: "Imports | None" = None
    """What was imported in the image; None where it was not tried."""
    base: Image
    """The base, whose packages its bill of materials names."""
    wheelhouse: bool = False
    """Whether the context has every wheel."""
    tag_in_engine: "Callable[[Reference], Loaded] | None" = None
    """Tags the image in the engine that built it; None where no engine did."""
    zstd: "PlatformImage | None" = None
    """The same image with layers of zstd; None where it was not asked for."""

    @property
    def image(self) -> Image:
        """The image itself: manifest, config and layers."""
        return self.assembled.image

    @property
    def platform(self) -> str:
        """`linux/amd64`."""
        return platform_name(self.image)

    @property
    def digest(self) -> Digest:
        """The digest of the image, as the registry has it where it was pushed."""
        return self.pushed.digest if self.pushed else self.image.digest


def each_image(images: Sequence[PlatformImage]) -> list[PlatformImage]:
    """Return the images with those of zstd beside them."""
    return [each for image in images for each in (image, image.zstd) if each]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """What was built, and where it is now."""

    images: tuple[PlatformImage, ...]
    """One for each platform, in the order in which they were asked for."""
    content: Content
    """The image, or the index of all images."""
    pushed: PushResult | None
    """None when nothing was pushed."""
    layout: Path | None
    archive: Path | None
    loaded: "Loaded | None"
    stamp_record: str | None = None
    """The name of the stamp record beside the model; None when nothing was stamped."""

    @property
    def reference(self) -> Reference | None:
        """By digest, confirmed by the registry; None when the image was not pushed."""
        return self.pushed.reference if self.pushed else None

    @property
    def digest(self) -> Digest:
        """The digest of the image or index, as the registry has it where it was pushed."""
        return self.pushed.digest if self.pushed else self.content.digest


def make_plans(request: BuildRequest, manifest: TrainingManifest) -> tuple[Plan, ...]:
    """Decide the stack for each platform from the request's manifest, which is parsed already, and the profiles' files.

    ManifestError, MatchError, and UsageError or BaseError for a base that does not fit.
    """
    if not manifest.distributions:
        todo = "capture the run again, where its packages are installed"
        raise ManifestError("the manifest lists no distribution", where=request.manifest_name, todo=todo)
    profiles = load_profiles(data_folder("profiles"), FRAMEWORKS if request.overrides else frameworks_of(manifest))
    plans = tuple(_plan(request, manifest, profiles, platform) for platform in request.platforms or (None,))
    if request.builder == "cloudbuild":
        from envbuild.build.cloud import check_plan  # noqa: PLC0415 - Google's library is slow to import

        for plan in plans:
            check_plan(plan)
    return plans


def _plan(request: BuildRequest, manifest: TrainingManifest, profiles: Profiles, platform: str | None) -> Plan:
    stack = match(
        manifest,
        profiles,
        request.variant,
        cuda_source=request.cuda_source,
        overrides=request.overrides,
        machine=platform,
        as_of=request.as_of,
        drop=request.drop,
        imported_only=request.imported_only,
    )
    if request.base:
        refuse_base(request.base, stack.machine, request.cache, stack.python, stack.glibc_minimum)
        asked = Decision(what="base", value=request.base, reason="it was asked for", source="--base")
        stack = replace(stack, decisions=(*(it for it in stack.decisions if it.what != "base"), asked))
    kept = {name_of(it) for it in stack.requirements}
    faults = [origin_fault(it) for it in manifest.distributions if canonicalize_name(it.name) in kept]
    faults += version_faults(manifest.distributions, {*stack.dropped, *stack.not_imported})
    not_on_index = tuple(f"{it.requirement}: {it.why}" for it in faults if it is not None)
    return Plan(
        manifest=manifest, profiles=profiles, stack=stack, base=request.base or stack.base, not_on_index=not_on_index
    )


def check_request(request: BuildRequest) -> None:
    """Refuse what can be checked without a network, before plans are made and in dry runs, too.

    UsageError for options that do not go together and places that cannot be written, BuildError for a broken template.
    """
    check_outputs(request)
    if request.templates:
        check_templates(request.templates)
    if request.ca_bundle:
        check_bundle(request.ca_bundle)
    if request.builder == "cloudbuild":
        from envbuild.build.cloud import check_options  # noqa: PLC0415 - Google's library is slow to import

        check_options(request)


def check_outputs(request: BuildRequest, *, context: bool = True, model: str | None = None) -> None:
    """Refuse places that cannot be written, and those in the folder of `model`, else of the stamped one; UsageError.

    Where no build context is written, `--out` is for a layout alone.
    """
    layout = not (request.push or request.archive or request.load)
    written = {"--out": request.out if layout or context else None, "--archive": request.archive}
    if model := model or request.stamp:
        for option, place in written.items():
            _check_outside(model, place, option)
    if layout or context:
        _check_folder(request.out)
    if layout and not is_free(request.out, LAYOUT_NAME):
        todo = "give --out another folder, or remove this one: envbuild would replace its index.json"
        raise UsageError("the folder is an OCI layout that envbuild did not write", where=str(request.out), todo=todo)
    if not request.archive:
        return
    check_archive(request.archive)
    if _is_foreign(request.archive):
        todo = "remove it, or give --archive another file"
        raise UsageError("the file exists, and is not an archive of envbuild", where=str(request.archive), todo=todo)
    place = (request.out / "context").resolve()
    if context and request.archive.resolve() in (place, *place.parents):
        where = f"--archive {request.archive}, --out {request.out}"
        raise UsageError("the archive would lie where the build context goes", where=where, todo="give another file")


def _check_outside(model: str, place: Path | None, option: str) -> None:
    """Refuse a place in a model's folder; UsageError."""
    uri = parse_model_uri(model)
    if place is None or uri.bucket is not None or not Path(uri.path).is_dir():
        return
    if place.resolve().is_relative_to(Path(uri.path).resolve()):
        what, todo = "what is written into the model's folder would change the model", f"give {option} another place"
        raise UsageError(what, where=f"{option} {place}, {model}", todo=todo)


def _check_folder(folder: Path) -> None:
    """Refuse a path where no folder can be made, and a folder that holds files of somebody else."""
    check_stageable(folder, "--out")
    try:
        found = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    except OSError as error:
        todo = "give --out a folder that this user may read, or that can be made"
        what = f"what the folder holds cannot be seen: {error.strerror}"
        raise UsageError(what, where=f"--out {folder}", todo=todo) from error
    if others := sorted(it for it in found - _OURS if not it.startswith(UNFINISHED)):
        todo = "give --out a folder of its own; it is made when it is missing"
        raise UsageError(f"the folder holds other files, such as {others[0]}", where=str(folder), todo=todo)


def _is_foreign(path: Path) -> bool:
    """Whether there is a file that is no archive of envbuild."""
    try:
        with path.open("rb") as file:
            head = file.read(len(_FIRST))
    except OSError:
        return False  # there is none, or writing will say what is wrong
    return path.is_file() and head not in (b"", _FIRST)
