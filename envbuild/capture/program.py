"""The options of a capture, of a command line and of a file, and the command line of the standalone file."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import stat
import sys
from typing import Any, Sequence

from envbuild.capture.contract import contract_facts
from envbuild.capture.files import Facts, manifest_text, present, say
from envbuild.capture.gcs import check_out, write_out
from envbuild.capture.record import capture, check_modules, environment_facts
from envbuild.capture.redact import scrub_line
from envbuild.capture.variables import VARIABLE

OPTIONS = (
    ("model", "URI", "the trained model: gs://..., a folder or a file"),
    ("golden", "FILE.npz", "a small batch of inputs and the model's outputs for them"),
    ("command", "TEXT", "the command of the run, as a shell reads it; recorded, not run; or give its words after --"),
    ("config", "FILE", "read these options from a file too"),
)
REPEATED = (
    ("variable", "NAME", "also record this environment variable"),
    ("requires", "NAME", "an environment variable that the program depends on"),
    ("data", "[NAME=]URI", "a place that the program reads data from"),
    ("preprocessing", "PATH", "code that serving has to share"),
    ("load", "MODULE", "import this first, so that the libraries it loads are recorded"),
)
SWITCHES = (
    ("patch", "record uncommitted changes themselves, secrets cut out"),
    ("deep", "hash every installed file, not only those that look changed"),
)


def main(arguments: list[str] | None = None) -> int:
    """Print the manifest, or write it to --out; 1 if it cannot be written, 2 for invalid arguments."""
    words = sys.argv[1:] if arguments is None else arguments
    own, command = words, None
    if "--" in words:
        own, command = words[: words.index("--")], words[words.index("--") + 1 :]
    given = vars(_parser().parse_args(own))
    try:
        _write_record(given.pop("out"), given, command)
    except ValueError as error:
        say("capture: %s" % error)
        return 2
    except OSError as error:
        say("capture: the manifest cannot be written: %s" % error)
        return 1
    return 0


def run_alone() -> None:
    """Run as a program, and exit without waiting for threads that a module of --load left."""
    code = main()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError):  # closed, or full, which is reported already
            continue
    os._exit(code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Record this Python environment as a training manifest (JSON).",
        usage="%(prog)s [options] [-- COMMAND...]",
        allow_abbrev=False,
    )
    parser.add_argument("--out", metavar="FILE", help="write the manifest here, also gs://..., instead of printing it")
    for name, metavar, text in OPTIONS:
        parser.add_argument("--" + name, metavar=metavar, help=text)
    for name, metavar, text in REPEATED:
        parser.add_argument("--" + name, metavar=metavar, help=text + "; repeatable", action="append", default=[])
    for name, text in SWITCHES:
        parser.add_argument("--" + name, help=text, action="store_true")
    # For `envbuild capture --python`, which reads model and data itself.
    parser.add_argument("--environment-only", help=argparse.SUPPRESS, action="store_true")
    return parser


def _write_record(out: str | None, given: Facts, command: list[str] | None) -> None:
    only_environment = given.pop("environment_only")
    if out is None and sys.stdout is None:
        raise OSError("standard output is closed; give --out FILE")
    options = merge_options(given, command)
    manifest = _environment_only(out, **options) if only_environment else capture(out=out, process="fresh", **options)
    if out is None:
        sys.stdout.write(manifest_text(manifest))
        sys.stdout.flush()


def _environment_only(out: str | None, requires: list[str], **options: Any) -> Facts:
    """Record the facts of this interpreter, without the model and data."""
    check_out(out)
    own = {name: options[name] for name in ("variables", "command", "patch", "deep", "load")}
    contract = contract_facts(requires, (), ()) if requires else None
    facts: Facts = present(dict(environment_facts(process="fresh", **own), contract=contract))
    if out is not None:
        write_out(out, manifest_text(facts))
    return facts


SETTINGS = dict.fromkeys(("requires", "variables", "data", "preprocessing", "load", "command"), "a list of texts")
SETTINGS.update(model="a text", deep="true or false", patch="true or false")
"""The options that a file may have, and their types."""
WITHOUT_PLACE = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_]*)?=|")
LISTS = ("variables", "requires", "data", "preprocessing", "load")
"""Arguments of `capture()` whose options may be repeated."""


def merge_options(given: Facts, command: Sequence[str] | None) -> Facts:
    """Return the arguments of `capture()`: lists add to those of the file, the rest overrides it. ValueError."""
    check_options(given)
    settings = read_settings(given["config"]) if given["config"] else {}
    options = dict(given, variables=given["variable"])
    lists = {name: [*settings.get(name, ()), *options[name]] for name in LISTS}
    check_modules(lists["load"])
    switches = {name: bool(given[name] or settings.get(name)) for name in ("patch", "deep")}
    if given["command"] is not None and command is not None:
        raise ValueError("command: give --command or words after --, not both")
    words = command if given["command"] is None else shlex.split(given["command"])
    if words is not None and not words:
        raise ValueError("command: is empty")
    return dict(
        lists,
        **switches,
        model_uri=given["model"] or settings.get("model_uri"),
        command=list(words or ()) or settings.get("command"),
        golden=given["golden"],
    )


def check_options(given: Facts) -> None:
    """ValueError for an empty or invalid option, without its text, which may be a secret value."""
    for name, value in given.items():
        if value == "":
            raise ValueError("%s: is empty; leave the option out, or check the variable in the command" % name)
    for name in ("variable", "requires"):
        for number, text in enumerate(given.get(name, ()), 1):
            if not VARIABLE.fullmatch(text):
                raise ValueError("%s: number %d is not the name of a variable; give the name alone" % (name, number))
    for number, place in enumerate(given.get("data", ()), 1):
        if WITHOUT_PLACE.fullmatch(place):
            raise ValueError("data: number %d names no place; give URI or NAME=URI" % number)


def read_settings(path: str) -> Facts:
    """Read arguments of `capture()` from JSON, or TOML's [capture] or [tool.envbuild.capture]; ValueError."""
    where = scrub_line(path)
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for its writer
            raise ValueError("is not a regular file")  # noqa: TRY301 - handled like the others
        with open(path, encoding="utf-8-sig") as file:
            text = file.read()
        if path.endswith(".toml"):
            settings = _checked_settings(_toml_table(text, os.path.basename(path) == "pyproject.toml"))
        else:
            settings = _checked_settings(json.loads(text))
    except OSError as error:
        raise ValueError("%s: cannot be read: %s" % (where, error.strerror)) from None
    except (ValueError, RecursionError) as error:
        raise ValueError("%s: %s" % (where, scrub_line(str(error)))) from None
    return {"model_uri" if key == "model" else key: value for key, value in settings.items()}


def _checked_settings(settings: Any) -> Facts:
    if not isinstance(settings, dict):
        raise ValueError("its options must be a table")  # noqa: TRY004 - a fault of the file
    for key, value in settings.items():
        if key not in SETTINGS:
            raise ValueError("%s is not an option; the options are %s" % (key[:80], ", ".join(SETTINGS)))
        texts = isinstance(value, list) and all(isinstance(item, str) for item in value)
        if not {"a text": isinstance(value, str), "true or false": isinstance(value, bool)}.get(SETTINGS[key], texts):
            raise ValueError("%s must be %s" % (key, SETTINGS[key]))
    return settings


def _toml_table(text: str, of_project: bool) -> Any:
    try:
        import tomllib
    except ImportError:
        raise ValueError("reading TOML needs Python 3.11 or later; the same options in a JSON file do not") from None
    table: Any = tomllib.loads(text)
    keys = ("tool", "envbuild", "capture") if of_project else ("capture",)
    for key in keys:
        table = table.get(key) if isinstance(table, dict) else None
    if table is None:
        raise ValueError("has no table [%s]" % ".".join(keys))
    return table
