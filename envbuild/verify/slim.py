"""What a slim image may lack of its training image: the rule, and whether two images keep to it."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache

from envbuild.errors import counted
from envbuild.files import data_folder
from envbuild.lock.conflicts import marker_environment
from envbuild.lock.facts import requirements_of
from envbuild.lock.model import Target
from envbuild.lock.needs import needed
from envbuild.match.table import read_table
from envbuild.oci.image import Image
from envbuild.recipe import SLIM_LABEL
from envbuild.verify.environment import Environment, PackageChange
from envbuild.verify.findings import Finding

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


def slim_changes(
    changes: Iterable[PackageChange], before: Environment, after: Environment, serve: Image
) -> tuple[PackageChange, ...]:
    """What an image whose label says that it is slim may lack.

    That is what nothing in it requires, and what is on the list or required only by what is on it and left out too.
    """
    config = json.loads(serve.config)
    if not ((config.get("config") or {}).get("Labels") or {}).get(SLIM_LABEL):
        return ()
    missing = {it.name: it for it in changes if not it.after}
    machine = "aarch64" if config.get("architecture") == "arm64" else "x86_64"
    markers = marker_environment(Target(python=_python(before), machine=machine, glibc=""))
    both = {**before.distributions, **after.distributions}
    declared = {name: requirements_of(it.metadata) for name, it in both.items() if it.metadata}
    strict = listed(missing, training_only())
    gone = missing.keys() - needed(after.distributions, declared, markers, strict)
    names = gone & needed([name for name in strict if name in gone], declared, markers, strict)
    return tuple(it for name, it in missing.items() if name in names)


def slim_finding(packages: Sequence[PackageChange]) -> Finding:
    """The warning about what a slim image lacks."""
    those = tuple(f"{it.name} {it.before}" for it in packages)
    more = f" and {len(those) - _SHOWN} more" if len(those) > _SHOWN else ""
    return Finding(
        about="slim",
        rule="shared-slim",
        agrees=False,
        severity="warning",
        says=f"serving is slim, without {counted(len(those), 'distribution')} that only training uses: "
        f"{', '.join(those[:_SHOWN])}{more}",
        why=_WHY,
        todo=_TODO,
        packages=those,
    )


def _python(environment: Environment) -> str:
    """The Python in whose folders most distributions lie."""
    sites = (site for it in environment.distributions.values() for site in it.sites)
    places = (site.partition("/lib/python")[2].partition("/")[0] for site in sites)
    return next((python for python, _ in Counter(filter(None, places)).most_common(1)), "3")
