"""What was said once for all calls: how values from a file and from variables reach options, and how they are named."""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer
from typer.core import TyperGroup, TyperOption

from envbuild.cli.console import printable
from envbuild.errors import EnvbuildError, UsageError

if TYPE_CHECKING:
    from envbuild.settings import Option, Settings
    from envbuild.settings.model import Kind, Place

FILE_VARIABLE: Final = "ENVBUILD_CONFIG"
OWN_VARIABLES: Final = frozenset({
    FILE_VARIABLE, "ENVBUILD_ARTIFACT_REGISTRY_ENDPOINT", "ENVBUILD_BY", "ENVBUILD_CACHE", "ENVBUILD_CACHE_LIMIT",
    "ENVBUILD_CHECK", "ENVBUILD_CLOUDBUILD_ENDPOINT", "ENVBUILD_CLOUDBUILD_TIMEOUT", "ENVBUILD_CONTRACT",
    "ENVBUILD_GCS_TIMEOUT", "ENVBUILD_IMAGE", "ENVBUILD_MODEL", "ENVBUILD_SIGN_PASSWORD",
    "ENVBUILD_SIGSTORE_TRUST_CONFIG", "ENVBUILD_ZDOTDIR",
})  # fmt: skip
"""Variables that are no option's."""
_SETTINGS: Final = "envbuild.settings"
_BROKEN: Final = "envbuild.broken"
_RUNNING: Final = "envbuild.running"
_CHOOSING: Final = ("role", "builder")
"""Options whose values name tables below their command's."""
_PATHS: Final = ("DIR", "FILE", "FILE.npz", "PATH")
_IMAGES: Final = ("REF", "REPO", "REPO[:TAG]")
_URIS: Final = ("URI", "[NAME=]URI", "MODEL_URI", "MANIFEST", "KEY=VALUE")


class Configured(TyperGroup):
    """The top command: reads the configuration before the others run, and says whose value an error is about."""

    def make_context(self, *given: Any, **more: Any) -> Any:
        """Read the words before the command."""
        with _printable_faults():
            return super().make_context(*given, **more)

    def invoke(self, ctx: Any) -> Any:
        """Run a command on what the command line, variables and the file say, in this order."""
        with _printable_faults():
            return self._invoke(ctx)

    def _invoke(self, ctx: Any) -> Any:
        commands = list(commands_of(self))
        for name, command in commands:
            command.context_class = _Running
            for option, parameter in options_of(name, command):
                parameter.envvar, parameter.show_envvar = option.variable, False
                if option.here:
                    _heed_empty(option, parameter)
        broken = _read_settings(ctx, commands)
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            if broken:  # which may be why a value is missing
                raise broken from error
            _name_source(error, ctx.meta.get(_RUNNING))
            raise
        except EnvbuildError as error:
            _name_sources(error, ctx.meta.get(_RUNNING))
            raise


def _heed_empty(option: "Option", parameter: TyperOption) -> None:
    """Refuse an empty path while it is one: pathlib takes it for the current folder."""
    usual = type(parameter).process_value

    def process(ctx: Any, value: Any) -> Any:
        if value is not None and not all(str(it).strip() for it in (value if parameter.multiple else [value])):
            todo = "give it a value, or leave it out; is a variable unset?"
            raise UsageError(f"--{option.key} is empty", where=f"--{option.key}", todo=todo)
        return usual(parameter, ctx, value)

    parameter.__dict__["process_value"] = process


@contextmanager
def _printable_faults() -> Iterator[None]:
    """Typer prints faults itself, with words of the command line in them."""
    try:
        yield
    except typer.TyperException as error:
        if isinstance(said := getattr(error, "message", None), str):
            error.__dict__["message"] = printable(said)
        raise


class _Running(typer.Context):
    """A context that can be found when its command has failed."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.meta[_RUNNING] = self

    def invoke(self, *given: Any, **more: Any) -> Any:
        """Run the command, unless an option's value or the configuration is not to be used for it."""
        for option, parameter in options_of(_words(self), self.command):
            refuse_address(option, value := self.params.get(str(parameter.name)))
            if option.place == "key" and value is None and os.environ.get(option.variable) == "":
                todo = f"set it to a key, or unset it: unset {option.variable}"
                raise UsageError(f"{option.variable} is empty, and would leave a check out", todo=todo)
        if self.params.get("signed") or self.params.get("policy"):
            _refuse_configuration_of_model(self)
        return super().invoke(*given, **more)

    def lookup_default(self, name: str, call: bool = True) -> Any:
        """Return what the file says, but not to --help, which would show it in every folder otherwise."""
        return super().lookup_default(name) if call else None


def _refuse_configuration_of_model(ctx: typer.Context) -> None:
    """UsageError where the configuration lies in a target's folder: whoever may write the model may write it."""
    file = settings_of(ctx).file
    if file is None or named_configuration(ctx) is not None:
        return
    words = [it for name in ("model", "target", "targets") for it in _texts(ctx.params.get(name))]
    places = [Path(it.removeprefix("model:").removeprefix("file://")).resolve() for it in words]
    for folder in (it if it.is_dir() else it.parent for it in places if it.exists()):
        if file.resolve().is_relative_to(folder):
            todo = 'run envbuild elsewhere, or name a configuration: envbuild --config FILE; --config "" is for none'
            what = f"the configuration lies in {folder}, so whoever writes the model would decide what is checked"
            raise UsageError(what, where=str(file), todo=todo)


def _texts(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or ())


def commands_of(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield every command below a group, with its words joined by hyphens: `base-build`."""
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from commands_of(command, (*words, name))
        else:
            yield "-".join((*words, name)), command


def options_of(name: str, command: Any) -> "Iterator[tuple[Option, TyperOption]]":
    """Yield the options of a command, as a configuration sees them and as Typer does."""
    from envbuild.settings import Option

    for parameter in command.params:
        if not isinstance(parameter, TyperOption):
            continue
        key = next(it for it in parameter.opts if it.startswith("--"))[2:]
        choices = tuple(str(getattr(it, "value", it)) for it in parameter.type_descriptor.choices or ())
        yield (
            Option(
                command=name,
                key=key,
                kind=_kind(parameter),
                place=_place(key, parameter),
                choices=choices,
                here=parameter.type_descriptor.annotation in (Path, list[Path]),
                choosing=key in _CHOOSING and bool(choices),
                help=parameter.help or "",
            ),
            parameter,
        )


def settings_of(ctx: typer.Context) -> "Settings":
    """Return what the configuration says; nothing where it is broken."""
    from envbuild.settings import Settings

    found: Settings | None = ctx.meta.get(_SETTINGS)
    return found or Settings()


def named_configuration(ctx: typer.Context) -> str | None:
    """Return the configuration that --config or its variable names; None where the nearest one is searched for."""
    named: str | None = ctx.find_root().params.get("config")
    return os.environ.get(FILE_VARIABLE) if named is None else named


def broken_settings(ctx: typer.Context) -> UsageError | None:
    """Return what is wrong with the configuration."""
    error: UsageError | None = ctx.meta.get(_BROKEN)
    return error


def source_of(ctx: typer.Context, option: "Option", parameter: TyperOption) -> tuple[str, str]:
    """Return where a value comes from: `file`, `variable`, `line` or `default`, and which key or variable."""
    found = ctx.get_parameter_source(parameter.name)
    match found.name if found else "":
        case "ENVIRONMENT":
            return "variable", option.variable
        case "DEFAULT_MAP":
            settings = settings_of(ctx)
            said = settings.said(option.command, option.key, [str(ctx.params.get(it, "")) for it in _CHOOSING])
            return "file", place_in(settings, said.key if said else option.key)
        case "COMMANDLINE":
            return "line", ""
        case _:
            return "default", ""


def place_in(settings: "Settings", key: str, entry: int | None = None) -> str:
    """Return the file, the line and the key of what is said: `/work/envbuild.toml, line 3: push`."""
    from envbuild.settings import place_of

    return place_of(settings.file or Path(), settings.text, key, entry)


def refuse_address(option: "Option", value: Any, where: str = "") -> None:
    """UsageError where an address stands for a path of this machine; not shown, as addresses may hold tokens."""
    if not option.here or value is None:
        return
    from envbuild.oci.reference import exists

    for text in map(str, value if isinstance(value, list | tuple) else [value]):
        # pathlib makes one slash of two.
        if re.match(r"[A-Za-z][\w+.-]+:/", text) and not exists(text):
            todo = "give a file or a folder of this machine"
            raise UsageError("this takes a path, and an address is given", where=where or f"--{option.key}", todo=todo)


def on_line(ctx: typer.Context, name: str) -> bool:
    """Whether a parameter was given on the command line."""
    found = ctx.get_parameter_source(name)
    return found is not None and found.name == "COMMANDLINE"


def _kind(parameter: TyperOption) -> "Kind":
    if parameter.is_flag:
        return "flag"
    if parameter.multiple:
        return "list"
    return "number" if parameter.type_descriptor.annotation is int else "text"


def _place(key: str, parameter: TyperOption) -> "Place":
    shape = parameter.metavar or ""
    if shape == "PATH" and key == "python":
        return "program"
    if shape == "KEY":
        return "key"
    if shape in _PATHS or parameter.type_descriptor.annotation in (Path, list[Path]):
        return "path"
    if shape == "URI=PATH":
        return "pair"
    if shape in _IMAGES:
        return "reference"
    return "uri" if shape in _URIS else "none"


def _read_settings(ctx: Any, commands: list[tuple[str, Any]]) -> UsageError | None:
    """Let options find what the file says; what is wrong with it is left to the commands, and returned."""
    from envbuild.settings import Settings, find_settings, settled

    try:
        found = find_settings(named_configuration(ctx), _here())
        options = [option for name, command in commands for option, _ in options_of(name, command)] if found else ()
        settings = settled(found, options) if found else Settings()
        _refuse_values(settings, options)
    except UsageError as error:
        ctx.meta[_BROKEN] = error
        for name, command in commands:
            if name != "config":
                command.callback = _raising(error)
        return error
    ctx.meta[_SETTINGS] = settings
    if settings.tables:
        ctx.default_map = _defaults(ctx.command, settings)
    return None


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:  # removed; commands that work there say so
        return Path("/")


def _refuse_values(settings: "Settings", options: "Iterable[Option]") -> None:
    """Refuse logins, and addresses where paths are meant."""
    from envbuild.oci.reference import refuse_login

    known = {(option.command, option.key): option for option in options}
    for table, values in settings.tables.items():
        for key, said in values.items():
            texts = said.value if isinstance(said.value, list) else [said.value]
            option = known[table.partition(".")[0], key]
            for number, text in ((n, it) for n, it in enumerate(texts) if isinstance(it, str)):
                where = place_in(settings, said.key, number)
                if option.place == "reference":
                    refuse_login(text, where)
                refuse_address(option, text, where)
                if re.search(r"://[^/\s]*@", text):
                    todo = "leave out what stands before the @; see docs/config.md for where passwords belong"
                    raise UsageError("a configuration holds no user or password", where=where, todo=todo)


def _raising(error: UsageError) -> Callable[..., None]:
    def refuse(**_given: Any) -> None:
        raise error

    return refuse


def _defaults(group: Any, settings: "Settings", words: tuple[str, ...] = ()) -> dict[str, Any]:
    """Write what the file says by the names of parameters, as Typer looks for it."""
    defaults: dict[str, Any] = {}
    for word, command in group.commands.items():
        if isinstance(command, TyperGroup):
            defaults[word] = _defaults(command, settings, (*words, word))
            continue
        name = "-".join((*words, word))
        options = list(options_of(name, command))
        names = {option.key: parameter.name for option, parameter in options}
        defaults[word] = _named(settings, name, names)
        for option, parameter in options:
            if option.choosing and any(f"{name}.{it}" in settings.tables for it in option.choices):
                # Seen to before the others, as these may stand in the table that it chooses.
                parameter.is_eager, parameter.callback = True, _choosing(settings, name, names)
    return defaults


def _named(settings: "Settings", table: str, names: dict[str, str]) -> dict[str, Any]:
    return {names[key]: said.value for key, said in settings.tables.get(table, {}).items()}


def _choosing(settings: "Settings", command: str, names: dict[str, str]) -> Callable[..., Any]:
    def chosen(ctx: Any, _parameter: Any, value: Any) -> Any:
        ctx.default_map = {**(ctx.default_map or {}), **_named(settings, f"{command}.{value}", names)}
        return value

    return chosen


def _name_source(error: typer.BadParameter, ctx: typer.Context | None) -> None:
    """Add to a fault that Typer found where the value came from, and leave out what Typer's library calls it."""
    error.message = said_by_typer(error)
    if ctx is not None and isinstance(error.param, TyperOption) and (said := _said_by(ctx, error.param)):
        error.message = f"{error.message} ({said})"


def said_by_typer(error: typer.BadParameter) -> str:
    """What a value is refused for."""
    return str(error.message).replace("Value error, ", "", 1)


def _name_sources(error: EnvbuildError, ctx: typer.Context | None) -> None:
    """Add to a fault where the options came from that it names."""
    if ctx is None:
        return
    text = f"{error.what} {error.where}"
    options = (it for it in ctx.command.params if isinstance(it, TyperOption))
    named = (
        it for it in options if any(re.search(rf"(?<![\w-]){opt}(?![\w-])|\A{opt[2:]}: ", text) for opt in it.opts)
    )
    if said := ", ".join(filter(None, (_said_by(ctx, it) for it in named))):
        error.where = f"{error.where} ({said})" if error.where else said


def _said_by(ctx: typer.Context, parameter: TyperOption) -> str:
    option = next((option for option, it in options_of(_words(ctx), ctx.command) if it is parameter), None)
    kind, where = source_of(ctx, option, parameter) if option else ("", "")
    return f"from {where}" if kind in ("file", "variable") else ""


def _words(ctx: Any) -> str:
    words: list[str] = []
    while ctx.parent is not None:
        words.insert(0, ctx.info_name)
        ctx = ctx.parent
    return "-".join(words)
