"""What is read for a bill of materials: what wheels say about themselves, and which packages a base has."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from envbuild.base.contents import BaseContents, read_contents
from envbuild.errors import BaseError, LockError, counted
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
    claimed: frozenset[Digest] = frozenset()
    """Those of wheels whose bytes nobody here compared with the lock: an index says so."""


def read_parts(
    base: Image | None,
    wheels: Iterable[LockedWheel],
    settings: IndexSettings,
    cache: Path,
    report: Reporter,
    *,
    proven: bool,
) -> Parts:
    """Read the parts of an image on a base, from the cache as far as it has them; RegistryError.

    Wheels whose server sends whole files only are downloaded, and all if what they say has to be `proven`, as for a
    signature; then BaseError if the base cannot be read. Otherwise a warning says what cannot be read.
    """
    wheels = tuple(dict.fromkeys(wheels))
    why = "--offline forbids to fetch them" if settings.offline else "they have no METADATA that says what they are"
    with LateClient(settings) as client, Downloads(cache, reporter=report, settings=settings) as downloads:
        reader = FactReader(client, cache)
        describe_local = partial(reader.describe, fetch=False, verified=proven)

        def describe(wheel: LockedWheel) -> Description | None:
            found = None if proven else reader.describe(wheel, fetch=not settings.offline)
            if found is None and not settings.offline:
                downloads.path(wheel)
            return found or describe_local(wheel)

        try:
            found = in_parallel(describe, wheels)
        except LockError as error:
            why = error.what
            found = in_parallel(describe_local, wheels)
        claimed = frozenset(it.sha256 for it in wheels if not reader.is_verified(it))
    described = {wheel.sha256: it for wheel, it in zip(wheels, found, strict=True) if it}
    if unread := [wheel.filename for wheel in wheels if wheel.sha256 not in described]:
        many = f"{counted(len(unread), 'wheel')}, such as {unread[0]}"
        report.warn(f"the SBOM has only name, version and digest of {many}, which cannot be read: {why}")
    contents = BaseContents()
    try:
        if base:
            contents = read_contents(base, "the base", cache / "bases" / "facts")
    except BaseError as error:
        if proven:
            raise
        report.warn(f"the SBOM has nothing of what the base contains: {error.what}")
    return Parts(base=contents, wheels=described, claimed=claimed)
