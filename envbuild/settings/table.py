"""From the tables of a configuration to what they say of each option."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from envbuild.errors import UsageError
from envbuild.settings.file import Found
from envbuild.settings.lines import place_of
from envbuild.settings.model import OF_CAPTURE, SHARED, TEMPLATES, Kind, Option, Place, Said, Settings

_MEANT: Final = {
    "flag": "true or false",
    "number": "a whole number",
    "text": 'a text, such as "x"',
    "list": 'a list of texts, such as ["x", "y"]',
}
_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_AFTER_EQUALS: Final = ("pair", "reference", "uri")


def settled(found: Found, options: Iterable[Option]) -> Settings:
    """Hold a configuration against the options there are.

    UsageError, with file, line and key, for a key that none of them has, and for a value that it cannot take.
    """
    by_command: dict[str, dict[str, Option]] = {}
    for option in options:
        by_command.setdefault(option.command, {})[option.key] = option
    return Settings(file=found.path, text=found.text, tables=_Reading(found, by_command).tables())


@dataclass(frozen=True, slots=True)
class _Reading:
    found: Found
    options: Mapping[str, Mapping[str, Option]]

    def tables(self) -> dict[str, dict[str, Said]]:
        """Read all of it; what stands nearer to a command counts more."""
        tables: dict[str, dict[str, Said]] = {}
        whole = self._keys(self.found.table, "")
        known = {*self.options, TEMPLATES[0], *SHARED}
        for key, value in sorted(whole.items(), key=lambda it: it[0] in self.options):
            self._check_key(key, known, key)
            for name, said in self._at_top(key, value):
                tables.setdefault(name, {}).update(said)
        return tables

    def _at_top(self, key: str, value: Any) -> Iterator[tuple[str, dict[str, Said]]]:
        if key in self.options:
            yield from self._command(key, self._table(value, key))
        elif key == TEMPLATES[0]:
            yield from self._templates(self._table(value, key))
        else:
            for name in SHARED[key]:
                if key in self.options.get(name, {}):
                    yield name, {key: self._said(self.options[name][key], value, key)}

    def _templates(self, value: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Said]]]:
        table, folder, command, template = TEMPLATES
        for key, it in self._keys(value, table).items():
            self._check_key(key, {folder}, f"{table}.{key}")
            yield command, {template: self._said(self.options[command][template], it, f"{table}.{key}")}

    def _command(self, command: str, value: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Said]]]:
        options = self.options[command]
        choices = {it for option in options.values() if option.choosing for it in option.choices} - options.keys()
        said: dict[str, Said] = {}
        for key, it in self._keys(value, command).items():
            at = f"{command}.{key}"
            self._check_key(key, {*options, *choices}, at)
            if key in choices:
                yield at, self._chosen(options, self._keys(self._table(it, at), at), at)
            else:
                said[key] = self._said(options[key], it, at)
        yield command, said

    def _chosen(self, options: Mapping[str, Option], values: Mapping[str, Any], at: str) -> dict[str, Said]:
        for key in values:
            self._check_key(key, options, f"{at}.{key}")
        return {key: self._said(options[key], value, f"{at}.{key}") for key, value in values.items()}

    def _said(self, option: Option, value: Any, at: str) -> Said:
        if (option.command, option.key) == ("capture", "command") and isinstance(value, list):
            value = shlex.join(map(str, value))  # as envbuild.capture() has it
        if not _fits(option.kind, value):
            raise self._wrong("this is not what the option takes", at, f"write {_MEANT[option.kind]}")
        self._check_letters(option, value, at)
        return Said(value=self._placed(option.place, value), key=self.found.prefix + at)

    def _check_letters(self, option: Option, value: Any, at: str) -> None:
        """Refuse what could not be said on the command line, and what no image is called."""
        for number, text in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(text, str) and "\0" in text:
                raise self._wrong("a NUL is in it, which no option can take", at, "leave it out", number)
            if isinstance(text, str) and option.place == "reference" and _CONTROLS.search(text):
                what = "a line end or another control character is in the name of an image"
                raise self._wrong(what, at, "leave it out", number)

    def _placed(self, place: Place, value: Any) -> Any:
        """Make relative paths absolute, as the file means them."""
        if isinstance(value, list):
            return [self._placed(place, it) for it in value]
        if not isinstance(value, str) or place == "none":
            return value
        before, equals, path = value.rpartition("=") if place in _AFTER_EQUALS else ("", "", value)
        dotted = path.startswith(("./", "../"))
        begins = {"program": "/" in path, "reference": dotted, "uri": dotted, "key": path != "keyless"}.get(place, True)
        if not begins or not path.strip() or path == "-" or "://" in path:
            return value
        return f"{before}{equals}{self.found.path.absolute().parent / path}"

    def _keys(self, table: Mapping[str, Any], at: str) -> dict[str, Any]:
        """Write keys as options are written; UsageError where one is there twice."""
        keys: dict[str, Any] = {}
        for name, value in table.items():
            key = name.replace("_", "-")
            key = OF_CAPTURE.get(key, key) if at == "capture" else key
            if key in keys:
                raise self._wrong("this is there twice, in two spellings", f"{at}.{name}".lstrip("."), "leave one out")
            keys[key] = value
        return keys

    def _table(self, value: Any, at: str) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise self._wrong("this has to be a table", at, f"write [{self.found.prefix}{at}], and keys below it")
        return value

    def _check_key(self, key: str, known: Iterable[str], at: str) -> None:
        names = sorted(known)
        if key not in names:
            near = get_close_matches(key, names, 1, 0.6)
            todo = f"did you mean {near[0]}?" if near else "see docs/config.md; envbuild config --schema has all keys"
            raise self._wrong("there is no such key", at, todo)

    def _wrong(self, what: str, at: str, todo: str, entry: int | None = None) -> UsageError:
        place = place_of(self.found.path, self.found.text, self.found.prefix + at, entry)
        return UsageError(what, where=place, todo=todo)


def _fits(kind: Kind, value: Any) -> bool:
    match kind:
        case "flag":
            return isinstance(value, bool)
        case "number":
            return isinstance(value, int) and not isinstance(value, bool)
        case "text":
            return isinstance(value, str)
        case "list":
            return isinstance(value, list) and all(isinstance(it, str) for it in value)
