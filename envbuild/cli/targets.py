"""The targets of a command: the kind of an argument, its facts, and the keys that have to have signed it."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from errno import ENAMETOOLONG
from pathlib import Path
from typing import TYPE_CHECKING, Final, get_args

from envbuild.cli.arguments import import_record, read_lock
from envbuild.cli.capture import other_environment
from envbuild.cli.console import Progress, one_line
from envbuild.errors import UsageError

if TYPE_CHECKING:
    from envbuild.manifest.model import Contract, TrainingManifest
    from envbuild.oci.image import Image
    from envbuild.oci.reference import Reference
    from envbuild.stamp.history import Proof
    from envbuild.verify.findings import Finding
    from envbuild.verify.golden.runners import Runner
    from envbuild.verify.sources import Kind
    from envbuild.verify.sources.image import Known
    from envbuild.verify.targets import Target

FORMS: Final = (
    "A model (gs://, a file or folder), an image (a reference, an OCI layout, an archive, docker-daemon:NAME), "
    "a manifest or another tool's record, a pylock.toml, a build context, or host"
)
IMAGES: Final = ("docker://", "oci:", "docker-daemon:", "docker-archive:", "oci-archive:")
"""The prefixes of images, besides plain references."""
_MODELS: Final = (
    *(".keras", ".h5", ".hdf5", ".pb", ".pt", ".pth", ".pt2", ".onnx", ".safetensors"),
    *(".pkl", ".pickle", ".joblib", ".skops", ".ubj", ".bst", ".cbm"),
)
"""The suffixes of models; any other file is the archive of an image."""
_MARKS: "Final[dict[tuple[str, ...], Kind]]" = {
    ("oci-layout",): "image",  # first, as `from-manifest --out` writes image and context into one folder
    ("Dockerfile", "pylock.toml"): "context",
    ("MLmodel",): "manifest",
    ("wandb-metadata.json",): "manifest",
}
"""The files that decide a folder's kind."""
_RECORDS: Final = (".json", ".txt", ".yml", ".yaml", ".in")


def kind_of(text: str) -> "tuple[Kind, str]":
    """Return a target's kind and its name without `KIND:` before it; UsageError for a path that does not exist.

    `model:`, `image:`, `manifest:`, `lock:` and `context:` name the kind; else `host` is this machine, gs:// and
    file:// are models, and a file or folder has its kind by name and content. All else is an image in a registry.
    """
    from envbuild.oci.reference import refuse_login
    from envbuild.verify.sources import Kind

    refuse_login(text, "TARGET")
    if text == "host":
        return "host", text
    for kind in get_args(Kind):
        if text.startswith(f"{kind}:") and kind != "host":
            return kind, text.removeprefix(f"{kind}:")
    if not text.strip():
        raise UsageError("a target has no name", where="TARGET", todo=f"give one of these. {FORMS}")
    if text.startswith(IMAGES):
        return "image", text
    if text.startswith("gs://"):
        return ("manifest" if text.endswith(_RECORDS) else "model"), text
    return ("model" if text.startswith("file://") else _kind_of_path(Path(text), text)), text


def _kind_of_path(path: Path, text: str) -> "Kind":
    from envbuild.oci.reference import PATH_STARTS, lies_here

    try:
        if path.is_dir():
            return _folder(path)
        in_folder = "/" in text and ":" not in text and path.parent.is_dir()
        if path.is_file():
            if path.name == "pylock.toml" or (path.name.startswith("pylock.") and path.suffix == ".toml"):
                return "lock"
            if path.suffix in _RECORDS or path.name == "uv.lock":
                return "manifest"
            return "model" if path.suffix in _MODELS else "image"
    except OSError as error:
        if error.errno == ENAMETOOLONG:  # an image in a registry has no such bounds
            return "image"
        what = f"the target cannot be read: {error.strerror}"
        raise UsageError(what, where=one_line(text), todo="see its permissions") from error
    is_path = in_folder or text.startswith(PATH_STARTS) or path.name.endswith((*_RECORDS, *_MODELS, ".toml"))
    if is_path and not lies_here(text):
        todo = f"give one of these, and docker:// before an image of Docker Hub. {FORMS}"
        raise UsageError("there is no such file or folder", where=f"TARGET {one_line(text)}", todo=todo)
    return "image"


def _folder(path: Path) -> "Kind":
    """Look for a stamp first: anyone who can write to a model's folder must not turn it into something else."""
    from envbuild.stamp.record import FOLDER, is_record_name

    own = path / FOLDER
    if own.is_dir() and any(is_record_name(f"{FOLDER}/{it.name}") for it in own.iterdir()):
        return "model"
    if marks := marks_of(path):
        return _MARKS[marks]
    return "model"


def marks_of(path: Path) -> tuple[str, ...]:
    """Return the files that make a folder something else than a model; empty where there are none."""
    return next((marks for marks in _MARKS if all(os.path.isfile(path / name) for name in marks)), ())  # noqa: PTH113 - raises nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetReader:
    """Reads the targets of one command."""

    machine: str
    """The image to take of several platforms."""
    python: str | None
    """The interpreter whose environment is the host's; None for the machine alone."""
    stack: ExitStack
    """Ends with the command; images are open until then."""
    progress: Progress
    proof: "Proof | None" = None
    """What stamps of models have to prove."""
    images: "dict[str, Image]" = field(default_factory=dict)
    """Several images of a comparison, by name."""
    layers: "Known" = field(default_factory=dict)
    """What was read of images."""

    def read_all(self, texts: Sequence[str]) -> "list[Target]":
        """Read the targets of a comparison with the first.

        Images that begin with all of its layers, and change nothing of them, are compared without reading these. Of
        other images each layer is fetched once, unless it was made here.
        """
        from envbuild.files import cache_folder
        from envbuild.manifest.model import Contract
        from envbuild.oci.blobs import keep_layers
        from envbuild.verify.sharing import stands_on
        from envbuild.verify.sources.image import side_of_config
        from envbuild.verify.targets import Target

        names = [name for kind, name in map(kind_of, texts) if kind == "image"]
        if len(names) > 1:
            opened = keep_layers([self._open(it) for it in names], cache_folder(), self.stack)
            self.images.update(zip(names, opened, strict=True))
        if len(names) == len(texts) > 1:
            one, *others = names
            report, images = self.progress.progress, self.images
            sides = [side_of_config(images[it], it, machine=self.machine) for it in names]
            if all(stands_on(images[one], images[it], it, report) for it in others):
                return [Target(side=it, image=images[it.name], reference=_reference(it.name)) for it in sides]
        first = self.read(texts[0], Contract())
        return [first, *(self.read(it, first.side.contract) for it in texts[1:])]

    def read(self, text: str, contract: "Contract") -> "Target":
        """Read one target; of a host, whether it has what the contract names."""
        from envbuild.verify.targets import Target

        kind, name = kind_of(text)
        self.progress.step(f"reading {kind} {one_line(name)}" if kind != "host" else "looking at this machine")
        match kind:
            case "model":
                from envbuild.verify.sources.model import read_model, side_of_model

                model = read_model(name, self.proof)
                return Target(side=side_of_model(model), model=model)
            case "image":
                return self._image(name)
            case "manifest":
                from envbuild.verify.sources import side_of_manifest

                manifest = import_record(name, self.progress)[2]
                return Target(side=side_of_manifest(manifest, name), manifest=manifest)
            case "lock":
                from envbuild.verify.sources import side_of_lock

                return Target(side=side_of_lock(read_lock(Path(name), ""), name))
            case "context":
                from envbuild.verify.sources.context import side_of_context

                return Target(side=side_of_context(Path(name), name), folder=Path(name))
            case "host":
                from envbuild.verify.sources.host import side_of_host, visible

                return Target(side=side_of_host(self._environment(), contract, visible=visible))

    def _image(self, name: str) -> "Target":
        from envbuild.verify.sources.image import side_of_image
        from envbuild.verify.targets import Target

        image = self.images.get(name) or self._open(name)
        side = side_of_image(image, name, machine=self.machine, report=self.progress.progress, known=self.layers)
        return Target(side=side, image=image, reference=_reference(name))

    def _open(self, name: str) -> "Image":
        from envbuild.diff.images import open_image
        from envbuild.files import cache_folder

        report, cache = self.progress, cache_folder()
        return self.stack.enter_context(open_image(name, machine=self.machine, cache=cache, report=report))

    def _environment(self) -> "TrainingManifest | None":
        if self.python is None:
            return None
        from envbuild.manifest.reader import read_manifest

        facts = other_environment(self.python, ())
        return read_manifest(json.dumps(facts).encode(), f"--python {self.python}")


def required_keys(signed: str | None, listed: tuple[str, ...]) -> tuple[str, ...]:
    """Return the keys of which one has to have signed: the one of --signed, else those that the policy lists.

    UsageError where --signed is none of the policy's keys: one of the two may come from a configuration that another
    person wrote, so neither replaces the other.
    """
    if signed is None or not listed or signed in listed:
        return (signed,) if signed is not None else listed
    from envbuild.attest.keys import public_key_of

    key = public_key_of(signed)
    if all(public_key_of(it) != key for it in listed):
        todo = "add the key to the policy, or leave --signed out; envbuild config shows where each option comes from"
        what = f"{one_line(signed)} is none of the policy's keys: {one_line(', '.join(listed))}"
        raise UsageError(what, where="--signed and --policy", todo=todo)
    return (signed,)


def proof_of(keys: Sequence[str], minimum: int | None) -> "Proof | None":
    """Return what a stamp has to prove; None without keys, and UsageError for a lowest record without a key."""
    if keys:
        from envbuild.attest.bundle import record_keys
        from envbuild.stamp.history import Proof

        return Proof(keys=record_keys(keys), minimum=minimum or 0)
    if minimum is not None:
        todo = "give --signed KEY too, or leave it out"
        raise UsageError("only a signed record's number counts", where=f"--minimum-record {minimum}", todo=todo)
    return None


def check_key(key: str | None) -> None:
    """Refuse anything but a public key, before any work; a key of Cloud KMS is read when it is needed."""
    if key is None:
        return
    from envbuild.verify.registries import check_public_key  # imports an HTTP library

    check_public_key(key)


def check_signable(targets: Sequence[str]) -> None:
    """UsageError for --signed where no target can be signed."""
    if all(kind_of(it)[0] != "model" for it in targets) and not references_of(targets):
        todo = "give a stamped model or an image by its reference, or leave --signed out"
        raise UsageError("only models and images in registries are signed", where="--signed", todo=todo)


def signature_findings(
    references: "dict[str, Reference]", keys: Sequence[str], progress: Progress
) -> "Iterator[Finding]":
    """Yield whether each image is signed by one of the keys; nothing without keys."""
    if not keys:
        return
    from envbuild.verify.registries import check_signed_by_any

    for name, reference in references.items():
        progress.step(f"looking for signatures of {one_line(name)}")
        yield from (it.with_targets(name, name) for it in check_signed_by_any(reference, keys))


def references_of(targets: Sequence[str]) -> "dict[str, Reference]":
    """Return the images among the targets that are in registries."""
    images = ((text, kind_of(text)) for text in targets)
    found = ((text, _reference(name)) for text, (kind, name) in images if kind == "image")
    return {text: reference for text, reference in found if reference}


def _reference(name: str) -> "Reference | None":
    """Return an image's name in a registry; None for one on this machine."""
    from envbuild.oci.reference import Reference, lies_here

    if lies_here(name):
        return None
    try:
        return Reference.parse(name.removeprefix("docker://"))
    except ValueError:  # docker-daemon:NAME, and what else is no reference
        return None


def run_golden(
    manifest: "TrainingManifest",
    model: str,
    images: Sequence[str],
    machine: str,
    progress: Progress,
    python: str | None = None,
) -> "Iterator[Finding]":
    """Run a manifest's golden sample with a model by an interpreter of this machine, if one is given, and in images."""
    from envbuild.files import cache_folder
    from envbuild.verify.golden.check import check
    from envbuild.verify.golden.runners import InInterpreter, in_image, isolated

    cache = cache_folder()

    def runners(stack: ExitStack) -> "Iterator[Runner]":
        if python is not None:  # first, as it needs no engine, which may be missing
            yield InInterpreter(name=python, sandbox=isolated(python, {}, cache))
        for name in images:
            yield stack.enter_context(in_image(name, machine=machine, cache=cache, report=progress))

    with ExitStack() as stack:
        yield from check(manifest, model, runners(stack), cache=cache, report=progress)
