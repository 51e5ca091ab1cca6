"""What Python files say, parsed and never run."""

import ast
import zipfile
from collections.abc import Iterable, Iterator

from envbuild.refresh.remote import member

_NOT_PLAIN = (ValueError, TypeError, IndexError, RecursionError)


def constants(archive: zipfile.ZipFile, name: str) -> dict[str, object]:
    """The names that a module sets to plain values at its top level; BadZipFile where it is not Python.

    `dict(...)` and `OrderedDict(...)` of one plain value count as plain.
    """
    return dict(_assigned(_parse(archive, name).body))


def assigned(archive: zipfile.ZipFile, name: str, variable: str) -> Iterator[object]:
    """Every plain value that a variable is set to anywhere in a module; BadZipFile as `constants`."""
    return (value for target, value in _assigned(ast.walk(_parse(archive, name))) if target == variable)


def calls(archive: zipfile.ZipFile, name: str, function: str) -> Iterator[tuple[object, ...]]:
    """The arguments of every call of a function with plain values in a module; BadZipFile as `constants`."""
    for node in ast.walk(_parse(archive, name)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == function:
            try:
                yield tuple(ast.literal_eval(argument) for argument in node.args)
            except _NOT_PLAIN:
                continue


def _assigned(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, object]]:
    for node in nodes:
        if isinstance(node, ast.AnnAssign | ast.Assign) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            try:
                yield ast.unparse(target), _plain(node.value)
            except _NOT_PLAIN:
                continue


def _parse(archive: zipfile.ZipFile, name: str) -> ast.Module:
    try:
        return ast.parse(member(archive, name))
    except (SyntaxError, ValueError, RecursionError) as error:
        raise zipfile.BadZipFile(f"{name} cannot be read: {error}") from error


def _plain(node: ast.expr) -> object:
    if isinstance(node, ast.Call):
        return dict(ast.literal_eval(node.args[0]))
    return ast.literal_eval(node)
