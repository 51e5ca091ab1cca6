"""`envbuild config`: the options that variables and the configuration file set, and where."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from envbuild.cli.command import (
    HOW,
    WHAT,
    check_path,
    commands_of,
    configuration_of,
    option_values,
    options_of,
    reason_of,
    source_of,
)
from envbuild.cli.console import Progress, check_stdout, one_line, printable
from envbuild.cli.options import AsJson
from envbuild.errors import UsageError

if TYPE_CHECKING:
    from envbuild.config import Option

OWN_VARIABLES: Final = frozenset({
    "ENVBUILD_CONFIG", "ENVBUILD_ARTIFACT_REGISTRY_ENDPOINT", "ENVBUILD_BY", "ENVBUILD_CACHE", "ENVBUILD_CACHE_LIMIT",
    "ENVBUILD_CHECK", "ENVBUILD_CLOUDBUILD_ENDPOINT", "ENVBUILD_CLOUDBUILD_TIMEOUT", "ENVBUILD_CONTRACT",
    "ENVBUILD_GCS_TIMEOUT", "ENVBUILD_IMAGE", "ENVBUILD_MODEL", "ENVBUILD_SIGN_PASSWORD",
    "ENVBUILD_SIGSTORE_TRUST_CONFIG", "ENVBUILD_ZDOTDIR",
})  # fmt: skip
"""Variables of the program, not of an option."""
_SECRET: Final = re.compile(r"(?i)token|passw|secret|credential|key")
"""Names whose values are not shown."""
_SET: Final = "(set)"

All = Annotated[bool, typer.Option("--all", help="Show the defaults of all other options too.", rich_help_panel=WHAT)]
Schema = Annotated[
    bool, typer.Option("--schema", help="Print a JSON schema of envbuild.toml, and stop.", rich_help_panel=HOW)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionValue:
    """The value of an option, unless the command line gives another one."""

    option: str
    """`from-manifest.push`, as in the file."""
    value: Any
    source: str
    """`file`, `variable` or `default`."""
    where: str
    """`/work/envbuild.toml, line 1: push`, or the variable's name."""
    variable: str
    fault: str = ""
    """Why the option does not take it."""

    def line(self) -> str:
        """Return it for people."""
        value = self.value if self.value == _SET else json.dumps(self.value, ensure_ascii=False)
        return f"{self.option} = {value}  [{self.where or self.source}]"


def run(ctx: typer.Context, *, everything: All = False, schema: Schema = False, as_json: AsJson = False) -> None:
    """Show the options that the configuration and variables set.

    Each with the file and line, or the variable, that it comes from. The file is envbuild.toml, or [tool.envbuild]
    in pyproject.toml, of this folder or the nearest one above. The command line counts first, then variables, the
    file, and defaults. Secrets are not shown.
    """
    check_stdout()
    commands = dict(commands_of(ctx.find_root().command))
    if schema:
        from envbuild import config

        options = [option for name, command in commands.items() for option, _ in options_of(name, command)]
        typer.echo(json.dumps(config.schema(options), indent=2))
        return
    values = [it for name, command in commands.items() for it in _values(ctx, name, command)]
    unknown = sorted(
        name
        for name in os.environ
        if name.startswith("ENVBUILD_") and name not in {it.variable for it in values} | OWN_VARIABLES
    )
    _print(ctx, [it for it in values if everything or it.source != "default"], unknown, as_json=as_json)
    _check(ctx, values)


def _values(ctx: typer.Context, name: str, command: Any) -> Iterator[OptionValue]:
    """Read a command's values as if it had no option, and those of tables for one choice, such as --builder docker."""
    calling = typer.Context(command, parent=ctx.find_root(), info_name=name)
    for option, parameter, raw in option_values(calling, {}):
        value, fault = _converted(calling, option, parameter, raw)
        source, where = source_of(calling, option, parameter)
        yield _option_value(name, option, value, fault, source, where)
    options = {option.key: (option, parameter) for option, parameter in options_of(name, command)}
    for table, settings in configuration_of(ctx).tables.items():
        for key, setting in settings.items() if table.startswith(f"{name}.") else ():
            option, parameter = options[key]
            fault = _converted(calling, option, parameter, setting.value)[1]
            yield _option_value(table, option, setting.value, fault, "file", setting.where)


def _option_value(table: str, option: "Option", value: Any, fault: str, source: str, where: str) -> OptionValue:
    key, shown = f"{table}.{option.key}", _without_secrets(option.key, value)
    return OptionValue(option=key, value=shown, source=source, where=where, variable=option.variable, fault=fault)


def _converted(ctx: typer.Context, option: "Option", parameter: Any, raw: Any) -> tuple[Any, str]:
    """Return what an option makes of a value, and why it does not take it."""
    value = raw
    try:
        if raw is not None:
            if option.local:
                check_path(option, raw)
            value = parameter.process_value(ctx, raw)
        for text in value if isinstance(value, list | tuple) else () if value is None else (value,):
            _check_text(option.key, str(text))
    except typer.BadParameter as error:
        return value, reason_of(error)
    except UsageError as error:
        return value, f"{error.what}; {error.todo}"
    return value, ""


def _check_text(key: str, text: str) -> None:
    """Refuse what every command refuses that has an option of this name."""
    if key == "platform":
        from envbuild.cli.references import machine_of

        for name in text.split(","):
            machine_of(name.strip() or None)
    elif key == "cmd":
        from envbuild.cli.serve import words_of

        words_of(text)
    elif key == "extra":
        from envbuild.serve.build import check_requirement

        check_requirement(text)


def _without_secrets(name: str, value: Any) -> Any:
    """Leave out what is secret, by its name or by its looks."""
    from envbuild.capture.redact import WITH_PASSWORD, scrub

    if isinstance(value, list | tuple):
        return [_without_secrets(name, it) for it in value]
    if value is None or isinstance(value, bool | int):
        return value
    value = str(value)
    if _SECRET.search(name):
        return _SET
    before, equals, _ = value.partition("=")
    if equals and _SECRET.search(before):
        return f"{before}={_SET}"
    return WITH_PASSWORD.sub(r"\1", scrub(value))


def _print(ctx: typer.Context, values: list[OptionValue], unknown: list[str], *, as_json: bool) -> None:
    file, broken = configuration_of(ctx).file, configuration_of(ctx).error
    own = {name: _without_secrets(name, os.environ[name]) for name in sorted(OWN_VARIABLES & os.environ.keys())}
    if as_json:
        shown = {
            "file": str(file) if file else None,
            "options": [asdict(it) for it in values],
            "variables": own,
            "unknown": unknown,
            "error": str(broken) if broken else None,
        }
        typer.echo(json.dumps(shown, indent=2))
        return
    typer.echo(f"file: {printable(str(file or (broken.where if broken else 'none')))}")
    for it in values:
        typer.echo(printable(it.line()))
    for name, value in own.items():
        typer.echo(one_line(f"{name}={value}"))
    with Progress() as progress:
        for name in unknown:
            progress.warn(f"{name} is not a variable of envbuild")


def _check(ctx: typer.Context, values: list[OptionValue]) -> None:
    """UsageError where the file is broken, or an option or the cache's limit does not take its value."""
    from envbuild.cache import size_limit

    if broken := configuration_of(ctx).error:
        raise broken
    if wrong := [it for it in values if it.fault]:
        more = "".join(f"\n  - {it.option} does not take this: {it.fault} ({it.where})" for it in wrong[1:])
        what, todo = f"{wrong[0].option} does not take this: {wrong[0].fault}{more}", "correct or remove it"
        raise UsageError(what, where=wrong[0].where, todo=todo)
    size_limit()
