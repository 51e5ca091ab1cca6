"""`envbuild config`, and how values from files and variables reach the options of every command."""

import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer.main

from envbuild.cli import commands
from envbuild.cli.command import commands_of, options_of
from envbuild.cli.config import OWN_VARIABLES
from envbuild.config import SHARED, Option
from tests.environ import UNTRIED

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "config.md"
START = "## Every key and variable\n\n"
NOT_OURS = {"ENVBUILD_NOTHING", "ENVBUILD_SECRET_", "ENVBUILD_MODEL_FOLDER", "ENVBUILD_METHODS"}
"""What a file of VS Code looks up to find nothing, what a build of Cloud Build calls its secrets, and a server's two."""


@pytest.fixture(autouse=True)
def _no_value_of_the_tests(monkeypatch):
    for name in UNTRIED:
        monkeypatch.delenv(name)


def group() -> Any:
    return typer.main.get_command(commands.app)


def every_option() -> list[Option]:
    return [option for name, command in commands_of(group()) for option, _ in options_of(name, command)]


NAMES = [name for name, _ in commands_of(group())]


def sample(option: Option, turn: int, default: Any) -> Any:
    """A value that the option takes, another one each turn."""
    match option.kind:
        case "flag":
            return bool(default) == bool(turn % 2)
        case "number":
            return 70 + turn
        case "text":
            return option.choices[turn % len(option.choices)] if option.choices else f"x{turn}"
        case "list":
            return [option.choices[0]] if option.choices else [f"x{turn}", f"y{turn}"]


def written(value: Any) -> str:
    """A value in TOML, which these write as JSON does."""
    return json.dumps(value)


def in_variable(option: Option, value: Any) -> str:
    if isinstance(value, list):
        return (":" if option.key in ("find-links", "env-file") else " ").join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def on_line(parameter: Any, value: Any) -> list[str]:
    name = next(it for it in parameter.opts if it.startswith("--"))
    if isinstance(value, bool):
        return [name] if value else list(parameter.secondary_opts[:1])
    return [word for it in (value if isinstance(value, list) else [value]) for word in (name, str(it))]


def plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [plain(it) for it in value]
    return value if isinstance(value, bool | int | None) else str(getattr(value, "value", value))


def placed(option: Option, value: Any, folder: Path) -> Any:
    if isinstance(value, list):
        return [placed(option, it, folder) for it in value]
    return str(folder / value) if option.place in ("path", "pair", "key") else value


def arrived(name: str, line: list[str]) -> dict[str, Any]:
    """What a command is called with, by option."""
    top = group()
    command = dict(commands_of(top))[name]
    seen: dict[str, Any] = {}
    arguments = [
        str(plain((it.type_descriptor.choices or ("x",))[0]))
        for it in command.params
        if it.param_type_name == "argument"
    ]
    words = next(list(words) for words in words_of(top) if "-".join(words) == name)
    with pytest.MonkeyPatch.context() as patch:  # the tree is the same for all tests
        patch.setattr(command, "callback", lambda **given: seen.update(given))
        top.main([*words, *arguments, *line], prog_name="envbuild", standalone_mode=False)
    return {option.key: plain(seen[parameter.name]) for option, parameter in options_of(name, command)}


def words_of(top: Any) -> list[tuple[str, ...]]:
    return [
        words
        for name, command in top.commands.items()
        for words in ([(name, below) for below in command.commands] if hasattr(command, "commands") else [(name,)])
    ]


@pytest.mark.parametrize("name", NAMES)
def test_every_option_is_set_by_the_line_else_a_variable_else_the_file_else_its_default(name, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "envbuild.toml").write_text("")
    options = list(options_of(name, dict(commands_of(group()))[name]))
    required = [word for it, parameter in options if parameter.required for word in on_line(parameter, f"x{it.key}")]
    defaults = arrived(name, required)

    values = {option: [sample(option, turn, parameter.default) for turn in range(3)] for option, parameter in options}
    lines = [f"{option.key} = {written(value[0])}" for option, value in values.items()]
    (tmp_path / "envbuild.toml").write_text("\n".join([f"[{name}]", *lines]))
    for option in values:
        monkeypatch.setenv(option.variable, "")  # as good as none
    assert arrived(name, []) == {it.key: placed(it, value[0], tmp_path) for it, value in values.items()}

    for option, value in values.items():
        monkeypatch.setenv(option.variable, in_variable(option, value[1]))
    assert arrived(name, []) == {it.key: value[1] for it, value in values.items()}

    line = [word for option, parameter in options for word in on_line(parameter, values[option][2])]
    assert arrived(name, line) == {
        option.key: value[2] if on_line(parameter, value[2]) else value[1]
        for (option, parameter), value in zip(options, values.values(), strict=True)
    }
    monkeypatch.setenv("ENVBUILD_CONFIG", "")
    for option in values:
        monkeypatch.delenv(option.variable)
    assert arrived(name, required) == defaults


def test_no_variable_is_two_options_or_means_something_else_already():
    variables = [option.variable for option in every_option()]
    assert len(variables) == len(set(variables))
    assert not set(variables) & OWN_VARIABLES
    sources = [path.read_text() for path in (ROOT / "envbuild").rglob("*.py")]
    used = {name for text in sources for name in re.findall(r"\bENVBUILD_[A-Z_]+", text)}
    assert used - set(variables) - NOT_OURS <= OWN_VARIABLES


def test_what_may_stand_at_the_top_is_an_option_of_the_commands_that_it_is_for():
    there = {(option.command, option.key) for option in every_option()}
    for key, names in SHARED.items():
        assert {(name, key) for name in names if name in NAMES} <= there
        assert key not in NAMES


CONFIGURED = """
push = "127.0.0.1:5000/models"
[templates]
folder = "house"
[verify]
policy = "policy.toml"
[from-manifest.docker]
builder-name = "big"
[local]
env = ["API_TOKEN=hunter2", "DEBUG=1"]
"""


def test_config_says_what_counts_and_where_it_comes_from_without_secrets(tmp_path, monkeypatch, capsys):
    path = tmp_path / "envbuild.toml"
    path.write_text(CONFIGURED)
    variables = {
        "ENVBUILD_FROM_MANIFEST_PUSH": "r.example.com/x",
        "ENVBUILD_VERIFY_DEEP": "",
        "ENVBUILD_REBASE_PUSH": "https://me:hunter2@r.example.com/y",
        "ENVBUILD_SIGN_PASSWORD": "hunter2",
        "ENVBUILD_FROM_MANIFEST_PSUH": "hunter2",
        "ENVBUILD_CACHE": str(tmp_path / "cache"),
    }
    monkeypatch.chdir(tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert commands.run(["config"]) == 0
    told = capsys.readouterr()
    assert told.err == "warning: ENVBUILD_FROM_MANIFEST_PSUH is not a variable of envbuild\n"
    assert told.out.splitlines() == [
        f"file: {path}",
        'from-manifest.push = "r.example.com/x"  [ENVBUILD_FROM_MANIFEST_PUSH]',
        f'from-manifest.template = "{tmp_path}/house"  [{path}: templates.folder]',
        f'from-manifest.docker.builder-name = "big"  [{path}: from-manifest.docker.builder-name]',
        f'local.env = ["API_TOKEN=(set)", "DEBUG=1"]  [{path}: local.env]',
        'rebase.push = "https://r.example.com/y"  [ENVBUILD_REBASE_PUSH]',
        f'serve.push = "127.0.0.1:5000/models"  [{path}: push]',
        f'verify.policy = "{tmp_path}/policy.toml"  [{path}: verify.policy]',
        f"ENVBUILD_CACHE={tmp_path}/cache",
        "ENVBUILD_SIGN_PASSWORD=(set)",
    ]
    assert commands.run(["config", "--json", "--all"]) == 0
    shown = json.loads(capsys.readouterr().out)
    options = {it["option"]: it for it in shown["options"]}
    assert (shown["file"], shown["error"], shown["unknown"]) == (str(path), None, ["ENVBUILD_FROM_MANIFEST_PSUH"])
    assert options["from-manifest.builder"]["value"] == "assemble"
    assert {options[f"from-manifest.{key}"]["source"] for key in ("builder", "push", "template")} == {
        "default", "variable", "file",
    }  # fmt: skip
    assert {it.key for it in every_option()} <= {name.rpartition(".")[2] for name in options}


def test_a_broken_configuration_stops_commands_and_nothing_else(tmp_path, monkeypatch, capsys):
    (tmp_path / "envbuild.toml").write_text("[lock]\nbaes = 1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENVBUILD_BY", "me")
    monkeypatch.delenv("ENVBUILD_CACHE")
    said = f"error: there is no such key\n  where: {tmp_path}/envbuild.toml: lock.baes\n  do: did you mean base?\n"
    for line in (("--help",), ("--version",), ("lock", "--help"), ("config", "--schema"), ("--config", "", "schema")):
        assert (commands.run([*line]), capsys.readouterr().err, line) == (0, "", line)
    for line, out in ((("schema",), ""), (("rebase", "x"), ""), (("config",), "ENVBUILD_BY=me\n")):
        assert commands.run([*line]) == 2
        told = capsys.readouterr()
        assert (told.err, told.out.partition("lock.baes\n")[2]) == (said, out)


@pytest.mark.parametrize(
    ("text", "variables", "line", "says"),
    [
        ('push = "models"', {}, ["from-manifest", "x"], "--push models (from {}: push)"),
        ("", {"ENVBUILD_FROM_MANIFEST_PUSH": "models"}, ["from-manifest", "x"],
         "--push models (from ENVBUILD_FROM_MANIFEST_PUSH)"),
        ('push = "models"', {}, ["from-manifest", "x", "--push", "models"], "--push models\n"),
        ("[rebase]\ncreate-repository = true", {}, ["rebase", "r/x", "--base", "b"], "--create-repository (from {}: rebase.create-repository)"),
        ('[from-manifest.docker]\npush = "models"', {"ENVBUILD_FROM_MANIFEST_BUILDER": "docker"}, ["from-manifest", "x"],
         "--push models (from {}: from-manifest.docker.push)"),
        ('[capture]\nrequires = ["no name"]', {}, ["capture"], "where: envbuild capture (from {}: capture.requires)"),
        ('[lock]\nresolver = "pip"', {}, ["lock", "x"], "'pip' is not one of 'uv', 'pip-tools'. (from {}: lock.resolver)"),
        ("", {"ENVBUILD_FROM_MANIFEST_CLOUDBUILD_TIMEOUT": "1h"}, ["from-manifest", "x"],
         "(from ENVBUILD_FROM_MANIFEST_CLOUDBUILD_TIMEOUT)"),
        ('push = "me:hunter2@r.example.com/x"', {}, ["from-manifest", "x"], "a reference holds no user or password\n  where: {}: push"),
        ('[base-build]\nsnapshot-host = "https://me:hunter2@h.example.com"', {}, ["base", "build"], "where: {}: base-build.snapshot-host"),
        ('[from-manifest]\nextra = ["a",\n"x @ https://u:hunter2@h/x.whl"]', {}, ["from-manifest", "x"],
         "where: {}: from-manifest.extra"),
        ('[verify]\npolicy = "https://h/x?token=hunter2"', {}, ["verify", "x"], "an address is given\n  where: {}: verify.policy"),
        ("", {"ENVBUILD_VERIFY_POLICY": "https://h/x?token=hunter2"}, ["verify", "x"],
         "an address is given\n  where: --policy (from ENVBUILD_VERIFY_POLICY)"),
        ("", {"ENVBUILD_VERIFY_POLICY": "https://h/x?token=hunter2"}, ["config"], "where: ENVBUILD_VERIFY_POLICY"),
        ('[from-manifest.serve]\ngate = "never"', {}, ["config"], "'never' is not one of 'auto', 'require', 'off'."),
        ('[from-manifest.serve]\ngate = "never"', {}, ["config"], "where: {}: from-manifest.serve.gate"),
        ("", {"ENVBUILD_CACHE_LIMIT": "lots"}, ["config"], "'lots' is not a size\n  where: ENVBUILD_CACHE_LIMIT\n"),
        ("", {}, ["lock", "x", "--download", "s3://hunter2/x"], "an address is given\n  where: --download\n"),
    ],
)  # fmt: skip
def test_an_error_names_the_file_and_key_or_the_variable_that_a_value_came_from(
    tmp_path, monkeypatch, capsys, text, variables, line, says
):
    (tmp_path / "envbuild.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert commands.run(line) == 2
    told = capsys.readouterr()
    assert says.format(tmp_path / "envbuild.toml") in told.err
    assert "hunter2" not in told.err + told.out


def test_config_shows_values_as_they_are(tmp_path, monkeypatch, capsys):
    value = "python\n\t\\d \x9b\u2028é"
    (tmp_path / "envbuild.toml").write_text(f"[from-manifest]\ncmd = {json.dumps(value)}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENVBUILD_BY", "a\nb")
    assert commands.run(["config", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert ([it["value"] for it in shown["options"] if it["option"] == "from-manifest.cmd"], shown["variables"]) == (
        [value],
        {"ENVBUILD_BY": "a\nb", "ENVBUILD_CACHE": os.environ["ENVBUILD_CACHE"]},
    )
    assert commands.run(["config"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[1].startswith(r'from-manifest.cmd = "python\n\t\\d \x9b\u2028é"  [')
    assert told[2] == r"ENVBUILD_BY=a\nb"


def example() -> str:
    return DOCS.read_text().partition("```toml\n")[2].partition("```")[0]


def test_help_is_the_same_whatever_a_file_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    said = []
    for text in ("", example()):
        (tmp_path / "envbuild.toml").write_text(text)
        assert commands.run(["local", "--help"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]


def test_the_commands_of_the_documentation_print_what_it_says(tmp_path, monkeypatch, capsys):
    (tmp_path / "ci").mkdir()
    for folder in ("", "ci"):
        (tmp_path / folder / "envbuild.toml").write_text(example())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENVBUILD_FROM_MANIFEST_BYTECODE", "false")
    lines = DOCS.read_text().partition("```console\n")[2].partition("```")[0].splitlines()
    printed: list[str] = []
    for line in lines:
        if line.startswith("$ envbuild "):
            assert commands.run(line.split()[2:]) == 0
            printed = capsys.readouterr().out.replace(str(tmp_path), "/work/churn").splitlines()
        else:
            assert line in [*printed, "    ..."]


def test_the_schema_and_the_commands_take_the_example_of_the_documentation(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert commands.run(["config", "--schema"]) == 0
    described = json.loads(capsys.readouterr().out)
    jsonschema.validate(tomllib.loads(example()), described)
    (tmp_path / "envbuild.toml").write_text(example())
    assert commands.run(["config"]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert set(re.findall(r": ([a-z.-]+)\]$", told.out, re.MULTILINE)) >= {
        "push",
        "templates.folder",
        "capture.requires",
    }


def generated() -> str:
    """The tables of the documentation: every key of every command, its variable, and what it takes."""
    parts = []
    options = every_option()
    for name in NAMES:
        rows = [f"| `{it.key}` | `{it.variable}` | {_takes(it)} |" for it in options if it.command == name]
        parts += [f"### {name}\n", "| key | variable | takes |", "|---|---|---|", *rows, ""] if rows else []
    return "\n".join(parts)


def _takes(option: Option) -> str:
    if option.choices:
        return ("one or more of " if option.kind == "list" else "") + ", ".join(f"`{it}`" for it in option.choices)
    path = {"path": "path", "pair": "`=path`", "program": "program", "key": "key"}.get(option.place, option.kind)
    return {"list": "list", "flag": "`true`, `false`"}.get(option.kind, path) + (
        f" of {path}s" if option.kind == "list" and option.place == "path" else ""
    )


def test_the_documentation_has_every_key_and_variable():
    """ENVBUILD_UPDATE_GOLDEN=1 writes it anew."""
    page = DOCS.read_text()
    before, start, said = page.partition(START)
    if os.environ.get("ENVBUILD_UPDATE_GOLDEN"):
        DOCS.write_text(before + START + generated())
        return
    assert start
    assert said == generated()
    for name in OWN_VARIABLES:
        assert f"`{name}`" in before
