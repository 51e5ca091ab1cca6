"""What a capture had to leave out, told when it happens."""

from __future__ import annotations

from typing import Iterable, Iterator

from envbuild.capture.checkout import LARGEST_PATCH
from envbuild.capture.output import say
from envbuild.capture.reading import Facts


def told_gaps(installation: Facts, code: Facts | None, distributions: Iterable[Facts], patch: bool) -> list[str]:
    """Warn on stderr of what was left out; return the sentences that no other fact of the manifest says."""
    folders = installation.get("unreadable") or ()
    if folders:
        what = "no index can have what these metadata folders name, so they count as no distribution"
        say("warning: %s: %s" % (what, ", ".join(folders)))
    missing = list(_missing_patches(code, distributions)) if patch else []
    for sentence in missing:
        say("warning: %s" % sentence)
    return missing


def _missing_patches(code: Facts | None, distributions: Iterable[Facts]) -> Iterator[str]:
    """Say which checkouts changed without the patch that was asked for."""
    origins = ((item["name"], item["origin"]) for item in distributions)
    for name, facts in (("the code", code or {}), *origins):
        if facts.get("dirty") and not facts.get("patch"):
            how = "it is larger than %d bytes, or git gave no answer" % LARGEST_PATCH
            yield "the uncommitted changes of %s are not recorded: %s" % (name, how)
