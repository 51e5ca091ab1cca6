"""JSON values -> frozen dataclasses by their type hints: each fault is noted with its dotted path, all told at once."""

import dataclasses
import math
import types
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from envbuild.manifest.fields import PAIRS, AnyText, Rule, VariableName, shown

T = TypeVar("T")

JSON_NAMES: dict[type, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that is wrong, and where."""

    path: str
    """`distributions[3].origin.kind`."""
    what: str


FAULT_LIMIT = 1000


@dataclass(frozen=True, slots=True)
class Parser:
    """Reads values by type hints and collects what is wrong; unknown keys are ignored, null is absent."""

    faults: list[Fault] = field(default_factory=list)

    def read(self, kind: type[T], values: dict[str, Any], path: str = "") -> T:
        """Read an object as a dataclass; where that found faults the result must not be used."""
        known: Any = kind
        found = ((name, self._field(hint, values, name, path, required=it), it) for name, hint, it in _fields(known))
        return kind(**{name: value for name, value, required in found if value is not None or required})

    def fault(self, path: str, what: str) -> None:
        """Note a fault, unless there are so many that nobody reads them."""
        if len(self.faults) < FAULT_LIMIT:
            self.faults.append(Fault(path=path, what=what))

    def _field(self, hint: Any, values: dict[str, Any], name: str, path: str, *, required: bool) -> Any:
        at = f"{path}.{name}" if path else name
        value = values.get(name)
        if value is not None:
            return self._value(hint, value, at)
        if required:
            self.fault(at, "is null" if name in values else "is missing")
        return None

    def _value(self, hint: Any, value: Any, at: str) -> Any:
        origin = get_origin(hint)
        if origin in (Union, types.UnionType):
            return self._value(next(it for it in get_args(hint) if it is not type(None)), value, at)
        if origin is Annotated:
            return self._annotated(get_args(hint), value, at)
        if origin is Literal:
            return self._one_of(get_args(hint), value, at)
        if origin is tuple:
            return self._list(get_args(hint)[0], value, at)
        if dataclasses.is_dataclass(hint):
            return self.read(cast("type", hint), value, at) if self._is(dict, value, at) else None
        return self._number(hint, value, at) if hint in (int, float) else self._plain(hint, value, at)

    def _annotated(self, arguments: tuple[Any, ...], value: Any, at: str) -> Any:
        if arguments[1] is PAIRS:
            return self._pairs(value, at)
        rule: Rule = arguments[1]
        wrong = rule.check(value) if self._is(str, value, at) else None
        if wrong:
            self.fault(at, wrong)
        return value

    def _one_of(self, choices: tuple[str, ...], value: Any, at: str) -> Any:
        if self._is(str, value, at) and value not in choices:
            self.fault(at, f"must be one of {', '.join(choices)}, is {shown(value)}")
        return value

    def _list(self, hint: Any, value: Any, at: str) -> tuple[Any, ...]:
        items = enumerate(value) if self._is(list, value, at) else ()
        return tuple(
            self._item(hint, item, f"{at}[{index}]") for index, item in items if len(self.faults) < FAULT_LIMIT
        )

    def _item(self, hint: Any, value: Any, at: str) -> Any:
        if value is not None:
            return self._value(hint, value, at)
        self.fault(at, "is null")
        return None

    def _pairs(self, value: Any, at: str) -> tuple[tuple[str, Any], ...]:
        if not self._is(dict, value, at):
            return ()
        name_rule, text_rule = (get_args(hint)[1] for hint in (VariableName, AnyText))
        for name in value:
            if wrong := name_rule.check(name):
                self.fault(at, wrong)
        names = sorted(name for name in value if not name_rule.check(name))
        return tuple((name, self._annotated((str, text_rule), value[name], f"{at}.{name}")) for name in names)

    def _number(self, kind: type, value: Any, at: str) -> Any:
        whole = kind is float and isinstance(value, int) and not isinstance(value, bool)
        if not whole and not self._is(kind, value, at):
            return None
        if value < 0:
            self.fault(at, f"must not be negative, is {value}")
        elif isinstance(value, float) and not math.isfinite(value):
            self.fault(at, "is too large")
        return value

    def _plain(self, kind: type, value: Any, at: str) -> Any:
        return value if self._is(kind, value, at) else None

    def _is(self, kind: type, value: Any, at: str) -> bool:
        # bool is an int to Python, and no number to JSON.
        if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
            return True
        self.fault(at, f"must be {JSON_NAMES[kind]}, is {json_name(value)}")
        return False


def shape(value: Any) -> Any:
    """Return the JSON shape of a value; fields that have their default are left out."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return [shape(item) for item in value] if isinstance(value, tuple) else value
    told = ((it, getattr(value, it.name)) for it in dataclasses.fields(value))
    hints = {name: hint for name, hint, _ in _fields(type(value))}
    return {it.name: _shaped(hints[it.name], found) for it, found in told if found != _default(it)}


def _default(field_: dataclasses.Field[Any]) -> Any:
    made = field_.default_factory
    return field_.default if made is dataclasses.MISSING else made()


def _shaped(hint: Any, value: Any) -> Any:
    pairs = get_origin(hint) is Annotated and get_args(hint)[1] is PAIRS
    return dict(value) if pairs else shape(value)


def json_name(value: object) -> str:
    """Say what JSON calls a value."""
    return JSON_NAMES[type(value)]


@cache
def _fields(kind: Any) -> tuple[tuple[str, Any, bool], ...]:
    """List name, type hint and whether it has to be there, for each field of a dataclass."""
    hints = get_type_hints(kind, include_extras=True)
    missing = dataclasses.MISSING
    return tuple(
        (it.name, hints[it.name], it.default is missing and it.default_factory is missing)
        for it in dataclasses.fields(kind)
    )
