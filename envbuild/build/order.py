"""What is wanted, what was decided, and what came of it; and the checks that need no work."""

from collections.abc import Callable, Mapping
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
from envbuild.lock.faults import origin_fault
from envbuild.lock.identity import Proof
from envbuild.lock.index import check_bundle
from envbuild.lock.model import Lock
from envbuild.manifest.model import TrainingManifest
from envbuild.manifest.packages import name_of
from envbuild.manifest.reader import read_manifest
from envbuild.match.match import match
from envbuild.match.profiles import FRAMEWORKS, Profiles, load_profiles
from envbuild.match.run import frameworks_of
from envbuild.match.stack import CudaChoice, Decision, Stack, VariantChoice
from envbuild.oci.digest import Digest
from envbuild.oci.image import Content, platform_name
from envbuild.oci.layout import check_archive, is_free
from envbuild.oci.reference import Reference
from envbuild.recipe import Recipe
from envbuild.registry.push import PushResult

if TYPE_CHECKING:
    from envbuild.build.cloud_plan import CloudBuild
    from envbuild.engine.load import Loaded
    from envbuild.verify.imports import Imports

LAYOUT_NAME = "latest"
"""What a layout calls its image."""
_OURS = {"oci-layout", "index.json", "blobs", "context"}
"""What envbuild writes into a folder."""
_FIRST = b"oci-layout\0"
"""How an archive begins: with the name of its first member."""
PLATFORMS = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}
Builder = Literal["assemble", "docker", "cloudbuild"]
ImportCheck = Literal["auto", "always", "never"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is wanted."""

    manifest: bytes
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
    require_identical: bool = False
    """Whether a wheel that is not proven to be the run's ends the build."""
    import_check: ImportCheck = "auto"
    """Whether what the run imported is imported in the image before that has a name; auto: where nothing proves it."""
    build: bool = False
    """Whether what no index has as a wheel may be built, which runs its projects' own code."""
    find_links: tuple[Path, ...] = ()
    """Folders to take wheels from."""
    offline: bool = False
    """Whether folders are all that may be asked for wheels."""
    as_of: str | None = None
    """As of which moment an incomplete record is completed: `none` for no date, None for the record's own."""
    cuda_source: CudaChoice = "auto"
    overrides: Mapping[str, str] = field(default_factory=dict)
    """What is set by hand against the profiles."""
    platforms: tuple[str, ...] = ()
    """`linux/arm64`; several give an index with one image each, an empty tuple means the run's own."""
    drop: tuple[str, ...] = ()
    """Distributions of the run that are left out by hand."""
    templates: Path | None = None
    """The folder whose templates replace the built-in ones."""
    archive: Path | None = None
    """The file that the image is written to as `docker load` takes it."""
    bytecode: bool = False
    """Whether the image has bytecode, which makes it larger and its start faster."""
    load: Reference | None = None
    """What the image is called in the engine that it is loaded into."""
    remote_cache: bool = True
    """Whether what the registry has of this environment is taken for what it says it is."""
    create_repository: bool = False
    """Whether a repository of Artifact Registry that is not there may be created."""
    builder: Builder = "assemble"
    builder_name: str = ""
    """A builder of buildx to build by, on other machines perhaps; empty for the engine itself."""
    cloud: "CloudBuild | None" = None
    ca_bundle: Path | None = None
    """Certificate authorities that indexes are believed by, before those of pip and of this machine."""
    system_packages: bool = True
    """Whether the image gets the Debian packages that the run had libraries loaded from and the base lacks."""
    attestations: AttestOptions = field(default_factory=AttestOptions)
    """Attestations of each pushed image, and the key that signs them."""
    minimum_record: int = 0
    """The lowest number of a signed record that is accepted and continued."""
    continued: tuple[str, ...] = ()
    """Public keys whose records training continues besides those of the key that signs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What will be built, decided without the network."""

    manifest: TrainingManifest
    profiles: Profiles
    stack: Stack
    base: str
    """The base that was asked for, else the profile's."""
    not_on_index: tuple[str, ...] = ()
    """`mylib==1.0: is an editable install of /src`: what no index can have, and locking will want built or given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The image of one platform."""

    plan: Plan
    recipe: Recipe
    assembled: Assembled
    pushed: PushResult | None
    """What the push of this image did; None when it was not pushed."""
    tags: tuple[str, ...]
    """What names the image there when everything is attached to it."""
    lock: Lock
    pylock: bytes
    """The lock as it is stamped and written into the context."""
    proof: Proof
    """How many wheels are the files that the run had."""
    found: bool = False
    """Whether the image was found in the registry, and not built now."""
    imports: "Imports | None" = None
    """What was imported in the image; None where it was not tried."""
    wheelhouse: bool = False
    """Whether the context has every wheel."""
    named: "Callable[[Reference], Loaded] | None" = None
    """Gives the image a name in the engine that built it; None where no engine did."""

    @property
    def platform(self) -> str:
        """`linux/amd64`."""
        return platform_name(self.assembled.image)

    @property
    def digest(self) -> Digest:
        """The digest of the image, as the registry has it where it was pushed."""
        return self.pushed.digest if self.pushed else self.assembled.image.digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was built, and where it is now."""

    parts: tuple[Part, ...]
    """One for each platform, in the order in which they were asked for."""
    content: Content
    """The image, or the index of all images."""
    pushed: PushResult | None
    """None when nothing was pushed."""
    layout: Path | None
    archive: Path | None
    loaded: "Loaded | None"
    stamped: str | None = None
    """The record's name beside the model."""

    @property
    def image(self) -> Reference | None:
        """By digest, confirmed by the registry; None when the image was not pushed."""
        return self.pushed.reference if self.pushed else None

    @property
    def digest(self) -> Digest:
        """The digest of the image or index, as the registry has it where it was pushed."""
        return self.pushed.digest if self.pushed else self.content.digest


def make_plans(order: Order) -> tuple[Plan, ...]:
    """Read the manifest and decide the stack, once for each platform."""
    manifest = read_manifest(order.manifest, order.manifest_name)
    if not manifest.distributions:
        todo = "capture the run again, where its packages are installed"
        raise ManifestError("the manifest lists no distribution", where=order.manifest_name, todo=todo)
    profiles = load_profiles(data_folder("profiles"), FRAMEWORKS if order.overrides else frameworks_of(manifest))
    plans = tuple(_plan(order, manifest, profiles, machine) for machine in order.platforms or (None,))
    if order.builder == "cloudbuild":
        from envbuild.build.cloud import check_plan  # noqa: PLC0415 - Google's library is slow to import

        for plan in plans:
            check_plan(plan)
    return plans


def _plan(order: Order, manifest: TrainingManifest, profiles: Profiles, machine: str | None) -> Plan:
    stack = match(
        manifest,
        profiles,
        order.variant,
        cuda_source=order.cuda_source,
        overrides=order.overrides,
        machine=machine,
        as_of=order.as_of,
        drop=order.drop,
    )
    if order.base:
        refuse_base(order.base, stack.machine, order.cache, stack.python, stack.glibc_minimum)
        asked = Decision(what="base", value=order.base, reason="it was asked for", source="--base")
        stack = replace(stack, decisions=(*(it for it in stack.decisions if it.what != "base"), asked))
    kept = {name_of(it) for it in stack.requirements}
    faults = [origin_fault(it) for it in manifest.distributions if canonicalize_name(it.name) in kept]
    not_on_index = tuple(f"{it.requirement}: {it.why}" for it in faults if it is not None)
    return Plan(
        manifest=manifest, profiles=profiles, stack=stack, base=order.base or stack.base, not_on_index=not_on_index
    )


def check_order(order: Order) -> None:
    """Refuse what shows without asking anybody, so before plans are made and in dry runs, too.

    UsageError for options that do not go together and places that cannot be written, BuildError for a broken template.
    """
    check_outputs(order)
    if order.templates:
        check_templates(order.templates)
    if order.ca_bundle:
        check_bundle(order.ca_bundle)
    if order.builder == "cloudbuild":
        from envbuild.build.cloud import check_options  # noqa: PLC0415 - Google's library is slow to import

        check_options(order)


def check_outputs(order: Order, *, context: bool = True) -> None:
    """Refuse places that cannot be written; UsageError.

    Where no build context is written, `--out` is for a layout alone.
    """
    layout = not (order.push or order.archive or order.load)
    if layout or context:
        _check_folder(order.out)
    if layout and not is_free(order.out, LAYOUT_NAME):
        todo = "give --out another folder, or remove this one: nothing would name its images any more"
        raise UsageError("the folder is an OCI layout that envbuild did not write", where=str(order.out), todo=todo)
    if not order.archive:
        return
    check_archive(order.archive)
    if _is_foreign(order.archive):
        todo = "remove it, or give --archive another file"
        raise UsageError("the file exists, and is not an archive of envbuild", where=str(order.archive), todo=todo)
    place = (order.out / "context").resolve()
    if context and order.archive.resolve() in (place, *place.parents):
        where = f"--archive {order.archive}, --out {order.out}"
        raise UsageError("the archive would lie where the build context goes", where=where, todo="give another file")


def _check_folder(folder: Path) -> None:
    """Refuse what no folder can be made of, and one of somebody else's files, which the image would lie between."""
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
    """Whether a file is there that no archive of ours is."""
    try:
        with path.open("rb") as file:
            head = file.read(len(_FIRST))
    except OSError:
        return False  # there is none, or writing will say what is wrong
    return path.is_file() and head not in (b"", _FIRST)
