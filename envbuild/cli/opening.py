"""Reading a target into what it says, whatever kind of thing it is."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from envbuild.cli.console import Progress
from envbuild.cli.targets import in_one_line, kind_of

if TYPE_CHECKING:
    from envbuild.manifest.model import Contract, TrainingManifest
    from envbuild.oci.reference import Reference
    from envbuild.stamp import Proof
    from envbuild.verify.against import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What all targets of one command share."""

    machine: str
    """Which image of several platforms is meant."""
    python: str | None
    """The interpreter whose environment is the host's; None where only the machine itself is meant."""
    stack: ExitStack
    """Ends with the command; images are open until then."""
    progress: Progress
    proof: "Proof | None" = None
    """What stamps of models have to prove."""

    def target(self, text: str, wanted: "Contract") -> "Target":
        """Read one target; `wanted` is what it may have to serve, which decides what a host is asked for."""
        kind, name = kind_of(text)
        self.progress.step(f"reading {kind} {in_one_line(name)}" if kind != "host" else "looking at this machine")
        match kind:
            case "model":
                return self._model(name)
            case "image":
                return self._image(name)
            case "manifest":
                return self._manifest(name)
            case "lock":
                return self._lock(name)
            case "context":
                return self._context(name)
            case "host":
                return self._host(wanted)

    def _model(self, name: str) -> "Target":
        from envbuild.verify.against import Target
        from envbuild.verify.sides.model import read_model, side_of_model

        model = read_model(name, self.proof)
        return Target(side=side_of_model(model), model=model)

    def _image(self, name: str) -> "Target":
        from envbuild.diff import opened
        from envbuild.files import cache_folder
        from envbuild.verify.against import Target
        from envbuild.verify.sides.image import side_of_image

        image = self.stack.enter_context(opened(name, machine=self.machine, cache=cache_folder(), teller=self.progress))
        side = side_of_image(image, name, machine=self.machine, report=self.progress.progress)
        return Target(side=side, image=image, reference=_reference(name))

    def _manifest(self, name: str) -> "Target":
        from envbuild.cli.records import read_run
        from envbuild.manifest.importers.environment import RecordOptions
        from envbuild.verify.against import Target
        from envbuild.verify.sides.manifest import side_of_manifest

        _, _, manifest = read_run(name, None, RecordOptions(), self.progress)
        return Target(side=side_of_manifest(manifest, name), manifest=manifest)

    def _lock(self, name: str) -> "Target":
        from envbuild.cli.rebase import read_lock
        from envbuild.verify.against import Target
        from envbuild.verify.sides.lock import side_of_lock

        return Target(side=side_of_lock(read_lock(Path(name), ""), name))

    def _context(self, name: str) -> "Target":
        from envbuild.verify.against import Target
        from envbuild.verify.sides.context import side_of_context

        return Target(side=side_of_context(Path(name), name), folder=Path(name))

    def _host(self, wanted: "Contract") -> "Target":
        from envbuild.verify.against import Target
        from envbuild.verify.sides.host import side_of_host

        return Target(side=side_of_host(self._environment(), wanted, visible=_visible))

    def _environment(self) -> "TrainingManifest | None":
        if self.python is None:
            return None
        import json

        from envbuild.capture import script
        from envbuild.cli.interpreter import other_environment
        from envbuild.manifest import read_manifest

        facts = other_environment(self.python, script(), ())
        return read_manifest(json.dumps(facts).encode(), f"--python {self.python}")


def _visible(uri: str) -> bool | None:
    from envbuild.verify.visible import visible  # Google's client takes a second to load

    return visible(uri)


def _reference(name: str) -> "Reference | None":
    """The registry's name of an image; None for one that lies here or in an engine."""
    from envbuild.oci.login import exists
    from envbuild.oci.reference import Reference

    plain = name.removeprefix("docker://")
    if plain == name and exists(name.rpartition("@")[0] or name):
        return None
    try:
        return Reference.parse(plain)
    except ValueError:
        return None
