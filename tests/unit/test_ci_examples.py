"""The pieces for CI: nothing is put into scripts, no key is anywhere, and every option is one that there is."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from envbuild.cli.commands import app
from tests.fakes.cloudbuild_rules import accepted
from tests.tools.expressions import UnknownError, evaluated, holds, replaced
from tests.tools.run_action import FailedError, Runner, read_pairs
from tests.tools.shown import agree, blocks, shown, transcript

CI = Path(__file__).parents[2] / "examples/ci"
ACTION = CI / "github/action.yml"
GUIDES = sorted((CI.parents[1] / "docs").glob("guide-*.md"))
FILES = sorted(path for path in CI.rglob("*") if path.is_file())
BASH = {"PATH": os.environ["PATH"]}
HOSTILE = 'a"; touch "$HOME/owned" #$(touch $HOME/owned)`touch $HOME/owned`\'\\'


def loaded(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def values(tree: Any, key: str) -> Iterator[Any]:
    """All values of a key, at any depth."""
    if isinstance(tree, dict):
        yield from (value for name, value in tree.items() if name == key)
    for value in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from values(value, key)


@pytest.mark.parametrize("path", FILES, ids=lambda it: it.name)
def test_no_value_is_put_into_a_script_and_no_key_is_anywhere(path):
    tree, text = loaded(path), path.read_text()
    assert [it for it in values(tree, "run") if "${{" in it] == []
    assert [it for it in values(tree, "script") if "${_" in str(it)] == []
    assert not re.search(r"secrets\.|credentials_json|key_file|private_key", text)
    assert all(re.search(r"@(?:[0-9a-f]{40}|COMMIT)$", it) for it in values(tree, "uses"))  # a tag can be moved


def test_workflows_ask_for_an_identity_and_for_no_more_than_reading():
    for path in CI.glob("github/*.yml"):
        if path != ACTION:
            assert loaded(path)["permissions"] == {"contents": "read", "id-token": "write"}
            [given] = [
                it["with"] for it in values(loaded(path), "steps") for it in it if "/auth@" in it.get("uses", "")
            ]
            assert set(given) == {"workload_identity_provider", "service_account"}


def test_every_input_of_the_action_is_used_and_declared():
    action = loaded(ACTION)
    used = set(re.findall(r"inputs\.([\w-]+)", json.dumps(action["runs"])))
    assert used == set(action["inputs"])
    told = {it["value"] for it in action["outputs"].values()}
    assert told == {f"${{{{ steps.serve.outputs.{name} }}}}" for name in action["outputs"]}


def asked(text: str) -> Iterator[tuple[str, str]]:
    """Each command of envbuild in a text, with each option that it is given."""
    for command, rest in re.findall(r"envbuild\"? ([a-z][a-z-]+)(.*?)(?: -- |\n|$)", text.replace("\\\n", " ")):
        yield from ((command, it) for it in re.findall(r"(?<![\w-])--[a-z][\w-]*", rest))


@pytest.mark.parametrize("path", [*FILES, *GUIDES], ids=lambda it: it.name)
def test_every_option_is_one_that_there_is(path):
    text = (
        path.read_text()
        if path in FILES
        else "".join(it for kind in ("console", "sh") for it in blocks(path.read_text(), kind))
    )
    wrong = [(name, it) for name, it in asked(text) if it not in options_of(name)]
    assert wrong == []


def options_of(name: str) -> set[str]:
    """The options of a command, as its --help lists them; none where there is no such command."""
    group: Any = get_command(app)
    found = group.commands[name].params if name in group.commands else ()
    return {option for it in found for option in (*it.opts, *it.secondary_opts)}


def test_every_option_that_the_action_gives_is_one_that_there_is():
    script = loaded(ACTION)["runs"]["steps"][-2]["run"]
    given = set(re.findall(r"--([a-z][a-z-]*)", script)) | set(re.findall(r'"([a-z][a-z-]*)=\$', script))
    assert {f"--{it}" for it in given} <= options_of("from-manifest")
    assert "role" in given


@pytest.fixture
def serve_step(tmp_path):
    """The action's last two steps as they are written, with a program in envbuild's place that writes down its words."""
    action = loaded(ACTION)
    action["runs"]["steps"] = action["runs"]["steps"][-2:]
    (tmp_path / "action.yml").write_text(yaml.safe_dump(action))
    program = tmp_path / "temp/envbuild/bin/envbuild"
    program.parent.mkdir(parents=True)
    program.write_text(
        '#!/bin/sh\nprintf "%s\\0" "$@" >"$RUNNER_TEMP/$1.words"\necho image=found >>"$GITHUB_OUTPUT"\nexit $STATUS\n'
    )
    program.chmod(0o755)

    def run(status: int = 0, **given: str) -> tuple[dict[str, list[str]], dict[str, str]]:
        runner = Runner(tmp_path, tmp_path / "temp", {**BASH, "HOME": str(tmp_path), "STATUS": str(status)}, {})
        outputs = runner.action(tmp_path, {name.replace("_", "-"): value for name, value in given.items()})
        called = {it.stem: it.read_text().split("\0")[1:-1] for it in (tmp_path / "temp").glob("*.words")}
        return called, outputs

    return run


def test_inputs_reach_the_command_as_words_and_are_never_run(serve_step, tmp_path):
    called, outputs = serve_step(
        model="--help", app=HOSTILE, cmd=f"python {HOSTILE}", extras=f"fastapi\n\n{HOSTILE}\n", slim="true", push="h/r",
        arguments="--base\ndebian:bookworm", policy=HOSTILE,
    )  # fmt: skip
    words = called["from-manifest"]
    named = {f"--app={HOSTILE}", f"--cmd=python {HOSTILE}", f"--extra={HOSTILE}", "--extra=fastapi", "--slim"}
    assert named | {"--role=serve", "--push=h/r"} <= set(words)
    assert words[-2:] == ["--", "--help"]
    assert words[words.index("--base") + 1] == "debian:bookworm"
    assert "--embed-model" not in words
    assert outputs["image"] == "found"
    assert called["deploy-check"] == [f"--policy={HOSTILE}", "--", "--help", "found"]
    assert not (tmp_path / "owned").exists()


def test_the_action_ends_with_the_exit_code_of_the_command(serve_step):
    with pytest.raises(FailedError) as caught:
        serve_step(16, model="m")
    assert caught.value.status == 16


def test_gitlab_gets_credentials_without_a_key_and_leaves_nothing(tmp_path):
    from google.auth.identity_pool import Credentials

    before = [it for it in loaded(CI / "gitlab-ci.yml")[".envbuild"]["before_script"] if not it.startswith("pip ")]
    copy = (
        'cp "$GOOGLE_APPLICATION_CREDENTIALS" "$TMPDIR/seen"; stat -c %a "$credentials/token"; cat "$credentials/token"'
    )
    given = {
        "GOOGLE_TOKEN": "a.jwt",
        "SERVICE_ACCOUNT": "ci@p.example.com",
        "WORKLOAD_IDENTITY_PROVIDER": "projects/1/x",
    }
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", "\n".join([*before, copy])],
        env=BASH | given | {"TMPDIR": str(tmp_path)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "600\na.jwt"
    assert [it.name for it in tmp_path.iterdir()] == ["seen"]
    credentials = Credentials.from_file(str(tmp_path / "seen"))
    assert credentials.service_account_email == "ci@p.example.com"


def test_cloud_build_takes_the_template():
    body = loaded(CI / "cloudbuild.yaml")
    body["source"] = {"storageSource": {"bucket": "b", "object": "s.tar.gz"}}
    body["substitutions"]["_MODEL"] = "gs://models/x,$(touch owned)"
    build = accepted(body, "projects/p/locations/global", "id")
    assert "MODEL=gs://models/x,$(touch owned)" in build.steps[0].env
    assert build.steps[0].script == body["steps"][0]["script"]


@pytest.mark.parametrize(
    ("text", "found"),
    [("inputs.a", "x"), ("inputs.b || 'it''s'", "it's"), ("inputs.a == 'X' && inputs.b != ''", False), ("steps.s.outputs.none", "")],
)  # fmt: skip
def test_expressions_mean_what_they_mean_on_github(text, found):
    contexts = {"inputs": {"a": "x", "b": ""}, "steps": {"s": {"outputs": {}}}}
    assert evaluated(text, contexts) == found
    assert replaced("<${{ inputs.a }}|${{ inputs.b }}>", contexts) == "<x|>"
    assert holds("always()", {}, failed=True)
    assert not holds("inputs.a == 'x'", contexts, failed=True)


@pytest.mark.parametrize(
    "text", ["secrets.TOKEN", "inputs.c", "toJSON(inputs)", "steps.t.outputs.x", "inputs.a ==", "1 + 1"]
)
def test_what_the_runner_does_not_know_is_refused(text):
    with pytest.raises(UnknownError):
        evaluated(text, {"inputs": {"a": "x"}, "steps": {}})


@pytest.mark.parametrize("step", [{"uses": "evil/action@v1"}, {"run": "true"}, {"run": "true", "shell": "bash", "continue-on-error": True}])  # fmt: skip
def test_an_action_of_others_a_shell_or_a_key_that_is_not_known_is_refused(tmp_path, step):
    (tmp_path / "action.yml").write_text(json.dumps({"runs": {"using": "composite", "steps": [step]}}))
    with pytest.raises(UnknownError):
        Runner(tmp_path, tmp_path, dict(BASH), {}).action(tmp_path, {})


def test_files_of_steps_are_read_as_github_reads_them():
    assert read_pairs("a=1\nb<<END\n2\na=3\nEND\nc=x=y\n") == {"a": "1", "b": "2\na=3", "c": "x=y"}
    with pytest.raises(ValueError, match="neither"):
        read_pairs("nothing\n")


PAGE = """Text.

```console
$ echo one \\
  two 3.5 s; echo sha256:0123456789ab
one two 9 s
sha256:ffffffffffff...
$ exit_with() { return 16; }; exit_with
$ echo $?
...
16
```

```sh
not run
```
"""


def test_a_page_agrees_with_what_its_commands_print_and_with_nothing_else(tmp_path):
    steps = list(shown(PAGE))
    found = transcript([it.command for it in steps], tmp_path, BASH)
    assert [agree(it.lines, lines) for it, lines in zip(steps, found, strict=True)] == [True, True, True]
    assert not agree(["one", "..."], ["two", "one"])
    assert not agree(["one"], ["one", "two"])
    assert not agree(["3 findings"], ["4 findings"])
    assert agree(["...", "b...d", "..."], ["a", "b c d"])


def test_a_command_that_fails_unasked_fails_the_page(tmp_path):
    with pytest.raises(AssertionError, match="ended with 3"):
        transcript(["(exit 3)", "echo on"], tmp_path, BASH)
    with pytest.raises(AssertionError, match="the shell ended early"):
        transcript(["exit 0", "echo on"], tmp_path, BASH)
