"""An image against the lock that it was built from: what `envbuild verify IMAGE --lock FILE` does."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from envbuild.cli import locking
from envbuild.cli.console import Progress
from envbuild.cli.references import base_of
from envbuild.cli.targets import in_one_line, kind_of
from envbuild.errors import UsageError

if TYPE_CHECKING:
    from envbuild.oci.image import Image
    from envbuild.verify import Finding, Run


_UNREAD = ("docker-daemon:", "docker-archive:", "oci-archive:")


@dataclass(frozen=True, slots=True, kw_only=True)
class ByLock:
    """What was asked of an image and its lock."""

    lock: Path
    manifest: str | None
    base: str | None
    cuda_source: locking.CudaSourceName
    overrides: tuple[str, ...]
    deep: bool

    def findings(self, image: str, progress: Progress) -> "tuple[Image, tuple[Finding, ...]]":
        """Hold the image against lock and base, and against the run where its manifest is given."""
        from envbuild.cli.rebase import base_named_by, read_lock
        from envbuild.files import cache_folder
        from envbuild.lock import read_settings
        from envbuild.verify import Inquiry, verify_image

        locked, settings = read_lock(self.lock), read_settings()
        asked = self._run(progress)
        name = kind_of(image)[1]
        progress.step(f"verifying {in_one_line(name)}")
        found = _image(name, locked.target.machine)
        named = self.base or base_named_by(found, image, "--base")
        inquiry = Inquiry(
            image=found,
            base=base_of(named, locked.target.machine, progress),
            lock=locked,
            run=asked,
            deep=self.deep,
            cache=cache_folder(),
            settings=settings,
        )
        return found, verify_image(inquiry, progress)

    def _run(self, progress: Progress) -> "Run | None":
        """The run's record; UsageError for what was set without one."""
        if self.manifest is None:
            if self.overrides or self.cuda_source is not locking.CudaSourceName.AUTO:
                todo = "give the run's --manifest too, or leave them out"
                raise UsageError(
                    "these say how a run is matched, and there is none", where="--set, --cuda-source", todo=todo
                )
            return None
        from envbuild.cli.records import read_record
        from envbuild.manifest.importers.environment import RecordOptions
        from envbuild.match.stack import pairs_of
        from envbuild.verify import Run

        name, data = read_record(self.manifest, None, RecordOptions(), progress)
        return Run(
            manifest=data, name=name, cuda_source=self.cuda_source.value, overrides=pairs_of(list(self.overrides))
        )


def _image(text: str, machine: str) -> "Image":
    from envbuild.base import layout_image, registry_reference
    from envbuild.oci.login import exists
    from envbuild.registry import pull

    todo = "give an image reference, or an OCI layout folder"
    if text.startswith(_UNREAD) or (exists(text) and not Path(text, "oci-layout").is_file()):
        raise UsageError("this is in no registry, and no OCI layout", where=f"IMAGE {text}", todo=todo)
    try:
        reference = registry_reference(text)
    except UsageError as error:
        raise UsageError("this is no image", where=f"IMAGE {text}", todo=todo) from error
    return pull(reference, machine=machine) if reference else layout_image(text, machine)
