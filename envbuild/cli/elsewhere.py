"""Capturing where envbuild itself is not: by another interpreter, or in a container."""

import os
from typing import Any

from envbuild.capture import script
from envbuild.capture.contract import contract_facts, required_names
from envbuild.capture.disagreements import tell_disagreements
from envbuild.capture.files import manifest_text
from envbuild.capture.gcs import check_out, write_out
from envbuild.capture.record import complete
from envbuild.cli.console import Progress
from envbuild.cli.interpreter import other_environment


def captured_elsewhere(
    options: dict[str, Any], out: str | None, python: str | None, image: str | None
) -> dict[str, Any]:
    """Capture by `python`, or in `image`; model and data are read from here, where the libraries for that are.

    `options` are the arguments of `capture()`. ValueError for those that cannot be meant.
    """
    check_out(out)
    manifest = _by_interpreter(str(python), options) if image is None else _in_container(image, python, options)
    if out is not None:
        write_out(out, manifest_text(manifest))
    tell_disagreements(manifest)
    return manifest


def _by_interpreter(python: str, options: dict[str, Any]) -> dict[str, Any]:
    environment = other_environment(python, script(), _arguments(options))
    contract = contract_facts(options["requires"], options["data"], options["preprocessing"])
    model = options["model_uri"] or os.environ.get("AIP_MODEL_DIR")
    return complete(environment, contract, model, options["golden"])


def _in_container(image: str, python: str | None, options: dict[str, Any]) -> dict[str, Any]:
    from envbuild.engine import image_environment

    arguments = [f"--requires={name}" for name in required_names(options["requires"])] + _arguments(options)
    with Progress() as report:
        environment = image_environment(image, arguments, python=python, report=report)
    places = options["data"] or options["preprocessing"]
    ours = contract_facts((), options["data"], options["preprocessing"]) if places else None
    contract = _both(environment.get("contract"), ours)
    return complete(environment, contract, options["model_uri"], options["golden"])


def _arguments(options: dict[str, Any]) -> list[str]:
    """Spell the options that only the interpreter itself can answer."""
    arguments = [f"--variable={name}" for name in options["variables"]]
    arguments += [f"--load={name}" for name in options["load"]]
    arguments += [f"--{name}" for name in ("patch", "deep") if options[name]]
    command = options["command"]
    return ["--environment-only", *arguments, *(["--", *command] if command else [])]


def _both(first: dict[str, Any] | None, second: dict[str, Any] | None) -> dict[str, Any] | None:
    if first is None or second is None:
        return first or second
    return {name: first.get(name, []) + second.get(name, []) for name in first | second}
