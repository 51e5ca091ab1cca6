"""What is wanted, what was decided, and what came of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from envbuild.attest.attach import AttestOptions
from envbuild.image.assembler import Assembled
from envbuild.lock.identity import Proof
from envbuild.lock.model import Lock
from envbuild.manifest.model import TrainingManifest
from envbuild.match.profiles import Profiles
from envbuild.match.stack import CudaChoice, Stack, VariantChoice
from envbuild.oci.digest import Digest
from envbuild.oci.image import Content, platform_name
from envbuild.oci.reference import Reference
from envbuild.recipe import Recipe
from envbuild.registry.push import PushResult

if TYPE_CHECKING:
    from envbuild.build.cloudbuild import CloudBuild
    from envbuild.engine.load import Loaded
    from envbuild.verify.imports import Imports


PLATFORMS = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}
Builder = Literal["assemble", "docker", "cloudbuild"]
ImportCheck = Literal["auto", "always", "never"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporter:
    """Where the stages tell what they do."""

    step: Callable[[str], None]
    note: Callable[[str], None]
    warn: Callable[[str], None]
    progress: Callable[[str, int, int | None], None]
    compared: Callable[[int, int], object]
    """How many wheels were compared with the run's, of how many."""


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
    exclude_newer: str | None = None
    """As of which moment an incomplete record is completed: `none` for no date, None for the record's own."""
    cuda_source: CudaChoice = "auto"
    overrides: Mapping[str, str] = field(default_factory=dict)
    """What is set by hand against the profiles."""
    platforms: tuple[str, ...] = ()
    """`linux/arm64`; several give an index of as many images, none the run's own."""
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
    """What makes the image."""
    builder_name: str = ""
    """A builder of buildx to build by, on other machines perhaps; empty for the engine itself."""
    cloud: "CloudBuild | None" = None
    """Options of Cloud Build."""
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
    """What will be built, decided without touching network or disk."""

    manifest: TrainingManifest
    profiles: Profiles
    stack: Stack
    base: str
    """The base that was asked for, else the profile's."""
    unserved: tuple[str, ...] = ()
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
        return _digest(self.pushed) if self.pushed else self.assembled.image.digest


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
        return _digest(self.pushed) if self.pushed else self.content.digest


def _digest(pushed: PushResult) -> Digest:
    assert pushed.reference.digest is not None, "a push ends with a reference by digest"
    return pushed.reference.digest
