"""The configuration of a project: `envbuild.toml`, or `[tool.envbuild]` in pyproject.toml."""

import os
import re
import shlex
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Literal

from envbuild.errors import UsageError

FILE_VARIABLE: Final = "ENVBUILD_CONFIG"
SHARED: Final[Mapping[str, tuple[str, ...]]] = {
    "base": ("from-manifest", "serve", "lock"),
    "ca-bundle": ("from-manifest", "serve"),
    "compression": ("from-manifest", "serve"),
    "find-links": ("from-manifest", "serve", "local", "lock"),
    "offline": ("from-manifest", "serve", "local", "lock"),
    "policy": ("verify", "deploy-check"),
    "push": ("from-manifest", "serve"),
    "require-identical": ("from-manifest", "serve", "lock"),
    "resolver": ("from-manifest", "serve", "lock"),
    "variant": ("from-manifest", "serve", "lock"),
}
"""The keys at the top of the file and their commands: an option of the same name may mean something else elsewhere."""
_TEMPLATES: Final = ("templates", "folder", "from-manifest", "template")
"""A table with a key of its own, and the command and the option that they set."""
_CAPTURE_NAMES: Final = {"variables": "variable"}
"""Keys of [capture] that `envbuild.capture()`, which reads this table too, calls otherwise."""
_OWN, _PROJECT = "envbuild.toml", "pyproject.toml"
_MAX_BYTES: Final = 1 << 20
_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_IGNORE: Final = "or set ENVBUILD_CONFIG to nothing, and no configuration is read"

Kind = Literal["flag", "number", "text", "list"]
Place = Literal["none", "path", "program", "pair", "reference", "uri", "key"]
"""Which part of a value is a path: all of it; all, where it has a slash; what follows `=`; of images and URIs what
begins with `./` or `../`; of keys all but the word `keyless`; none where it names nothing on this machine."""
_TYPES: Final[Mapping[Kind, tuple[str, dict[str, Any]]]] = {
    "flag": ("true or false", {"type": "boolean"}),
    "number": ("a whole number", {"type": "integer"}),
    "text": ('a text, such as "x"', {"type": "string"}),
    "list": ('a list of texts, such as ["x", "y"]', {"type": "array", "items": {"type": "string"}}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of one command."""

    command: str
    """Its words with hyphens: `base-build`."""
    key: str
    """Its long name without the hyphens before it: `find-links`."""
    kind: Kind
    place: Place = "none"
    choices: tuple[str, ...] = ()
    """The values it takes; empty where these are not a few words."""
    local: bool = False
    """Whether it is a path of this machine and nothing else, so that an address is a mistake."""
    has_tables: bool = False
    """Whether its choices name tables below the command's, which count where they are chosen."""
    help: str = ""

    @property
    def variable(self) -> str:
        """`ENVBUILD_BASE_BUILD_PYTHON_IMAGE`."""
        return f"ENVBUILD_{self.command}_{self.key}".upper().replace("-", "_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The value of an option in a configuration."""

    value: Any
    """As the option takes it, relative paths made absolute."""
    where: str
    """`/work/envbuild.toml: from-manifest.serve.extra`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The settings of a project."""

    file: Path | None = None
    """None where there is none."""
    tables: Mapping[str, Mapping[str, Setting]] = field(default_factory=dict)
    """By command, or `from-manifest.serve`, and by the option's key."""
    error: UsageError | None = None
    """Why the file cannot be used."""

    def setting(self, tables: Sequence[str], key: str) -> Setting | None:
        """Return what counts for an option in these tables: the last one that has it."""
        return next((it for name in reversed(tables) if (it := self.tables.get(name, {}).get(key))), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """A configuration file as it was read."""

    path: Path
    table: Mapping[str, Any] = field(default_factory=dict)
    """The whole file, or [tool.envbuild] of a pyproject.toml."""
    prefix: str = ""
    """The prefix of keys in messages: `tool.envbuild.` or nothing."""

    def where(self, key: str) -> str:
        """Return the file and the key: `/work/envbuild.toml: from-manifest.extra`."""
        return f"{self.path}: {self.prefix}{key}"


def find_file(named: str | None, here: Path) -> ConfigFile | None:
    """Read the file that is named, else the nearest one in `here` and above; None where there is none.

    An empty name is for none at all. The search ends with the folder that holds `.git`, and where another file system
    begins. UsageError for a file that cannot be read, or belongs to another user.
    """
    if named is not None:
        return (_read(here / named) or ConfigFile(path=here / named)) if named.strip() else None
    device = _device(here)
    for folder in (here, *here.parents):
        if _device(folder) != device:
            return None
        for path in (folder / _OWN, folder / _PROJECT):
            if os.path.lexists(path) and (file := _read(path, owned=True)):
                return file
        if os.path.lexists(folder / ".git"):
            return None
    return None


def _device(folder: Path) -> int | None:
    try:
        return folder.stat().st_dev
    except OSError:
        return None


def _read(path: Path, *, owned: bool = False) -> ConfigFile | None:
    """Read a file; None for a pyproject.toml without [tool.envbuild]."""
    import tomllib  # noqa: PLC0415 - only where there is a file

    def unreadable(what: str) -> UsageError:
        return UsageError(what, where=str(path), todo=f"correct or remove it, {_IGNORE}")

    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # a pipe would block
            raise unreadable("this is not a regular file")
        if owned and found.st_uid not in {os.getuid(), 0, path.parent.stat().st_uid}:  # anyone can write to /tmp
            todo = f"if you trust it, name it by --config, {_IGNORE}"
            raise UsageError("this configuration belongs to another user", where=str(path), todo=todo)
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise unreadable(f"this is larger than {_MAX_BYTES} bytes")
        text = data.decode("utf-8-sig")  # with the mark that editors on Windows put before it
        table = tomllib.loads(f"{text}\n")  # so that an error on the last line names it
    except OSError as error:
        raise unreadable(f"this cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise unreadable("this is not UTF-8") from error
    except (ValueError, RecursionError) as error:
        reason = str(error).replace("Cannot overwrite a value", "a key is there twice")
        raise unreadable(f"this is not TOML: {reason}") from error
    if path.name != _PROJECT:
        return ConfigFile(path=path, table=table)
    tool = table.get("tool")
    if not isinstance(tool, dict) or "envbuild" not in tool:
        return None
    if not isinstance(tool["envbuild"], dict):
        raise unreadable("tool.envbuild is not a table")
    return ConfigFile(path=path, table=tool["envbuild"], prefix="tool.envbuild.")


def read_settings(
    file: ConfigFile, options: Iterable[Option], check: Callable[[Option, str, str], None] = lambda *_: None
) -> Configuration:
    """Read the settings of the options from a file.

    UsageError, with file and key, for a key that no option has, and for a value that it does not take. `check` is
    called with each text of a value and where it stands.
    """
    by_command: dict[str, dict[str, Option]] = {}
    for option in options:
        by_command.setdefault(option.command, {})[option.key] = option
    reader = _Reader(file, by_command)
    tables: dict[str, dict[str, Setting]] = {}
    for table, option, value, key in reader.entries():
        where = file.where(key)
        setting = Setting(value=reader.value(option, value, where), where=where)
        for text in setting.value if isinstance(setting.value, list) else [setting.value]:
            if isinstance(text, str):
                check(option, text, where)
        tables.setdefault(table, {})[option.key] = setting
    return Configuration(file=file.path, tables=tables)


@dataclass(frozen=True, slots=True)
class _Reader:
    file: ConfigFile
    options: Mapping[str, Mapping[str, Option]]

    def entries(self) -> Iterator[tuple[str, Option, Any, str]]:
        """Yield table, option, value and key in the file; what is nearer to a command comes later, and counts more."""
        table, folder, command, template = _TEMPLATES
        keys = self._keys(self.file.table, "")
        for key, value in sorted(keys.items(), key=lambda it: it[0] in self.options):
            self._check_key(key, {*self.options, *SHARED, table}, key)
            if key in self.options:
                yield from self._command(key, value)
            elif key == table:
                for name, it in self._keys(value, table).items():
                    self._check_key(name, {folder}, f"{table}.{name}")
                    yield command, self.options[command][template], it, f"{table}.{name}"
            else:
                for name in SHARED[key]:
                    if option := self.options.get(name, {}).get(key):
                        yield name, option, value, key

    def _command(self, command: str, value: Any) -> Iterator[tuple[str, Option, Any, str]]:
        options = self.options[command]
        choices = {it for option in options.values() if option.has_tables for it in option.choices}
        for key, it in self._keys(value, command).items():
            at = f"{command}.{key}"
            self._check_key(key, {*options, *choices}, at)
            if key in choices and (isinstance(it, dict) or key not in options):
                for name, below in self._keys(it, at).items():
                    self._check_key(name, options, f"{at}.{name}")
                    yield at, options[name], below, f"{at}.{name}"
            else:
                yield command, options[key], it, at

    def value(self, option: Option, value: Any, where: str) -> Any:
        """Return the value as the option takes it; UsageError for one that it does not take."""
        if (option.command, option.key) == ("capture", "command") and isinstance(value, list):
            value = shlex.join(map(str, value))  # `envbuild.capture()` takes a list
        if not _fits(option.kind, value):
            what, todo = f"--{option.key} does not take this value", f"write {_TYPES[option.kind][0]}"
            raise UsageError(what, where=where, todo=todo)
        for text in value if isinstance(value, list) else [value]:
            if not isinstance(text, str):
                continue
            if "\0" in text:
                raise UsageError("a NUL is in it, which no option can take", where=where, todo="leave it out")
            if option.place == "reference" and _CONTROLS.search(text):
                what = "a line end or another control character is in the name of an image"
                raise UsageError(what, where=where, todo="leave it out")
        if isinstance(value, list):
            return [self._absolute(option.place, it) for it in value]
        return self._absolute(option.place, value)

    def _absolute(self, place: Place, value: Any) -> Any:
        """Make a relative path absolute: it is one of the file's folder."""
        if not isinstance(value, str) or place == "none":
            return value
        after_equals = place in ("pair", "reference", "uri")
        before, equals, path = value.rpartition("=") if after_equals else ("", "", value)
        dotted = path.startswith(("./", "../"))
        is_path = {"program": "/" in path, "reference": dotted, "uri": dotted, "key": path != "keyless"}
        if not is_path.get(place, True) or not path.strip() or path == "-" or "://" in path:
            return value
        return f"{before}{equals}{self.file.path.absolute().parent / path}"

    def _keys(self, table: Any, at: str) -> dict[str, Any]:
        """Return a table with its keys as options are written."""
        if not isinstance(table, dict):
            todo = f"write [{self.file.prefix}{at}], and keys below it"
            raise UsageError("this has to be a table", where=self.file.where(at), todo=todo)
        keys: dict[str, Any] = {}
        for name, value in table.items():
            key = name.replace("_", "-")
            key = _CAPTURE_NAMES.get(key, key) if at == "capture" else key
            if key in keys:
                where = self.file.where(f"{at}.{name}".lstrip("."))
                raise UsageError("this is there twice, in two spellings", where=where, todo="leave one out")
            keys[key] = value
        return keys

    def _check_key(self, key: str, known: Iterable[str], at: str) -> None:
        names = sorted(known)
        if key not in names:
            near = get_close_matches(key, names, 1, 0.6)
            todo = f"did you mean {near[0]}?" if near else "envbuild config --schema prints all keys"
            raise UsageError("there is no such key", where=self.file.where(at), todo=todo)


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


def schema(options: Iterable[Option]) -> dict[str, Any]:
    """Return the JSON schema of envbuild.toml, and of [tool.envbuild] in pyproject.toml."""
    commands: dict[str, dict[str, Option]] = {}
    for option in options:
        commands.setdefault(option.command, {})[option.key] = option
    keys: dict[str, Any] = {
        key: _value_schema(commands[name][key])
        for key, names in SHARED.items()
        for name in reversed(names)
        if key in commands.get(name, {})
    }
    keys[_TEMPLATES[0]] = _table_schema({_TEMPLATES[1]: _TYPES["text"][1]})
    for name, its in commands.items():
        values = {key: _value_schema(option) for key, option in its.items()}
        if name == "capture":
            values |= {other: values[key] for other, key in _CAPTURE_NAMES.items() if key in values}
            values["command"] = {"anyOf": [_TYPES["text"][1], _TYPES["list"][1]]}
        tables = {it: _table_schema(values) for option in its.values() if option.has_tables for it in option.choices}
        both = {key: {"anyOf": [values[key], tables[key]]} for key in values.keys() & tables.keys()}
        keys[name] = _table_schema(values | tables | both)
    draft = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": draft, "title": "envbuild.toml", **_table_schema(keys)}


def _table_schema(keys: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": keys}


def _value_schema(option: Option) -> dict[str, Any]:
    value = dict(_TYPES[option.kind][1])
    if option.choices:
        one = {"enum": list(option.choices)}
        value = value | ({"items": one} if option.kind == "list" else one)
    return value | ({"description": option.help} if option.help else {})
