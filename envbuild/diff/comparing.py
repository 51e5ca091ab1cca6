"""Two images held against each other: their configs, and the files that their layers give."""

from collections import defaultdict
from collections.abc import Iterator

from envbuild.diff.difference import Change, Difference, Group
from envbuild.diff.packages import Package, Packages
from envbuild.diff.pair import Report, read_pair
from envbuild.diff.rules import Rules
from envbuild.diff.settings import settings
from envbuild.oci.image import Image
from envbuild.oci.rootfs import Tree

_AS_IS = Rules()


def compare(
    a: Image,
    b: Image,
    rules: Rules = _AS_IS,
    *,
    names: tuple[str, str] = ("the first image", "the second image"),
    report: Report = lambda _label, _done, _total: None,
) -> Difference:
    """Compare two images, `b` being what became of `a`; `names` are for errors, and `report` is told what is read.

    No layer is read where the configs are the same, as they name the layers by content. BuildError for what cannot be
    read; errors of where the images come from, such as RegistryError.
    """
    if a.config_digest == b.config_digest:
        return Difference()
    before, after = read_pair(a, b, names, report)
    changes, left_out = [], 0
    for change in _changes(before, after, rules):
        if rules.ignored(change.path, change.before, change.after):
            left_out += 1
        else:
            changes.append(change)
    groups = _grouped(changes, Packages(before), Packages(after)) if changes else ()
    return Difference(settings=settings(a, b, names), groups=groups, left_out=left_out)


def _changes(before: Tree, after: Tree, rules: Rules) -> Iterator[Change]:
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        fields = rules.differing(path, old, new) if old and new else ()
        if fields or not (old and new):
            yield Change(path=path, before=old, after=new, fields=fields)


def _grouped(changes: list[Change], before: Packages, after: Packages) -> tuple[Group, ...]:
    """Give each path to its owner, the new one where that changed; packages by name, and what has no owner last."""
    found: defaultdict[Package | None, list[Change]] = defaultdict(list)
    for change in changes:
        owners = (
            after.owner(change.path) if change.after else None,
            before.owner(change.path) if change.before else None,
        )
        found[owners[0] or owners[1]].append(change)
    return tuple(
        Group(
            package=package,
            before=before.version(package) if package else "",
            after=after.version(package) if package else "",
            changes=tuple(found[package]),
        )
        for package in sorted(found, key=lambda it: (it is None, it.kind if it else "", it.name if it else ""))
    )
