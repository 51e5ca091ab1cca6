"""What all commands share: `--help` in panels, and values from variables and the configuration file."""

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import Field, field, fields, is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, get_args, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from envbuild.errors import BuildError, EnvbuildError, UsageError

if TYPE_CHECKING:
    from envbuild.config import Configuration, Kind, Option, Place

WHAT, WHERE, HOW, ADVANCED = PANELS = ("What", "Where to", "How", "Advanced")
"""The panels of options in `--help`."""
what_option, where_option, how_option, advanced_option = (partial(typer.Option, rich_help_panel=it) for it in PANELS)
"""`typer.Option` for each panel."""
_OPTION: Final = "option"
"""The key of a field's metadata where `option` keeps names and settings."""
WORDS: Final = "envbuild.words"
"""Where the words after `--` are, in a context's meta."""
_CONFIGURATION, _TABLES = "envbuild.configuration", "envbuild.tables"
_HAVE_TABLES: Final = ("role", "builder")
"""Options whose values name tables below their command's."""
_PRINT_WITHOUT_OUT: Final = ("capture", "convert")
"""Commands that write their result either to --out or to stdout."""
_PLACES: "Final[dict[str, Place]]" = {
    **dict.fromkeys(("DIR", "FILE", "FILE.npz", "PATH"), "path"),
    **dict.fromkeys(("REF", "REPO", "REPO[:TAG]"), "reference"),
    **dict.fromkeys(("URI", "[NAME=]URI", "MODEL_URI", "MANIFEST", "KEY=VALUE"), "uri"),
    "URI=PATH": "pair",
    "KEY": "key",
}


class Command(TyperCommand):
    """A command whose options come from the command line, else a variable, else the configuration."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line."""
        try:
            given, _, _ = self.make_parser(ctx).parse_args(args=[*args])
            for option, _, value in option_values(ctx, given):
                if option.local and not given.get("help"):
                    check_path(option, value)
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            _check_configuration(ctx)  # which may be why a value is missing
            error.message = reason_of(error)
            if isinstance(error.param, TyperOption) and (source := _source_text(ctx, error.param)):
                error.message = f"{error.message} ({source})"
            raise
        except EnvbuildError as error:
            _add_sources(ctx, error)
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error that names an option gets the source of its value."""
        _check_configuration(ctx)
        if sys.stdout is None and not (ctx.params.get("out") and command_name(ctx) in _PRINT_WITHOUT_OUT):
            todo = "leave it open, or send the result to a file: > FILE"
            raise BuildError("standard output is closed, and the result goes there", todo=todo)
        try:
            for option, parameter in options_of(command_name(ctx), self):
                unset = ctx.params.get(parameter.name) is None
                if option.place == "key" and unset and os.environ.get(option.variable) == "":
                    todo = f"set it to a key, or unset it: unset {option.variable}"
                    raise UsageError(f"{option.variable} is empty, and would leave a check out", todo=todo)
            if ctx.params.get("signed") or ctx.params.get("policy"):
                _refuse_configuration_of_model(ctx)
            return super().invoke(ctx)
        except EnvbuildError as error:
            _add_sources(ctx, error)
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, with the program's own defaults, not those of a configuration."""
        ctx.default_map = None
        super().format_help(ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options by panel."""
        panels: dict[str, list[tuple[str, str]]] = {name: [] for name in ("Arguments", *PANELS)}
        for parameter in self.get_params(ctx):
            if row := parameter.get_help_record(ctx):
                name = getattr(parameter, "rich_help_panel", None)
                is_argument = parameter.param_type_name == "argument"
                panels.setdefault("Arguments" if is_argument else name or "Options", []).append(row)
        for name, rows in panels.items():
            if rows:
                with formatter.section(name):
                    formatter.write_dl(rows)


class RunCommand(Command):
    """A command with another one after `--`: before it there are options only."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words before `--`."""
        if "--" in args:
            ctx.meta[WORDS] = args[args.index("--") + 1 :]
            args = args[: args.index("--")]
        return super().parse_args(ctx, args)


CommandFunction = TypeVar("CommandFunction", bound=Callable[..., Any])


class App(typer.Typer):
    """A group of such commands; help and usage errors are plain text."""

    def __init__(self, **more: Any) -> None:
        settings = {"max_content_width": 100}
        super().__init__(
            no_args_is_help=True,
            rich_markup_mode=None,
            add_completion=False,
            pretty_exceptions_enable=False,
            context_settings=settings,
            **more,
        )

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = Command, **more: Any
    ) -> Callable[[CommandFunction], CommandFunction]:
        """Register a command, as Typer does."""
        return super().command(name, cls=cls, **more)


def examples(*lines: str) -> str:
    r"""Return the end of a command's help; `\b` keeps the lines apart."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def option(
    panel: str, text: str, metavar: str | None = None, *names: str, default: Any = None, **more: Any
) -> Any:  # as `dataclasses.field`
    """Declare an option, with its help, for `grouped`: as a field of a dataclass, or a parameter's default."""
    settings = {"help": text or None, "metavar": metavar, "rich_help_panel": panel} | more
    return field(default=default, metadata={_OPTION: (names, settings)})


def flag(panel: str, text: str, *names: str) -> Any:
    """Declare an option without a value, by default `--` and the field's name."""
    return option(panel, text, None, *names, default=False)


def grouped(*hidden: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the fields of its parameters that are dataclasses as options; those of `hidden` are not shown.

    Each field has a default, and is annotated as an option or declared by `option` or `flag`; field names are unique
    among all groups. The dataclasses are plain, as frozen ones with eq and repr make `--help` 10 ms slower.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(command).parameters.values():
            if kind := groups.get(parameter.name):
                types = get_type_hints(kind, include_extras=True)
                hide = parameter.name in hidden
                parameters += [_option(it.name, types[it.name], it, hidden=hide) for it in fields(kind)]
            elif isinstance(parameter.default, Field):
                parameters.append(_option(parameter.name, hints[parameter.name], parameter.default))
            else:
                parameters.append(parameter.replace(annotation=hints[parameter.name]))

        @wraps(command)
        def flat(**given: Any) -> None:
            for name, kind in groups.items():
                given[name] = kind(**{it.name: given.pop(it.name) for it in fields(kind)})
            command(**given)

        flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        flat.__annotations__ = {}
        return flat

    return decorate


def _option(name: str, annotation: Any, declared: Field[Any], *, hidden: bool = False) -> inspect.Parameter:
    if _OPTION in declared.metadata:
        type_, (names, settings) = annotation, declared.metadata[_OPTION]
        if declared.default is False and not names:
            names = (f"--{name.replace('_', '-')}",)
        info = typer.Option(*names, **settings)
    else:
        type_, info = get_args(annotation)
        info = copy(info)
    info.hidden = info.hidden or hidden
    annotation = Annotated[type_, info]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=declared.default, annotation=annotation)


def commands_of(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield every command below a group, with its words joined by hyphens: `base-build`."""
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from commands_of(command, (*words, name))
        else:
            yield "-".join((*words, name)), command


def command_name(ctx: Any) -> str:
    """Return the words of a command joined by hyphens: `base-build`."""
    return "-".join(ctx.command_path.split()[1:])


def options_of(name: str, command: Any) -> "Iterator[tuple[Option, TyperOption]]":
    """Yield the options of a command, as a configuration and as Typer have them."""
    from envbuild.config import Option

    for parameter in command.params:
        if not isinstance(parameter, TyperOption):
            continue
        key = next(it for it in parameter.opts if it.startswith("--"))[2:]
        choices = tuple(str(getattr(it, "value", it)) for it in parameter.type_descriptor.choices or ())
        number = parameter.type_descriptor.annotation is int
        kind: Kind = "flag" if parameter.is_flag else "list" if parameter.multiple else "number" if number else "text"
        local = parameter.type_descriptor.annotation in (Path, list[Path])
        place: Place = _PLACES.get(parameter.metavar or "", "path" if local else "none")
        yield (
            Option(
                command=name,
                key=key,
                kind=kind,
                place="program" if (key, parameter.metavar) == ("python", "PATH") else place,
                choices=choices,
                local=local,
                has_tables=key in _HAVE_TABLES and bool(choices),
                help=parameter.help or "",
            ),
            parameter,
        )


def option_values(ctx: Any, given: Mapping[str, Any]) -> "Iterator[tuple[Option, TyperOption, Any]]":
    """Let the options of a context have values from variables and the configuration; yield each value as it is written.

    `given` are values of the command line, by the parameter's name.
    """
    name = command_name(ctx)
    options = list(options_of(name, ctx.command))
    for option, parameter in options:
        parameter.envvar, parameter.show_envvar = option.variable, False
    tables = ctx.meta[_TABLES] = [name]
    _set_defaults(ctx, options)
    for option, parameter in options:
        if option.has_tables:
            value, _ = parameter.consume_value(ctx, given)
            tables.append(f"{name}.{value}")
            _set_defaults(ctx, options)
    for option, parameter in options:
        value, source = parameter.consume_value(ctx, given)
        ctx.set_parameter_source(parameter.name, source)
        yield option, parameter, value


def _set_defaults(ctx: Any, options: "list[tuple[Option, TyperOption]]") -> None:
    configuration = configuration_of(ctx)
    settings = ((parameter.name, configuration.setting(ctx.meta[_TABLES], it.key)) for it, parameter in options)
    ctx.default_map = {name: setting.value for name, setting in settings if setting}


def load_configuration(ctx: typer.Context, named: str | None) -> None:
    """Read the configuration for the command that is about to run; what is wrong with it is left to that command."""
    from envbuild.config import Configuration, find_file, read_settings

    try:
        here = Path.cwd()
    except FileNotFoundError:  # removed; commands that work there report it
        here = Path("/")
    try:
        if file := find_file(named, here):
            options = [it for name, command in commands_of(ctx.command) for it, _ in options_of(name, command)]
            ctx.meta[_CONFIGURATION] = read_settings(file, options, _check_text)
    except UsageError as error:
        ctx.meta[_CONFIGURATION] = Configuration(error=error)


def _check_text(option: "Option", text: str, where: str) -> None:
    """Refuse logins, and addresses where paths are expected."""
    from envbuild.oci.reference import refuse_login

    if option.place == "reference":
        refuse_login(text, where)
    if option.local and text.strip():  # the command line may have another value than an empty one
        check_path(option, text, where)
    if re.search(r"://[^/\s]*@", text):
        todo = "leave out what is before the @; docs/config.md tells where passwords belong"
        raise UsageError("a configuration must not contain a user or password", where=where, todo=todo)


def check_path(option: "Option", value: Any, where: str = "") -> None:
    """UsageError for an empty path, and for an address, which is not shown, as it may contain a token."""
    from envbuild.oci.reference import exists

    for text in () if value is None else map(str, value) if isinstance(value, list | tuple) else (str(value),):
        if not text.strip():
            todo = "give it a value, or leave it out; is a variable unset?"
            raise UsageError(f"--{option.key} is empty", where=where or f"--{option.key}", todo=todo)
        if re.match(r"[A-Za-z][\w+.-]+:/", text) and not exists(text):  # pathlib makes one slash of two
            todo = "give a file or a folder of this machine"
            raise UsageError("this takes a path, and an address is given", where=where or f"--{option.key}", todo=todo)


def _refuse_configuration_of_model(ctx: typer.Context) -> None:
    """UsageError where the configuration is in a target's folder: anyone who can write the model can write it."""
    from envbuild.config import FILE_VARIABLE

    file = configuration_of(ctx).file
    if file is None or FILE_VARIABLE in os.environ or ctx.find_root().params.get("config") is not None:
        return
    given = [ctx.params.get(name) or () for name in ("model", "target", "targets")]
    words = [it for value in given for it in ([value] if isinstance(value, str) else value)]
    places = [Path(it.removeprefix("model:").removeprefix("file://")).resolve() for it in words]
    for folder in (it if it.is_dir() else it.parent for it in places if it.exists()):
        if file.resolve().is_relative_to(folder):
            todo = 'run envbuild elsewhere, or name a configuration: envbuild --config FILE; --config "" is for none'
            what = f"the configuration is in {folder}, so anyone who writes the model decides what is checked"
            raise UsageError(what, where=str(file), todo=todo)


def configuration_of(ctx: typer.Context) -> "Configuration":
    """Return the configuration; one without settings where it is broken."""
    from envbuild.config import Configuration

    found: Configuration | None = ctx.meta.get(_CONFIGURATION)
    return found or Configuration()


def _check_configuration(ctx: typer.Context) -> None:
    error = configuration_of(ctx).error
    if error and command_name(ctx) != "config":
        raise error


def source_of(ctx: Any, option: "Option", parameter: TyperOption) -> tuple[str, str]:
    """Return where a value comes from: `file`, `variable`, `line` or `default`, and which key or variable."""
    source = ctx.get_parameter_source(parameter.name)
    match source.name if source else "":
        case "ENVIRONMENT":
            return "variable", option.variable
        case "DEFAULT_MAP":
            setting = configuration_of(ctx).setting(ctx.meta[_TABLES], option.key)
            return "file", setting.where if setting else ""
        case "COMMANDLINE":
            return "line", ""
        case _:
            return "default", ""


def on_line(ctx: typer.Context, name: str) -> bool:
    """Whether a parameter was given on the command line."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def reason_of(error: typer.BadParameter) -> str:
    """Return why a value is refused, without the name of the library that refuses it."""
    return str(error.message).replace("Value error, ", "", 1)


def _add_sources(ctx: Any, error: EnvbuildError) -> None:
    """Add to an error where the options come from that it names."""
    text = f"{error.what} {error.where}"
    options = [it for it in ctx.command.params if isinstance(it, TyperOption)]
    named = [
        it for it in options if any(re.search(rf"(?<![\w-]){opt}(?![\w-])|\A{opt[2:]}: ", text) for opt in it.opts)
    ]
    if sources := ", ".join(filter(None, (_source_text(ctx, it) for it in named))):
        error.where = f"{error.where} ({sources})" if error.where else sources


def _source_text(ctx: Any, parameter: TyperOption) -> str:
    options = options_of(command_name(ctx), ctx.command)
    kind, where = next((source_of(ctx, option, it) for option, it in options if it is parameter), ("", ""))
    return f"from {where}" if kind in ("file", "variable") else ""
