"""What a slim image may lack of its training image: the rule, and whether two images keep to it."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache

from envbuild.files import data_folder
from envbuild.lock.conflicts import marker_environment
from envbuild.lock.facts import requirements_of
from envbuild.lock.model import Target
from envbuild.lock.needs import Declared, needed
from envbuild.match.table import read_table
from envbuild.oci.image import Image
from envbuild.oci.rootfs import Tree
from envbuild.recipe import SLIM_LABEL
from envbuild.verify.findings import Finding
from envbuild.verify.holdings import Held, Holdings, Moved

_SHOWN = 5
_WHY = "what imports one of them all the same fails there, or silently does without"
_TODO = "nothing if the golden sample agrees in the slim image; else build serving without --slim"


@dataclass(frozen=True, slots=True)
class Pattern:
    """Names of distributions that only training uses."""

    name: str
    """A shell pattern of normalised names."""
    why: str


@cache
def training_only() -> tuple[Pattern, ...]:
    """The list that the rule goes by, `profiles/slim.toml`; MatchError where it cannot be read."""
    table = read_table(data_folder("profiles") / "slim.toml")
    rows = table.each("training_only", lambda row: [Pattern(name, row.text("why")) for name in row.texts("names")])
    return tuple(it for row in rows for it in row)


def listed(names: Iterable[str], patterns: Collection[Pattern]) -> dict[str, str]:
    """Those of the names that the list has, each with its reason."""
    found = ((name, next((it.why for it in patterns if fnmatchcase(name, it.name)), "")) for name in names)
    return {name: why for name, why in found if why}


def without_slim(found: Held, before: Holdings, after: Holdings, serve: Image) -> tuple[Held, tuple[Finding, ...]]:
    """What differs but for what a slim image may do without; and one finding about that, where it says it is slim."""
    config = json.loads(serve.config)
    if not ((config.get("config") or {}).get("Labels") or {}).get(SLIM_LABEL):
        return found, ()
    missing = [it.name for it in found.packages if not it.after]
    names = _allowed(missing, before, after, "aarch64" if config.get("architecture") == "arm64" else "x86_64")
    slim = tuple(it for it in found.packages if it.name in names)
    rest = replace(found, packages=tuple(it for it in found.packages if it.name not in names))
    return rest, (_finding(slim),) if slim else ()


def _allowed(missing: Collection[str], before: Holdings, after: Holdings, machine: str) -> frozenset[str]:
    """Those that nothing that is there requires, and that are on the list or required by one on it that is gone too."""
    markers = marker_environment(Target(python=_python(before.tree), machine=machine, glibc=""))
    declared = {**_declared(before), **_declared(after)}
    strict = listed(missing, training_only())
    gone = frozenset(missing) - needed(after.versions, declared, markers, strict)
    return gone & needed([name for name in strict if name in gone], declared, markers, strict)


def _finding(packages: Sequence[Moved]) -> Finding:
    those = tuple(f"{it.name} {it.before}" for it in packages)
    more = f" and {len(those) - _SHOWN} more" if len(those) > _SHOWN else ""
    count = "1 distribution" if len(those) == 1 else f"{len(those)} distributions"
    return Finding(
        about="slim",
        rule="shared-slim",
        agrees=False,
        severity="warning",
        says=f"serving is slim, without {count} that only training uses: {', '.join(those[:_SHOWN])}{more}",
        why=_WHY,
        todo=_TODO,
        packages=those,
    )


def _python(tree: Tree) -> str:
    """The Python in whose folders most distributions lie."""
    places = (path.partition("/lib/python")[2].partition("/")[0] for path in tree if path.endswith(".dist-info/RECORD"))
    counted = Counter(filter(None, places)).most_common(1)
    return counted[0][0] if counted else "3"


def _declared(holdings: Holdings) -> Declared:
    return {name: requirements_of(text) for name, text in holdings.metadata().items()}
