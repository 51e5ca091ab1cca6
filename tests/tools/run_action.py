"""Runs a composite action, or the jobs of a workflow, as they are written, with what GitHub's runner sets around them.

    python -m tests.tools.run_action examples/ci/github --input model=./model --input push=127.0.0.1:5000/churn

Actions of others are replaced by what they do for us on this machine; what is not known here is refused, never passed over.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import yaml

from tests.tools.expressions import UnknownError, holds, replaced

_SHELLS = {"": ("bash", "-e"), "bash": ("bash", "--noprofile", "--norc", "-eo", "pipefail")}
"""docs.github.com, "Workflow syntax", jobs.<job_id>.steps[*].shell; a workflow's steps need not name theirs."""
_ACTION = frozenset({"name", "description", "author", "inputs", "outputs", "runs"})
_WORKFLOW = frozenset({"name", "on", "permissions", "env", "jobs", "concurrency"})
_JOB = frozenset({"name", "runs-on", "permissions", "env", "steps", "timeout-minutes", "environment", "outputs"})
_STEP = frozenset({"id", "name", "if", "uses", "with", "run", "shell", "env", "working-directory"})
_PAIR = re.compile(
    r"(?P<name>[^\n=<]+)(?:<<(?P<end>[^\n]+)\n(?P<many>.*?)\n(?P=end)|=(?P<one>[^\n]*))(?:\n|$)", re.DOTALL
)
_ANNOTATION = re.compile(r"^::(?:error|warning|notice)(?: ([^:]*))?::(.*)$", re.MULTILINE)
_FILES = ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY", "GITHUB_ENV", "GITHUB_PATH")


class FailedError(Exception):
    """A step ended with another status than 0."""

    def __init__(self, name: str, status: int, log: str) -> None:
        super().__init__(f"step {name!r} ended with {status}\n{log}")
        self.status = status


@dataclass(slots=True)
class Runner:
    """One machine on which steps are run."""

    workspace: Path
    temp: Path
    """Which GitHub empties after each job."""
    environment: dict[str, str]
    equivalents: Mapping[str, "Equivalent"]
    """By the name of the action, without its version."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Those of the repository."""
    log: list[str] = field(default_factory=list)
    """What each step wrote, on both streams."""
    summaries: list[str] = field(default_factory=list)
    used: list[str] = field(default_factory=list)
    """The actions of others that were replaced, with their versions."""

    def action(self, folder: Path, given: Mapping[str, str]) -> dict[str, str]:
        """Run a composite action; return its outputs, or raise FailedError."""
        action = _read(folder / "action.yml", _ACTION)
        if action["runs"]["using"] != "composite" or set(action["runs"]) != {"using", "steps"}:
            raise UnknownError(f"{folder}: an action that is not composite")
        contexts = self._contexts() | {"inputs": _inputs(action.get("inputs", {}), given, contexts=self._contexts())}
        contexts["github"] = {**contexts["github"], "action_path": str(folder)}
        self._steps(action["runs"]["steps"], contexts, {"GITHUB_ACTION_PATH": str(folder)}, own_shell=True)
        return {name: replaced(it["value"], contexts) for name, it in action.get("outputs", {}).items()}

    def workflow(self, path: Path, given: Mapping[str, str]) -> None:
        """Run the jobs of a workflow that somebody started by hand, one after another."""
        workflow = _read(path, _WORKFLOW)
        contexts = self._contexts()
        wanted = (workflow["on"].get("workflow_dispatch") or {}).get("inputs", {})
        contexts["inputs"] = _inputs(wanted, given, contexts=contexts)
        for job in workflow["jobs"].values():
            _check(job, _JOB, str(path))
            env = {**workflow.get("env", {}), **job.get("env", {})}
            contexts["env"] = {name: replaced(str(value), contexts) for name, value in env.items()}
            contexts["steps"] = {}
            self._steps(job["steps"], contexts, contexts["env"], own_shell=False)

    def _contexts(self) -> dict[str, Any]:
        github = {"workspace": str(self.workspace), "repository": "acme/churn", "ref_name": "main", "run_id": "1"}
        return {
            "github": github,
            "runner": {"temp": str(self.temp), "os": "Linux"},
            "vars": self.variables,
            "env": {},
            "steps": {},
        }

    def _steps(
        self, steps: Sequence[Mapping[str, Any]], contexts: dict[str, Any], env: Mapping[str, str], *, own_shell: bool
    ) -> None:
        failed: FailedError | None = None
        for step in steps:
            name = str(step.get("name") or step.get("uses") or step.get("id"))
            _check(step, _STEP, name)
            outputs: dict[str, str] = {}
            if holds(str(step.get("if", "success()")), contexts, failed=failed is not None):
                try:
                    outputs = self._step(name, step, contexts, env, own_shell=own_shell)
                except FailedError as error:
                    failed = failed or error
            if "id" in step:
                contexts["steps"][step["id"]] = {"outputs": outputs}
        if failed:
            raise failed

    def _step(
        self,
        name: str,
        step: Mapping[str, Any],
        contexts: Mapping[str, Any],
        env: Mapping[str, str],
        *,
        own_shell: bool,
    ) -> dict[str, str]:
        more = {key: replaced(str(value), contexts) for key, value in step.get("env", {}).items()}
        if "uses" in step:
            return self._used(
                str(step["uses"]), {k: replaced(_text(v), contexts) for k, v in step.get("with", {}).items()}
            )
        if own_shell and "shell" not in step:
            raise UnknownError(f"step {name!r}: a composite action's steps have to name their shell")
        shell = _SHELLS[step.get("shell", "")]
        folder = self.workspace / replaced(step.get("working-directory", "."), contexts)
        return self._run(name, replaced(step["run"], contexts), shell, {**env, **more}, folder)

    def _used(self, uses: str, given: dict[str, str]) -> dict[str, str]:
        if uses.startswith("./"):
            return self.action(self.workspace / uses, given)
        name, at, version = uses.partition("@")
        if not (at and version) or name not in self.equivalents:
            raise UnknownError(f"uses: {uses}")
        self.used.append(uses)
        return dict(self.equivalents[name](self, given))

    def _run(
        self, name: str, script: str, shell: tuple[str, ...], env: Mapping[str, str], folder: Path
    ) -> dict[str, str]:
        with tempfile.TemporaryDirectory(dir=self.temp) as scratch:
            files = {variable: Path(scratch, variable.lower()) for variable in _FILES}
            for file in files.values():
                file.touch()
            source = Path(scratch, "script.sh")
            source.write_text(script)
            done = subprocess.run(
                [*shell, str(source)], cwd=folder, env={**self._environment(), **env, **{name: str(file) for name, file in files.items()}},
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            )  # fmt: skip
            self.log.append(f"## {name}\n{done.stdout}")
            told = {variable: file.read_text() for variable, file in files.items()}
        self.summaries.extend(filter(None, [told["GITHUB_STEP_SUMMARY"]]))
        self.environment |= read_pairs(told["GITHUB_ENV"])
        for line in told["GITHUB_PATH"].split():
            self.environment["PATH"] = f"{line}:{self.environment['PATH']}"
        if done.returncode:
            raise FailedError(name, done.returncode, done.stdout)
        return read_pairs(told["GITHUB_OUTPUT"])

    def _environment(self) -> dict[str, str]:
        ours = {"GITHUB_WORKSPACE": str(self.workspace), "RUNNER_TEMP": str(self.temp), "RUNNER_OS": "Linux"}
        return self.environment | {"CI": "true", "GITHUB_ACTIONS": "true"} | ours


Equivalent = Callable[[Runner, dict[str, str]], Mapping[str, str]]
"""What an action of others does for us: is given the runner and its inputs, and returns its outputs."""


def read_pairs(text: str) -> dict[str, str]:
    """Read a file such as GITHUB_OUTPUT; ValueError for what is neither `name=value` nor `name<<END`."""
    found, at = {}, 0
    while at < len(text):
        match = _PAIR.match(text, at)
        if match is None:
            raise ValueError(f"neither name=value nor name<<END: {text[at : at + 80]!r}")
        found[match["name"]] = match["one"] if match["many"] is None else match["many"]
        at = match.end()
    return found


def annotations(log: str) -> list[tuple[dict[str, str], str]]:
    """Properties and text of each annotation in what a step wrote."""
    found = []
    for properties, text in _ANNOTATION.findall(log):
        pairs = (pair.split("=", 1) for pair in properties.split(",") if pair)
        found.append(({name: unquote(value) for name, value in pairs}, unquote(text)))
    return found


def _read(path: Path, known: frozenset[str]) -> dict[str, Any]:
    value = yaml.safe_load(path.read_text())
    value = {"on" if key is True else key: it for key, it in value.items()}  # YAML 1.1 reads `on` as true
    _check(value, known, str(path))
    return value


def _check(value: Mapping[str, Any], known: frozenset[str], where: str) -> None:
    if unknown := value.keys() - known:
        raise UnknownError(f"{where}: {', '.join(sorted(map(str, unknown)))}")


def _inputs(declared: Mapping[str, Any], given: Mapping[str, str], *, contexts: Mapping[str, Any]) -> dict[str, str]:
    """RecordOptions values, else the defaults; GitHub lets a required input be absent, and this does not."""
    if unknown := given.keys() - declared.keys():
        raise UnknownError(f"inputs that are not declared: {', '.join(sorted(unknown))}")
    missing = [name for name, it in declared.items() if it.get("required") and not given.get(name)]
    if missing:
        raise UnknownError(f"inputs that are required and not given: {', '.join(missing)}")
    defaults = {name: replaced(_text(it.get("default", "")), contexts) for name, it in declared.items()}
    return defaults | dict(given)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def set_up_python(runner: Runner, given: dict[str, str]) -> dict[str, str]:
    """actions/setup-python: this interpreter, first on PATH."""
    if set(given) != {"python-version"}:
        raise UnknownError(f"inputs of setup-python: {sorted(given)}")
    folder = Path(runner.temp, "python")
    folder.mkdir(exist_ok=True)
    for name in ("python", "python3"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(getattr(sys, "_base_executable", sys.executable))
    runner.environment["PATH"] = f"{folder}:{runner.environment['PATH']}"
    return {"python-path": str(folder / "python")}


def main(words: Sequence[str] | None = None) -> int:
    """Run an action; its steps' output, summary and outputs go to stdout."""
    parser = argparse.ArgumentParser(description="Run a composite action here, as it is written.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--input", action="append", default=[], metavar="NAME=VALUE")
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as temp:
        known = {"actions/setup-python": set_up_python}
        runner = Runner(Path.cwd(), Path(temp), dict(os.environ), known)
        status, outputs = 0, {}
        try:
            outputs = runner.action(options.folder.absolute(), dict(it.split("=", 1) for it in options.input))
        except FailedError as error:
            status = error.status
    print(*runner.log, *runner.summaries, *(f"{name}={value}" for name, value in outputs.items()), sep="\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
