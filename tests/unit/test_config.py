"""The configuration as a file: where it is found, what may be in it, and what is refused with its place."""

import os
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from envbuild.config import Configuration, Option, find_file, read_settings, schema
from envbuild.errors import UsageError

ROLES = ("train", "serve")
OPTIONS = [
    Option(command="from-manifest", key="push", kind="text", place="reference"),
    Option(command="from-manifest", key="base", kind="text", place="reference"),
    Option(command="from-manifest", key="template", kind="text", place="path"),
    Option(command="from-manifest", key="sign", kind="text", place="key"),
    Option(command="from-manifest", key="role", kind="text", choices=ROLES, has_tables=True),
    Option(command="from-manifest", key="extra", kind="list"),
    Option(command="from-manifest", key="find-links", kind="list", place="path"),
    Option(command="from-manifest", key="cloudbuild-timeout", kind="number"),
    Option(command="from-manifest", key="offline", kind="flag"),
    Option(command="lock", key="base", kind="text", place="reference"),
    Option(command="lock", key="find-links", kind="list", place="path"),
    Option(command="local", key="data", kind="list", place="pair"),
    Option(command="verify", key="python", kind="text", place="program"),
    Option(command="capture", key="variable", kind="list"),
    Option(command="capture", key="command", kind="text"),
    Option(command="base-build", key="push", kind="text", place="reference"),
]


def said(folder: Path, text: str, name: str = "envbuild.toml") -> dict[str, object]:
    """What a file says, by dotted name."""
    (folder / name).write_text(text, "utf-8")
    tables = configuration(folder).tables
    return {f"{at}.{key}": it.value for at, keys in tables.items() for key, it in keys.items()}


def configuration(folder: Path) -> Configuration:
    file = find_file(None, folder)
    assert file is not None
    return read_settings(file, OPTIONS)


def refused(folder: Path, text: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        said(folder, text)
    return caught.value


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ((), None),
        (("a/b/envbuild.toml", "a/envbuild.toml"), "a/b/envbuild.toml"),
        (("a/envbuild.toml", "envbuild.toml"), "a/envbuild.toml"),
        (("a/b/pyproject.toml", "a/envbuild.toml"), "a/envbuild.toml"),
        (("a/b/.git", "a/envbuild.toml"), None),
        (("a/.git", "a/envbuild.toml"), "a/envbuild.toml"),
        (("a/b/own/pyproject.toml", "a/b/envbuild.toml"), "a/b/envbuild.toml"),
    ],
    ids=["none", "here first", "nearest", "a project without", "above the repository", "its root", "not below"],
)
def test_the_nearest_file_counts_up_to_the_root_of_the_repository(tmp_path, files, found):
    here = tmp_path / "a/b"
    here.mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('[project]\nname = "x"\n' if "pyproject" in name else "")
    read = find_file(None, here)
    assert (read and read.path) == (tmp_path / found if found else None)


def test_the_search_ends_where_another_file_system_begins():
    assert Path("/proc").stat().st_dev != Path("/").stat().st_dev
    assert find_file(None, Path("/proc/self")) is None


def test_a_file_may_be_named_and_an_empty_name_is_for_none(tmp_path):
    (tmp_path / "envbuild.toml").write_text("[broken")
    (tmp_path / "ci.toml").write_text('push = "r/x"')
    (tmp_path / "pyproject.toml").write_text("")
    named, project = find_file("ci.toml", tmp_path), find_file(str(tmp_path / "pyproject.toml"), Path("/"))
    assert named is not None
    assert (named.path, named.table) == (tmp_path / "ci.toml", {"push": "r/x"})
    assert project is not None
    assert not read_settings(project, OPTIONS).tables
    assert find_file("", tmp_path) is None


@pytest.mark.parametrize(
    ("name", "before"), [("envbuild.toml", ""), ("pyproject.toml", "tool.envbuild.")], ids=["own", "project"]
)
def test_shared_values_reach_their_commands_and_those_of_a_command_count_more(tmp_path, name, before):
    table = f"[{before[:-1]}]\n" if before else ""
    head = f"[{before}lock]\nbase = 'debian:trixie'\n"
    top = f"{table}base = 'debian:bookworm'\npush = 'r/größe'\nfind_links = ['w', '/abs']\n"
    assert said(tmp_path, f"{top}{head}", name) == {
        "from-manifest.base": "debian:bookworm",
        "from-manifest.push": "r/größe",
        "from-manifest.find-links": [f"{tmp_path}/w", "/abs"],
        "lock.base": "debian:trixie",
        "lock.find-links": [f"{tmp_path}/w", "/abs"],
    }


def test_a_table_that_a_choice_names_counts_where_it_is_chosen(tmp_path):
    text = 'push = "r/all"\n[from-manifest]\nextra = ["a"]\n[from-manifest.serve]\nextra = ["fastapi"]\npush = "r/served"\n'
    path = tmp_path / "envbuild.toml"
    path.write_text(text)
    read = configuration(tmp_path)
    tables = (("from-manifest",), ("from-manifest", "from-manifest.train"), ("from-manifest", "from-manifest.serve"))
    pushes = [read.setting(names, "push") for names in tables]
    assert [(it.value, it.where) for it in pushes if it] == [
        ("r/all", f"{path}: push"), ("r/all", f"{path}: push"),
        ("r/served", f"{path}: from-manifest.serve.push"),
    ]  # fmt: skip
    assert read.setting(("base-build",), "push") is None


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ('[templates]\nfolder = "house"', "from-manifest.template", "{}/house"),
        ('[from-manifest]\nsign = "key.pem"', "from-manifest.sign", "{}/key.pem"),
        ('[from-manifest]\nsign = "keyless"', "from-manifest.sign", "keyless"),
        ('[from-manifest]\nsign = "./keyless"', "from-manifest.sign", "{}/keyless"),
        ('[from-manifest]\nsign = "env://KEY"', "from-manifest.sign", "env://KEY"),
        ('[templates]\nfolder = "a"\n[from-manifest]\ntemplate = "b"', "from-manifest.template", "{}/b"),
        ('base = "./layout"', "lock.base", "{}/layout"),
        ('base = "layout"', "lock.base", "layout"),
        ('[local]\ndata = ["gs://b/p=./here"]', "local.data", ["gs://b/p={}/here"]),
        ('[local]\ndata = ["gs://b/p=gs://c"]', "local.data", ["gs://b/p=gs://c"]),
        ('[verify]\npython = "venv/bin/python"', "verify.python", "{}/venv/bin/python"),
        ('[verify]\npython = "python3"', "verify.python", "python3"),
        ('[templates]\nfolder = "~/x"', "from-manifest.template", "{}/~/x"),
        ('[capture]\nvariables = ["A"]', "capture.variable", ["A"]),
        ('[capture]\ncommand = ["python", "train it.py"]', "capture.command", "python 'train it.py'"),
        ("[from-manifest]\noffline = false", "from-manifest.offline", False),
        ("[from-manifest]\ncloudbuild_timeout = 600", "from-manifest.cloudbuild-timeout", 600),
    ],
)
def test_paths_are_of_the_files_folder_and_all_else_stays_as_it_is(tmp_path, text, key, value):
    placed = [it.format(tmp_path) for it in value] if isinstance(value, list) else value
    assert said(tmp_path, text)[key] == (placed.format(tmp_path) if isinstance(placed, str) else placed)


TABLE = "has to be a table"


@pytest.mark.parametrize(
    ("text", "at", "says"),
    [
        ("psuh = 1", ": psuh", "did you mean push?"),
        ("\n\n[form-manifest]", ": form-manifest", "did you mean from-manifest?"),
        ("[lock]\nfind-link = []", ": lock.find-link", "did you mean find-links?"),
        ("[from-manifest.sevre]", ": from-manifest.sevre", "did you mean serve?"),
        ("[from-manifest.serve]\nexta = []", ": from-manifest.serve.exta", "did you mean extra?"),
        ("[templates]\nfolders = 'x'", ": templates.folders", "did you mean folder?"),
        *((f'"{it}" = 1', f": {it}", "no such key") for it in ("größe", "")),
        *((f"push = {it}", ": push", "write a text") for it in ("1", "['a']")),
        ("find-links = 'w'", ": find-links", "write a list of texts"),
        ("[lock]\nfind-links = [1]", ": lock.find-links", "write a list of texts"),
        ("[from-manifest]\noffline = 'yes'", ": from-manifest.offline", "write true or false"),
        ("[from-manifest]\ncloudbuild-timeout = true", ": from-manifest.cloudbuild-timeout", "whole number"),
        ("from-manifest = 1", ": from-manifest", TABLE),
        ("[[lock]]", ": lock", TABLE),
        ("[from-manifest]\nserve = 1", ": from-manifest.serve", TABLE),
        ("find-links = []\nfind_links = []", ": find_links", "two spellings"),
        ("[lock]\nbase = 'a'\n[from-manifest]\nbase = 1", ": from-manifest.base", "write a text"),
        ("[capture]\n'variables' = 1", ": capture.variable", "write a list of texts"),
        ('[from-manifest]\nextra = ["a", # ]\n"b\\u0000"]', ": from-manifest.extra", "a NUL is in it"),
        ('base = "a\\nb"', ": base", "a line end or another control character"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_file_and_key(tmp_path, text, at, says):
    error = refused(tmp_path, text)
    assert error.where == f"{tmp_path}/envbuild.toml{at}"
    assert says in str(error)


def test_a_mark_of_the_byte_order_before_the_text_is_nothing(tmp_path):
    assert said(tmp_path, "\ufeffpush = 'r/x'")["from-manifest.push"] == "r/x"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[lock]\nbase = = 1", r"Invalid value \(at line 2, column 8\)"),
        ("base = 1\nbase = 2", r"a key is there twice \(at line 2, column 9\)"),
    ],
)
def test_broken_toml_is_refused_with_its_line(tmp_path, text, says):
    error = refused(tmp_path, text)
    assert error.where == f"{tmp_path}/envbuild.toml"
    assert re.search(says, error.what)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        *((make, "not a regular file") for make in (os.mkdir, os.mkfifo)),
        (lambda path: path.symlink_to("nowhere"), "No such file"),
        (lambda path: path.symlink_to("/proc/self/mem"), "cannot be read: Input/output error"),
        (lambda path: path.write_bytes(b"#" * ((1 << 20) + 1)), "larger than 1048576 bytes"),
        (lambda path: path.write_bytes(b"a = '\xff'"), "not UTF-8"),
        (lambda path: path.write_text("a = " + "[" * 100_000), "not TOML"),
    ],
    ids=["folder", "pipe", "dangling", "unreadable", "huge", "bytes", "deep"],
)
def test_what_is_no_file_that_can_be_read_is_refused_by_name(tmp_path, make, says):
    make(tmp_path / "envbuild.toml")
    with pytest.raises(UsageError, match=says) as caught:
        find_file(None, tmp_path)
    assert caught.value.where == str(tmp_path / "envbuild.toml")


def test_what_another_user_left_in_a_folder_above_counts_only_when_it_is_named(tmp_path):
    path, here = tmp_path / "envbuild.toml", tmp_path / "mine"
    here.mkdir()
    path.write_text('push = "evil/x"')
    os.chown(path, 54321, -1)
    with pytest.raises(UsageError, match="another user"):
        find_file(None, here)
    assert find_file(str(path), here) is not None
    os.chown(tmp_path, 54321, -1)  # as a checkout in a container, where all of it is somebody else's
    assert find_file(None, here) is not None


def test_the_schema_takes_what_is_taken_and_refuses_what_is_refused():
    described = schema(OPTIONS)
    jsonschema.Draft202012Validator.check_schema(described)
    validator = jsonschema.Draft202012Validator(described)
    good = {"push": "r/x", "templates": {"folder": "t"}, "from-manifest": {"role": "serve", "serve": {"extra": ["a"]}}}
    assert validator.is_valid(good)
    bad: Any
    for bad in ({"psuh": "x"}, {"push": 1}, {"from-manifest": {"role": "x"}}, {"lock": {"serve": {}}}):
        assert not validator.is_valid(bad)
