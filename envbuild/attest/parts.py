"""What is read for a bill of materials: what wheels say about themselves, and which packages a base has."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from envbuild.base.contents import BaseContents, read_contents
from envbuild.errors import LockError, counted
from envbuild.lock.download import Downloads
from envbuild.lock.facts import FactReader
from envbuild.lock.index import LateClient, in_parallel
from envbuild.lock.metadata import Description
from envbuild.lock.model import LockedWheel
from envbuild.lock.settings import IndexSettings
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image
from envbuild.report import Reporter


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What is known of the parts of an image, beyond its locks."""

    base: BaseContents = field(default_factory=BaseContents)
    wheels: Mapping[Digest, Description] = field(default_factory=dict)
    """By the wheels' digests; without those that cannot be read now."""


def read_parts(
    base: Image, wheels: Iterable[LockedWheel], settings: IndexSettings, cache: Path, report: Reporter
) -> Parts:
    """Read the parts of an image on a base, from the cache as far as it has them; BaseError, RegistryError.

    A wheel whose server sends whole files only is downloaded. A warning says which cannot be read.
    """
    wheels, why = tuple(dict.fromkeys(wheels)), "--offline forbids to fetch them"
    with LateClient(settings) as client, Downloads(cache, reporter=report, settings=settings) as downloads:
        reader = FactReader(client, cache)

        def describe(wheel: LockedWheel) -> Description | None:
            found = reader.describe(wheel, fetch=not settings.offline)
            if found is None and not settings.offline:
                downloads.path(wheel)
                found = reader.describe(wheel)
            return found

        try:
            found = in_parallel(describe, wheels)
        except LockError as error:
            why = error.what
            found = in_parallel(partial(reader.describe, fetch=False), wheels)
    described = {wheel.sha256: it for wheel, it in zip(wheels, found, strict=True) if it}
    if unread := [wheel.filename for wheel in wheels if wheel.sha256 not in described]:
        many = f"{counted(len(unread), 'wheel')}, such as {unread[0]}"
        report.warn(f"the SBOM has only name, version and digest of {many}, which cannot be read: {why}")
    return Parts(base=read_contents(base, "the base", cache / "bases" / "facts"), wheels=described)
