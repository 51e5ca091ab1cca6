"""How a run was started, and options of a capture from a file."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.capture.program import SETTINGS, read_settings
from envbuild.capture.variables import LONGEST_WORD, MOST_WORDS, entry_facts
from envbuild.manifest.model import Entry

SECRET = "hunter2SuperSecretValue99"
TELL = "import json; from envbuild.capture.variables import entry_facts; print(json.dumps(entry_facts(None, 'run')))"
OLDER = "import sys; del sys.orig_argv; "
"""What Python before 3.10 does not have."""


def of(entry):
    """The words of a command that was recorded."""
    assert entry is not None
    return entry["command"]


def own(folder: Path, *words: str, **variables: str) -> dict:
    """What a process started with these words says of itself."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), **variables}
    command = [sys.executable, *words]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=True, timeout=60)
    facts: dict = json.loads(done.stdout)
    assert facts.keys() == set(Entry.__dataclass_fields__)
    return facts


PYTHON = Path(sys.executable).name


@pytest.mark.parametrize("older", ["", OLDER])
def test_a_program_is_told_by_all_its_words(tmp_path, older):
    (tmp_path / "train.py").write_text(older + TELL)
    words = ["-W", "error", "train.py", "--lr", "0.1", "", "two words"]
    assert own(tmp_path, *words) == {"command": [PYTHON, *words], "notebook": None}


def test_without_proc_older_interpreters_know_what_follows_the_program(tmp_path):
    code = (
        OLDER
        + "import json; from envbuild.capture.variables import own_command; print(json.dumps(own_command('/nowhere')))"
    )
    (tmp_path / "train.py").write_text(code)
    command = [sys.executable, "-B", "train.py", "--x"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout) == [PYTHON, "train.py", "--x"]


def test_a_module_is_told_as_it_was_started(tmp_path):
    (tmp_path / "trainer.py").write_text(TELL)
    assert own(tmp_path, "-m", "trainer", "--x")["command"] == [PYTHON, "-m", "trainer", "--x"]


@pytest.mark.parametrize("older", ["", OLDER])
def test_code_on_the_command_line_is_cut_to_its_beginning(tmp_path, older):
    code = f"password = '{SECRET}'; {older}" + TELL + " #" * LONGEST_WORD
    _, option, text = own(tmp_path, "-c", code)["command"]
    assert (option, text.startswith("password = '[redacted]'; ")) == ("-c", True)
    assert text.endswith("characters)")
    assert len(text) < LONGEST_WORD + 30


def test_the_home_folder_is_a_tilde(tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(TELL)
    home = str(tmp_path)
    words = [f"{home}/code/train.py", f"--data={home}/data:{home}", home, f"{home}2/x", f"/mnt{home}/x", f"'{home}'"]
    command = own(tmp_path, *words)["command"]
    assert command == [PYTHON, "~/code/train.py", "--data=~/data:~", "~", f"{home}2/x", f"/mnt{home}/x", "'~'"]


def test_without_a_home_nothing_is_replaced(tmp_path):
    (tmp_path / "train.py").write_text(TELL)
    assert own(tmp_path, "train.py", "/x/y", HOME="/")["command"] == [PYTHON, "train.py", "/x/y"]


def test_a_notebook_is_told_by_its_kernel_and_its_path(tmp_path):
    (tmp_path / "ipykernel_launcher.py").write_text(TELL)
    file = f"{tmp_path}/.local/share/jupyter/runtime/kernel-3f0c5b1e-6f0b-4d50-9e4f-0a3a2b1c0d9e.json"
    facts = own(tmp_path, "-m", "ipykernel_launcher", "-f", file, JPY_SESSION_NAME=f"{tmp_path}/work/train.ipynb")
    command = [PYTHON, "-m", "ipykernel_launcher", "-f", "kernel.json"]
    assert facts == {"command": command, "notebook": "~/work/train.ipynb"}


def test_a_notebook_s_path_is_scrubbed(tmp_path):
    (tmp_path / "train.py").write_text(TELL)
    facts = own(tmp_path, "train.py", JPY_SESSION_NAME=f"runs/ghp_{SECRET}\n.ipynb")
    assert facts["notebook"] == "runs/[redacted]\\n.ipynb"


def test_a_given_command_counts_more_than_the_process(monkeypatch):
    monkeypatch.setenv("JPY_SESSION_NAME", "x.ipynb")
    facts = {"command": ["python", "train.py"], "notebook": None}
    assert entry_facts(["python", "train.py"], "run") == entry_facts(("python", "train.py"), "fresh") == facts
    assert entry_facts("python train.py", "fresh") == {"command": ["python train.py"], "notebook": None}


def test_a_process_that_was_started_to_capture_says_nothing_of_the_run():
    assert entry_facts(None, "fresh") is None
    assert entry_facts([], "fresh") is None


def test_a_command_without_end_is_cut():
    command = of(entry_facts(["x"] * (MOST_WORDS + 5), "fresh"))
    assert command[MOST_WORDS:] == ["… (5 words more)"]


def test_secrets_are_cut_out():
    words = ["train.py", "--api-key", SECRET, f"--password={SECRET}", "-H", f"Authorization: Bearer {SECRET}"]
    command = of(entry_facts(words, "fresh"))
    assert command == [
        "train.py", "--api-key", "[redacted]", "--password=[redacted]", "-H", "Authorization: [redacted]"
    ]  # fmt: skip


def test_a_word_with_nul_is_spelt_out():
    assert of(entry_facts(["a\0b"], "fresh")) == ["a\\0b"]


WHOLE = {
    "requires": ["MODEL_DIR"],
    "variables": ["MY_FLAG"],
    "data": ["TRAIN=gs://b/train", "data/x.csv"],
    "preprocessing": ["prep"],
    "load": ["tensorflow"],
    "command": ["python", "train.py"],
    "model": "gs://b/model",
    "deep": True,
    "patch": False,
}
READ = {**{key: value for key, value in WHOLE.items() if key != "model"}, "model_uri": "gs://b/model"}
LINES = "".join(f"{key} = {json.dumps(value)}\n" for key, value in WHOLE.items())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("envbuild.json", json.dumps(WHOLE)),
        ("settings", "\ufeff" + json.dumps(WHOLE)),
        ("envbuild.toml", "\ufeff[capture]\n" + LINES),
        ("pyproject.toml", "[project]\nname = 'x'\n[tool.envbuild.capture]\n" + LINES),
    ],
)
def test_every_form_of_settings_is_read(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert read_settings(str(tmp_path / name)) == READ
    assert WHOLE.keys() == SETTINGS.keys()


def test_nothing_has_to_be_set(tmp_path):
    for name, text in {"a.json": "{}", "a.toml": "[capture]"}.items():
        (tmp_path / name).write_text(text)
        assert read_settings(str(tmp_path / name)) == {}


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("a.json", '{"require": []}', "require is not an option; the options are requires, variables,"),
        ("a.json", '{"requires": "X"}', "requires must be a list of texts"),
        ("a.json", '{"data": ["x", 1]}', "data must be a list of texts"),
        ("a.json", '{"model": ["x"]}', "model must be a text"),
        ("a.json", '{"deep": 1}', "deep must be true or false"),
        ("a.json", '{"patch": "true"}', "patch must be true or false"),
        *((name, text, "its options must be a table") for name, text in (("a.json", "[]"), ("a.toml", "capture = 1"))),
        ("a.json", "{", "Expecting property name"),
        ("a.json", "", "Expecting value"),
        ("a.json", "[" * 100_000, "maximum recursion depth"),
        ("a.toml", "[tool.envbuild.capture]", "has no table [capture]"),
        ("a.toml", "[capture", "Expected ']'"),
        *(("pyproject.toml", text, "has no table [tool.envbuild.capture]") for text in ("[capture]", "tool = 1")),
    ],
)
def test_what_cannot_be_meant_is_refused_by_file_and_key(tmp_path, name, text, fault):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError) as caught:
        read_settings(str(tmp_path / name))
    assert str(caught.value).startswith(f"{tmp_path / name}: {fault}")


def test_files_that_cannot_be_read_are_refused(tmp_path):
    (tmp_path / "latin").write_bytes(b'{"model": "\xe9"}')
    for name, fault in {
        "absent": "cannot be read: No such file",
        ".": "is not a regular file",
        "latin": "'utf-8' codec",
    }.items():
        with pytest.raises(ValueError) as caught:
            read_settings(str(tmp_path / name))
        assert str(caught.value).startswith(f"{tmp_path / name}: {fault}")


def test_older_interpreters_say_that_they_need_json(tmp_path):
    (tmp_path / "envbuild.toml").write_text("[capture]")
    # None there is how an import fails that was never possible.
    code = "import sys; sys.modules['tomllib'] = None; from envbuild.capture.program import read_settings as r; r(sys.argv[1])"
    command = [sys.executable, "-c", code, str(tmp_path / "envbuild.toml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert "reading TOML needs Python 3.11 or later; the same options in a JSON file do not" in done.stderr


@pytest.mark.parametrize(
    "text", [f'{{"ghp_{SECRET}": 1}}', f'{{"password={SECRET}": 1}}', f'{{"model": ["{SECRET}"]}}']
)
def test_a_secret_in_a_file_is_not_repeated(tmp_path, text):
    (tmp_path / "x").write_text(text)
    with pytest.raises(ValueError) as caught:
        read_settings(str(tmp_path / "x"))
    assert SECRET not in str(caught.value)


@given(
    st.binary(max_size=200) | st.text(alphabet='{}[]",:truefalsnmodlata1 \n=', max_size=100).map(str.encode),
    st.booleans(),
)
def test_any_bytes_are_options_or_refused(tmp_path_factory, data, toml):
    path = tmp_path_factory.getbasetemp() / ("any.toml" if toml else "any.json")
    path.write_bytes(data)
    try:
        settings = read_settings(str(path))
    except ValueError as error:
        assert str(error).startswith(f"{path}: ")  # noqa: PT017 - most are options
    else:
        assert settings.keys() <= READ.keys()
