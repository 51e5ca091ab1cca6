"""GitHub's expressions, as far as our actions and workflows need them (docs.github.com, "Evaluate expressions")."""

import re
from collections.abc import Callable, Mapping
from typing import Any

Contexts = Mapping[str, Any]
"""`inputs`, `steps`, `github`, ...: mappings of mappings, whose leaves are texts."""

_WHOLE = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
_TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<call>\w+)\(\)|(?P<path>[A-Za-z_][\w.-]*)|(?P<sign>==|!=|&&|\|\||[()]))"
)
_SIGNS: tuple[Mapping[str, Callable[[Any, Any], Any]], ...] = (
    {"||": lambda one, other: one or other},
    {"&&": lambda one, other: one and other},
    {"==": lambda one, other: _same(one) == _same(other), "!=": lambda one, other: _same(one) != _same(other)},
)
"""The weakest first."""


class UnknownError(ValueError):
    """Something that GitHub may know, and this runner does not."""


def replaced(text: str, contexts: Contexts, *, failed: bool = False) -> str:
    """Put the values of all `${{ ... }}` into a text."""
    return _WHOLE.sub(lambda match: _shown(evaluated(match[1], contexts, failed=failed)), text)


def holds(condition: str, contexts: Contexts, *, failed: bool = False) -> bool:
    """Whether an `if` is true; one that asks for no status function holds only where nothing failed before."""
    whole = _WHOLE.fullmatch(condition.strip())
    text = whole[1] if whole else condition
    about_status = any(f"{name}()" in text for name in ("always", "failure", "success"))
    return bool(evaluated(text, contexts, failed=failed)) and (about_status or not failed)


def evaluated(text: str, contexts: Contexts, *, failed: bool = False) -> Any:
    """Evaluate what stands between `${{` and `}}`."""
    tokens = _tokens(text)
    value = _operation(tokens, contexts, 0, failed=failed)
    if tokens:
        raise UnknownError(f"the end of {text!r}")
    return value


def _tokens(text: str) -> list[re.Match[str]]:
    found, at = [], 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None:
            raise UnknownError(f"the expression {text!r}")
        found.append(match)
        at = match.end()
    return found


def _operation(tokens: list[re.Match[str]], contexts: Contexts, level: int, *, failed: bool) -> Any:
    if level == len(_SIGNS):
        return _operand(tokens, contexts, failed=failed)
    value = _operation(tokens, contexts, level + 1, failed=failed)
    while tokens and tokens[0]["sign"] in _SIGNS[level]:
        sign = tokens.pop(0)["sign"]
        value = _SIGNS[level][sign](value, _operation(tokens, contexts, level + 1, failed=failed))
    return value


def _operand(tokens: list[re.Match[str]], contexts: Contexts, *, failed: bool) -> Any:
    if not tokens:
        raise UnknownError("an expression that ends too early")
    token = tokens.pop(0)
    if token["text"]:
        return token["text"][1:-1].replace("''", "'")
    if token["call"]:
        return _called(token["call"], failed=failed)
    if token["path"]:
        return _looked_up(token["path"], contexts)
    if token["sign"] != "(":
        raise UnknownError(f"{token['sign']} in this place")
    value = _operation(tokens, contexts, 0, failed=failed)
    if not tokens or tokens.pop(0)["sign"] != ")":
        raise UnknownError("a parenthesis that is not closed")
    return value


def _called(name: str, *, failed: bool) -> bool:
    known = {"always": True, "failure": failed, "success": not failed}
    if name not in known:
        raise UnknownError(f"the function {name}()")
    return known[name]


def _looked_up(path: str, contexts: Contexts) -> Any:
    """A step's output that was not set is empty, as on GitHub; anything else that is not there is refused."""
    if path in {"true", "false"}:
        return path == "true"
    names = path.split(".")
    value: Any = contexts
    for at, name in enumerate(names):
        if at == 3 and names[0] == "steps" and name not in value:
            return ""
        if not isinstance(value, Mapping) or name not in value:
            raise UnknownError(f"{path}: there is no {name}")
        value = value[name]
    return value


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _same(value: Any) -> str:
    """Texts are compared without their case."""
    return _shown(value).lower()
