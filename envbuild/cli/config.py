"""`envbuild config`: what is said once for all calls, and where."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from envbuild.cli.configured import (
    OWN_VARIABLES,
    broken_settings,
    commands_of,
    options_of,
    place_in,
    refuse_address,
    said_by_typer,
    settings_of,
    source_of,
)
from envbuild.cli.console import Progress, printable
from envbuild.cli.printed import check_stdout
from envbuild.cli.targets import in_one_line
from envbuild.errors import UsageError

if TYPE_CHECKING:
    from envbuild.settings import Option

_SECRET: Final = re.compile(r"(?i)token|passw|secret|credential|key")
"""Names whose values are not shown."""
_SET: Final = "(set)"

All = Annotated[bool, typer.Option("--all", help="Show the defaults of all other options too.")]
Schema = Annotated[bool, typer.Option("--schema", help="Print a JSON schema of envbuild.toml, and stop.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One option, and what counts for it unless the command line says otherwise."""

    option: str
    """`from-manifest.push`, as in the file."""
    value: Any
    source: str
    """`file`, `variable` or `default`."""
    where: str
    """`/work/envbuild.toml: push`, or the variable's name."""
    variable: str
    fault: str = ""
    """Why the option does not take it."""

    def line(self) -> str:
        """Say it to people."""
        said = self.value if self.value == _SET else json.dumps(self.value, ensure_ascii=False)
        return f"{self.option} = {said}  [{self.where or self.source}]"


def run(ctx: typer.Context, *, everything: All = False, schema: Schema = False, as_json: AsJson = False) -> None:
    """Show what the configuration and variables say of the commands' options, and where each value comes from.

    The file is envbuild.toml, or [tool.envbuild] in pyproject.toml, of this folder or the nearest one above.
    The command line counts first, then variables, the file, and defaults. Secrets are not shown.
    """
    check_stdout()
    commands = list(commands_of(ctx.find_root().command))
    if schema:
        from envbuild.settings import schema as described

        options = [option for name, command in commands for option, _ in options_of(name, command)]
        typer.echo(json.dumps(described(options), indent=2))
        return
    found = [it for name, command in commands for it in _shown(ctx, name, command)]
    found += _chosen(ctx, dict(commands))
    kept = [it for it in found if everything or it.source != "default"]
    unknown = _unknown({it.variable for it in found})
    _print(ctx, kept, unknown, as_json=as_json)
    _judge(ctx, found)


def _shown(ctx: typer.Context, name: str, command: Any) -> Iterator[Shown]:
    """Let Typer find the values of a command, as if it had been called without any option."""
    calling: Any = typer.Context(command, parent=ctx.find_root(), info_name=name, default_map=_defaults(ctx, command))
    for option, parameter in sorted(options_of(name, command), key=lambda it: not it[1].is_eager):
        said, source = parameter.consume_value(calling, {})
        calling.set_parameter_source(parameter.name, source)
        given, fault = _taken(calling, option, parameter, said)
        if said is not None:
            calling.params[parameter.name] = given
        kind, where = source_of(calling, option, parameter)
        yield Shown(
            option=f"{name}.{option.key}",
            value=_hidden(option.key, given),
            source=kind,
            where=where,
            variable=option.variable,
            fault=fault,
        )


def _taken(ctx: Any, option: "Option", parameter: Any, said: Any) -> tuple[Any, str]:
    """What an option makes of a value, and why it does not take it."""
    given = said
    try:
        given = parameter.process_value(ctx, said) if said is not None else None
        refuse_address(option, given)
        for text in given if isinstance(given, list | tuple) else () if given is None else (given,):
            _check_text(option.key, str(text))
    except typer.BadParameter as error:
        return given, said_by_typer(error)
    except UsageError as error:
        return given, f"{error.what}; {error.todo}"
    return given, ""


def _check_text(key: str, text: str) -> None:
    """Refuse what every command refuses that has an option of this name."""
    if key == "platform":
        from envbuild.cli.references import machine_of

        for name in text.split(","):
            machine_of(name.strip() or None)
    elif key == "cmd":
        from envbuild.cli.serving import words_of

        words_of(text)
    elif key == "extra":
        from envbuild.serve.check import check_requirement

        check_requirement(text)


def _defaults(ctx: typer.Context, wanted: Any) -> Any:
    """Find what the file says of a command."""

    def below(group: Any, said: Any) -> Any:
        for name, command in group.commands.items():
            if command is wanted:
                return said.get(name)
            if hasattr(command, "commands") and (found := below(command, said.get(name) or {})):
                return found
        return None

    root = ctx.find_root()
    return below(root.command, root.default_map or {})


def _chosen(ctx: typer.Context, commands: dict[str, Any]) -> Iterator[Shown]:
    """What the file says for one choice only, such as --role serve."""
    settings = settings_of(ctx)
    for table, values in settings.tables.items():
        name, below, _ = table.partition(".")
        if not below:
            continue
        calling: Any = typer.Context(commands[name], parent=ctx.find_root(), info_name=name)
        options = {option.key: (option, parameter) for option, parameter in options_of(name, commands[name])}
        for key, said in values.items():
            option, parameter = options[key]
            yield Shown(
                option=f"{table}.{key}",
                value=_hidden(key, said.value),
                source="file",
                where=place_in(settings, said.key),
                variable=option.variable,
                fault=_taken(calling, option, parameter, said.value)[1],
            )


def _hidden(name: str, value: Any) -> Any:
    """Leave out what is secret, by its name or by its looks."""
    from envbuild.capture.redact import WITH_PASSWORD, scrub

    if isinstance(value, list | tuple):
        return [_hidden(name, it) for it in value]
    if value is None or isinstance(value, bool | int):
        return value
    value = str(value)
    if _SECRET.search(name):
        return _SET
    before, equals, _ = value.partition("=")
    if equals and _SECRET.search(before):
        return f"{before}={_SET}"
    return WITH_PASSWORD.sub(r"\1", scrub(value))


def _unknown(known: set[str]) -> list[str]:
    """Variables that look like envbuild's and are not."""
    return sorted(name for name in os.environ if name.startswith("ENVBUILD_") and name not in known | OWN_VARIABLES)


def _print(ctx: typer.Context, shown: list[Shown], unknown: list[str], *, as_json: bool) -> None:
    file = settings_of(ctx).file
    own = {name: _hidden(name, os.environ[name]) for name in sorted(OWN_VARIABLES & os.environ.keys())}
    broken = broken_settings(ctx)
    if as_json:
        values = [asdict(it) for it in shown]
        told = {"file": str(file) if file else None, "options": values, "variables": own, "unknown": unknown}
        typer.echo(json.dumps(told | {"error": str(broken) if broken else None}, indent=2))
        return
    typer.echo(f"file: {printable(str(file or (broken.where if broken else 'none')))}")
    for it in shown:
        typer.echo(printable(it.line()))
    for name, value in own.items():
        typer.echo(in_one_line(f"{name}={value}"))
    with Progress() as progress:
        for name in unknown:
            progress.warn(f"{name} is no variable of envbuild's")


def _judge(ctx: typer.Context, shown: list[Shown]) -> None:
    """UsageError where the file is broken, or an option or the cache's limit does not take what is said."""
    from envbuild.cache import size_limit

    broken = broken_settings(ctx)
    if broken:
        raise broken
    wrong = [it for it in shown if it.fault]
    if wrong:
        more = "".join(f"\n  - {it.option} does not take this: {it.fault} ({it.where})" for it in wrong[1:])
        what, todo = f"{wrong[0].option} does not take this: {wrong[0].fault}{more}", "correct or remove it"
        raise UsageError(what, where=wrong[0].where, todo=todo)
    size_limit()
