"""The command line of the standalone file."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from envbuild.capture.contract import contract_facts
from envbuild.capture.files import Facts, manifest_text, present, say
from envbuild.capture.gcs import check_out, write_out
from envbuild.capture.options import merge_options
from envbuild.capture.record import capture, environment_facts

OPTIONS = (
    ("model", "URI", "the trained model: gs://..., a folder or a file"),
    ("golden", "FILE.npz", "a small batch of inputs and the model's outputs for them"),
    ("command", "TEXT", "the command of the run, as a shell reads it; or give its words after --"),
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
