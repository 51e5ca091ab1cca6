"""JSON and TOML values -> frozen dataclasses: msgspec checks types, patterns and ranges; every fault has its path."""

import dataclasses
import threading
import types
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import islice
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

T = TypeVar("T")
_PREPARING = threading.Lock()
_PREPARED: set[Any] = set()
FAULT_LIMIT = 1000


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """One value that is not valid."""

    path: str
    """`distributions[3].origin.kind`."""
    what: str


class InvalidError(ValueError):
    """Values that are not of the type that they have to be."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("; ".join(f"{it.path}: {it.what}" for it in faults))
        self.faults = faults


def read_values(values: Any, kind: type[T], path: str = "") -> T:
    """Convert values to a type; null is the same as absent, unknown keys are ignored. InvalidError has all faults.

    A type with an attribute `json_type` is made from the sorted items of that type of mapping.
    """
    try:
        _prepare(kind)
        values = _without_null(values)
        return msgspec.convert(values, kind, dec_hook=_decode)
    except (ValueError, RecursionError) as error:
        deep = isinstance(error, RecursionError)
        faults = [] if deep else list(islice(_faults(values, kind, path), FAULT_LIMIT))
        raise InvalidError(faults or [Fault(path, "is nested too deeply" if deep else str(error))]) from error


def read_or_none(values: Any, kind: type[T]) -> T | None:
    """Convert values as `read_values` does; None where they are not valid."""
    try:
        return read_values(values, kind)
    except InvalidError:
        return None


def quote(value: str) -> str:
    """Quote a text for a message: on one line, in ASCII, at most 80 characters."""
    return ascii(value if len(value) <= 80 else value[:79] + "…")


def _prepare(kind: Any) -> None:
    """Let msgspec describe a type to itself in one thread at a time: two that do it at once crash (msgspec 0.22.0)."""
    with _PREPARING:
        if kind not in _PREPARED:
            with suppress(ValueError):
                msgspec.convert(None, kind, dec_hook=_decode)
            _PREPARED.add(kind)


@cache
def fields_of(kind: Any) -> tuple[tuple[str, Any, bool], ...]:
    """Return name, type hint and whether it is required, for each field of a dataclass."""
    hints, missing = get_type_hints(kind, include_extras=True), dataclasses.MISSING
    fields = ((it, it.default is missing and it.default_factory is missing) for it in dataclasses.fields(kind))
    return tuple((it.name, hints[it.name], required) for it, required in fields)


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_null(it) for key, it in value.items() if it is not None}
    return [_without_null(it) for it in value] if isinstance(value, list) else value


def _decode(kind: Any, value: Any) -> Any:
    if hasattr(kind, "json_type"):
        return kind(sorted(msgspec.convert(value, kind.json_type).items()))
    if not isinstance(value, str):
        raise TypeError(f"Expected `str`, got `{type(value).__name__}`")
    return kind(value)


def _faults(value: Any, hint: Any, at: str) -> Iterator[Fault]:
    """Find the innermost values that msgspec refuses."""
    try:
        msgspec.convert(value, hint, dec_hook=_decode)
    except ValueError as error:
        inner = list(islice(_inner_faults(value, hint, at), FAULT_LIMIT))
        yield from inner or [Fault(at, _describe(value, hint, error))]


def _inner_faults(value: Any, hint: Any, at: str) -> Iterator[Fault]:
    hint = kind = _bare(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        for name, inner, required in fields_of(kind):
            path = f"{at}.{name}" if at else name
            if name in value:
                yield from _faults(value[name], inner, path)
            elif required:
                yield Fault(path, "is missing")
    elif origin is tuple and isinstance(value, list):
        for index, item in enumerate(value):
            yield from _faults(item, arguments[0], f"{at}[{index}]")
    elif origin is dict and isinstance(value, dict):
        for key, item in value.items():
            yield from _faults(key, arguments[0], at)
            yield from _faults(item, arguments[1], f"{at}.{key}" if key.isprintable() else at)


def _bare(hint: Any) -> Any:
    """Return the type without `| None`, and the mapping that it is made from."""
    if get_origin(hint) in {Union, types.UnionType}:
        hint = next(it for it in get_args(hint) if it is not type(None))
    return getattr(hint, "json_type", hint)


def _describe(value: Any, hint: Any, error: ValueError) -> str:
    hint = _bare(hint)
    if isinstance(value, str):
        if get_origin(hint) is Literal:
            return f"must be one of {', '.join(get_args(hint))}, is {quote(value)}"
        meta = next((it for it in getattr(hint, "__metadata__", ()) if it.title), None)
        if meta:
            return f"is not a valid {meta.title}: {'not shown' if meta.extra else quote(value)}"
    return str(error).partition(" - at ")[0].replace(" | null`", "`")
