"""The order for a serving image, the training image below it, and the result."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from envbuild.build.request import BuildRequest
from envbuild.errors import counted
from envbuild.image.child import Parent
from envbuild.lock.model import Lock
from envbuild.manifest.model import TrainingManifest
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image
from envbuild.oci.reference import Reference
from envbuild.registry.push import PushResult
from envbuild.verify.findings import Finding

if TYPE_CHECKING:
    from envbuild.stamp.record import StampedImage
    from envbuild.verify.sources.model import StampedModel

ServerName = Literal["fastapi", "tf-serving", "triton"]
Gate = Literal["auto", "require", "off"]
APP_FOLDER = "/app"
"""Where the application lies in an image, which is its working folder."""
MODEL_FOLDER = "/model"
"""Where an embedded model lies in an image."""
PORT = 8080
"""Where a server listens unless AIP_HTTP_PORT says otherwise (Vertex AI, custom container requirements)."""


UNTRIED = "serve-untried"
NOT_STARTED = "untried"
"""The gate of an image that nothing started before it was stamped."""


def untried(reason: str, todo: str) -> Finding:
    """The finding on an image that nothing started before it is used."""
    run = "`envbuild deploy-check MODEL IMAGE --golden` runs its golden sample now, in bubblewrap too"
    return Finding(
        about="gate", rule=UNTRIED, agrees=False, severity="warning", says=f"the image was not tried: {reason}",
        why="the image may not start, answer or predict what was recorded", todo=f"{todo}; {run}",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What answers requests: its distributions, its files, and how it is started and asked."""

    requirements: tuple[str, ...] = ()
    """`fastapi>=0.115`: locked above the training environment."""
    files: Mapping[str, bytes | Path] = field(default_factory=dict)
    """By their absolute paths in the image."""
    cmd: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    health: str = ""
    """The route that answers 200 when predictions can be asked for; empty where none is known."""
    predict: str = ""
    """The route that takes `{"instances": [...]}`; empty where none is known."""
    variables: tuple[tuple[str, str], ...] = ()
    """Environment variables of the image that set the server up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOrder:
    """What a serving image is made of, and where it goes."""

    build_request: BuildRequest
    """Where it goes and how wheels are found, as for a training image.

    Its manifest is the model's own; of a stamped model it is empty until the origin is found.
    """
    model: str | None
    """The stamped model's URI; None where only a manifest was given."""
    extras: tuple[str, ...] = ()
    """Requirements that are locked above the training environment."""
    server: ServerName | None = None
    server_version: str | None = None
    """Of the program that tf-serving or triton name."""
    server_image: str | None = None
    """The image of that program, which is stamped by digest."""
    app: Path | None = None
    """The folder that is put into the image as `/app`."""
    cmd: tuple[str, ...] = ()
    """What is started; empty for the server's."""
    embed: bool = False
    """Whether the model lies in the image."""
    slim: bool = False
    """Whether distributions that only training needs are left out."""
    parent_key: str = ""
    """The public key that must have signed a stamped training image; empty for the one that signs, where one does."""
    gate: Gate = "auto"
    """Whether the container is tried before it is pushed: where there is an engine, always, or never."""
    signed: tuple[str, ...] = ()
    """Public keys, one of which must have signed the model's stamp; by default the parent key, else the signing one."""

    @property
    def training_keys(self) -> tuple[str, ...]:
        """The public keys that were named for the model's stamp."""
        return self.signed or ((self.parent_key,) if self.parent_key else ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a serving image starts from."""

    parent: Parent
    """The training image, and what it was locked from."""
    reference: Reference | None
    """By digest; None where it lies in no registry."""
    manifest: TrainingManifest
    manifest_bytes: bytes
    variant: str
    platform: str
    environment: Digest
    """The training environment's id."""
    overrides: tuple[tuple[str, str], ...] = ()
    identity: str | None = None
    stamped: "StampedModel | None" = None
    """The model and its stamp; None where only a manifest was given."""
    built_on: "StampedImage | None" = None
    """The stamped training image that this one is, or whose lock it was made from; None of a manifest."""
    pylock: bytes = b""
    """The lock as it is stamped, where the training image was made of a manifest now; else empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Files of the wheels that a slim image does without."""

    rule: str
    """`headers`."""
    why: str
    count: int
    size: int
    """Bytes, unpacked."""

    def __str__(self) -> str:
        return f"{self.rule}: {counted(self.count, 'file')}, {self.size / 1e6:.1f} MB: {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slimmed:
    """What a slim image does without."""

    lock: Lock
    """What is left; its wheels say which of their files are left out."""
    dropped: tuple[str, ...]
    """`tensorboard 2.15.1: only training writes summaries`."""
    saved: int
    """Bytes of the wheels that are left out."""
    files: tuple[LeftOut, ...] = ()
    """By rule."""

    @property
    def losses(self) -> str:
        """`2 distributions, 3.1 MB of wheels, and 8032 files, 151.3 MB`."""
        wheels = f"{counted(len(self.dropped), 'distribution')}, {self.saved / 1e6:.1f} MB of wheels,"
        number, size = sum(it.count for it in self.files), sum(it.size for it in self.files)
        files = f"{counted(number, 'file')}, {size / 1e6:.1f} MB,"
        return " and ".join([*([wheels] if self.dropped else []), *([files] if self.files else [])])


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeResult:
    """What was built, and where it is now."""

    origin: Origin
    image: Image
    above: Lock
    """What was locked beyond the training environment."""
    server: Server
    findings: tuple[Finding, ...]
    """What the gate looked at."""
    pushed: PushResult | None
    layout: Path | None
    tags: tuple[str, ...] = ()
    """What names the image there when everything is attached to it."""
    slimmed: Slimmed | None = None
    stamped: str | None = None
    """The record's name beside the model."""
    archive: Path | None = None
    loaded: str | None = None
    """The engine's own name of it."""
    runtime: Reference | None = None
    """The image of a server that brings its own runtime, by digest: nothing was built then."""
    found: bool = False
    """Whether the registry had it from an earlier run."""

    @property
    def reference(self) -> Reference | None:
        """By digest; None where it lies in no registry."""
        return self.pushed.reference if self.pushed else self.runtime

    @property
    def digest(self) -> Digest:
        """As the registry has it, where it lies in one."""
        found = self.reference.digest if self.reference else None
        return found or self.image.digest
