"""Code that prepares a model's inputs, by its git tree."""

from collections.abc import Iterator

from envbuild.verify.findings import Finding
from envbuild.verify.rules.saying import agree, counted, differs
from envbuild.verify.sides.side import Side

_CUT = 12
_NOT_THERE = "It may lie elsewhere there; if serving prepares inputs by other code, predictions are others."


def preprocessing(wanted: Side, found: Side) -> Iterator[Finding]:
    """Each path that the contract names, by the digest that `git rev-parse COMMIT:PATH` gives."""
    needed = {it.path: it.git_tree for it in wanted.contract.preprocessing if it.git_tree}
    if found.trees is None:
        return
    same = 0
    for path, tree in sorted(needed.items()):
        there = found.trees.get(path)
        same += there == tree
        if there is None:
            yield _not_there(path, tree)
        elif there != tree:
            yield _other(path, tree, there)
    if same:
        yield agree("preprocessing", "preprocessing", f"{counted(same, 'path')} with the same content")


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


def _other(path: str, tree: str, there: str) -> Finding:
    todo = f"check out the run's commit of {path}, or train anew with the code of today"
    return differs("preprocessing", path, wanted=f"tree {tree[:_CUT]}", found=f"tree {there[:_CUT]}", todo=todo)
