"""Code that prepares a model's inputs, by its git tree."""

from collections.abc import Collection, Iterator

from envbuild.errors import counted
from envbuild.verify.findings import Finding
from envbuild.verify.rules.saying import agree, differs
from envbuild.verify.sides.imports import module_name
from envbuild.verify.sides.side import Side

_CUT = 12
_NOT_THERE = "It may lie elsewhere there; if serving prepares inputs by other code, predictions are others."


def preprocessing(wanted: Side, found: Side) -> Iterator[Finding]:
    """Each path that the contract names, by the digest that `git rev-parse COMMIT:PATH` gives.

    Where it is not there, code that is imported there by the same name stands for it.
    """
    needed = {it.path: it.git_tree for it in wanted.contract.preprocessing if it.git_tree}
    if found.trees is None:
        return
    same = 0
    for path, tree in sorted(needed.items()):
        places = [path] if path in found.trees else _namesakes(path, found.trees.keys() - needed.keys())
        same += any(found.trees[it] == tree for it in places)
        if not places:
            yield _not_there(path, tree)
        elif all(found.trees[it] != tree for it in places):
            yield _other(path, tree, places[0], found.trees[places[0]])
    if same:
        yield agree("preprocessing", "preprocessing", f"{counted(same, 'path')} with the same content")


def _namesakes(path: str, others: Collection[str]) -> list[str]:
    """Code that is imported by the same name from another place."""
    return sorted(it for it in others if module_name(it) == module_name(path))


def _not_there(path: str, tree: str) -> Finding:
    todo = f"copy {path} into it from the run's commit, or name the path where it lies"
    return differs(
        "preprocessing",
        path,
        "it is not there",
        wanted=f"tree {tree[:_CUT]}",
        found="",
        todo=todo,
        severity="warning",
        why=_NOT_THERE,
    )


def _other(path: str, tree: str, place: str, there: str) -> Finding:
    todo = f"check out the run's commit of {path}, or train anew with the code of today"
    wanted, found, says = f"tree {tree[:_CUT]}", f"tree {there[:_CUT]}", ""
    if place != path:
        says = f"{place} is imported in its place: wanted {wanted}, found {found}"
        todo = f"copy the run's {path} to {place}, or train anew with the code of today"
    return differs("preprocessing", path, says, wanted=wanted, found=found, todo=todo)
