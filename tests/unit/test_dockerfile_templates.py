"""Templates of one's own: any subset, by option or configuration; a broken one is named by file and line."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from envbuild.errors import BuildError, UsageError
from envbuild.image.context import build_context, built_in, check_templates
from tests.fakes.index import serving
from tests.running import run_envbuild
from tests.unit.dockerfiles import Instruction, parse
from tests.unit.test_dockerfile import LOCAL, a_recipe, context
from tests.unit.test_from_manifest import TENSORFLOW, TOOL, Site

MANIFEST = {
    "schema_version": "1.0",
    "created": "2026-11-21T12:00:00Z",
    "python": {"version": "3.11.7", "implementation": "cpython"},
    "platform": {"system": "Linux", "machine": "x86_64"},
    "distributions": [{"name": "tensorflow", "version": "2.15.1", "origin": {"kind": "index"}}],
    "framework": {"name": "tensorflow", "distribution": "tensorflow", "version": "2.15.1", "cuda": "12.2"},
}


def rendered(folder: Path, name: str = "Dockerfile") -> str:
    return build_context(a_recipe(), b"", b"", folder)[name].decode()


def envbuild(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_envbuild(*arguments, cwd=cwd)


def test_a_folder_replaces_some_templates_and_the_others_stay(tmp_path):
    (tmp_path / "dockerignore.j2").write_text("*\n!{{ prefix | word('prefix') }}\n")
    assert rendered(tmp_path, ".dockerignore") == "*\n!/opt/env\n"
    assert rendered(tmp_path) == context(a_recipe())["Dockerfile"]


def test_a_template_can_fill_one_block_of_the_built_in_one(tmp_path):
    (tmp_path / "Dockerfile.j2").write_text(
        '{% extends "envbuild/Dockerfile.j2" %}\n{% block extra %}\nCOPY serve.py /srv/\n{{ super() }}{% endblock %}\n'
    )
    usual, found = parse(context(a_recipe())["Dockerfile"]), parse(rendered(tmp_path))
    assert found == [*usual[:-1], Instruction("COPY", (), "serve.py /srv/"), usual[-1]]
    assert rendered(tmp_path, "Dockerfile.classic") == context(a_recipe())["Dockerfile.classic"]


def test_a_layout_of_ones_own_is_both_forms(tmp_path):
    (tmp_path / "layout.j2").write_text("FROM scratch\n{% block form %}{% endblock %}\n")
    assert "For BuildKit" in rendered(tmp_path)
    assert "without mounts" in rendered(tmp_path, "Dockerfile.classic")


def test_a_changed_template_counts_at_once(tmp_path):
    (tmp_path / "Dockerfile.j2").write_text("FROM one\n")
    assert rendered(tmp_path) == "FROM one\n"
    (tmp_path / "Dockerfile.j2").write_text("FROM another\n")
    assert rendered(tmp_path) == "FROM another\n"


UNFILTERED = "without a filter"
BROKEN = {
    "a syntax error": ("FROM x\n{% if %}\n", 2, "Expected an expression"),
    "an open block": ("FROM x\n\n{% if base %}\nUSER 1\n", 4, "endif"),
    "an unknown tag": ("{% nothing %}", 1, "nothing"),
    "an unknown filter": ("FROM x\nUSER {{ user | nothing }}\n", 2, "nothing"),
    "an unknown value": ("FROM x\n\nUSER {{ nothing }}\n", 3, "'nothing' is undefined"),
    "an unknown value in a filter": ("FROM x\n\n\nUSER {{ nothing | word('user') }}\n", 4, "nothing"),
    "an unknown part": (
        "FROM x\n{% for it in packages or [user] %}\n{{ it.nothing | word('x') }}\n{% endfor %}\n",
        3,
        "nothing",
    ),
    "a filter without its field": ("FROM x\nUSER {{ user | word }}\n", 2, "TypeError"),
    "a division": ("FROM x\n{% set it = 1 // (count - count) %}\n", 2, "ZeroDivisionError"),
    "a missing template": ("FROM x\n{% include 'nothing.j2' %}\n", 2, "nothing.j2"),
    "a way out of the folder": ("{% include '../secret.j2' %}", 1, "secret.j2"),
    "what no filter has passed": ("FROM x\nUSER {{ user }}\n", 2, UNFILTERED),
    "a number": ("FROM x\n\nUSER {{ count }}\n", 3, UNFILTERED),
    "a way to Python": ("FROM x\n{{ ''.__class__.__mro__ }}\n", 2, "unsafe"),
    "a way to Python through a value": ("{{ packages.__class__ }}\n", 1, "unsafe"),
    "a range without an end": ("FROM x\n{% for it in range(999999999) %}{% endfor %}", 2, "Range too big"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_template_is_an_error_that_names_file_line_and_fault(tmp_path, kind):
    text, line, what = BROKEN[kind]
    (tmp_path / "Dockerfile.j2").write_text(text)
    with pytest.raises(BuildError) as caught:
        rendered(tmp_path)
    assert caught.value.where == f"{tmp_path}/Dockerfile.j2:{line}"
    assert what in caught.value.what
    assert "eject" in caught.value.todo


@pytest.mark.parametrize(
    ("text", "line"),
    [("{% if %}", 1), ("\n\n{{ nothing }}", 3), ("\n{{ user }}", 2), ("\n\n\n{{ 1 // 0 }}", 4)],
    ids=["syntax", "undefined", "unquoted", "runtime"],
)
def test_a_fault_in_an_included_template_is_named_by_that_one(tmp_path, text, line):
    (tmp_path / "part.j2").write_text(text)
    (tmp_path / "Dockerfile.j2").write_text("FROM x\n{% include 'part.j2' %}\n")
    with pytest.raises(BuildError) as caught:
        rendered(tmp_path)
    assert caught.value.where == f"{tmp_path}/part.j2:{line}"


def test_a_fault_in_a_block_of_ones_own_is_named_by_ones_own_file(tmp_path):
    text = '{% extends "envbuild/Dockerfile.j2" %}\n{% block extra %}\n{{ nothing | word("x") }}\n{% endblock %}\n'
    (tmp_path / "Dockerfile.j2").write_text(text)
    with pytest.raises(BuildError) as caught:
        rendered(tmp_path)
    assert caught.value.where == f"{tmp_path}/Dockerfile.j2:3"


def test_a_template_that_is_no_text_or_itself_is_named(tmp_path):
    (tmp_path / "Dockerfile.j2").write_bytes(b"FROM x\n\n# \xff\n")
    with pytest.raises(BuildError, match="not UTF-8") as caught:
        rendered(tmp_path)
    assert caught.value.where == f"{tmp_path}/Dockerfile.j2:3"
    (tmp_path / "Dockerfile.j2").write_text("{% extends 'Dockerfile.j2' %}")
    with pytest.raises(BuildError, match="RecursionError") as caught:
        rendered(tmp_path)
    assert caught.value.where == f"{tmp_path}/Dockerfile.j2:1"


def test_a_template_says_that_it_means_what_no_filter_passed(tmp_path):
    (tmp_path / "Dockerfile.j2").write_text("FROM x\nUSER {{ user | safe }}\n")
    assert rendered(tmp_path) == "FROM x\nUSER 65532:65532\n"


def test_templates_are_tried_in_all_their_branches_before_anything_is_built(tmp_path):
    check_templates_of(tmp_path, "FROM x\n{% if base is none and not wheels %}{{ nothing }}{% endif %}\n", BuildError)
    check_templates_of(tmp_path, "FROM x\n{% if wheelhouse and packages %}{{ nothing }}{% endif %}\n", BuildError)
    (tmp_path / "Dockerfile.j2").write_text("FROM x\n")
    check_templates(tmp_path)


def check_templates_of(folder: Path, text: str, error: type[Exception]) -> None:
    (folder / "Dockerfile.j2").write_text(text)
    with pytest.raises(error):
        check_templates(folder)


def test_a_folder_that_replaces_nothing_is_refused_with_the_names_that_count(tmp_path):
    (tmp_path / "Dockerfile.jinja").write_text("FROM x\n")
    for folder in (tmp_path, tmp_path / "missing", tmp_path / "Dockerfile.jinja"):
        with pytest.raises(UsageError) as caught:
            check_templates(folder)
        assert caught.value.where == str(folder)
        assert all(name in caught.value.todo for name in built_in())


@pytest.mark.parametrize("way", ["a file", "a folder", "a relative folder"])
def test_a_link_out_of_the_folder_is_refused_and_shows_nothing(tmp_path, way):
    (tmp_path / "secret.env").write_text("TOKEN=canary\n")
    own = tmp_path / "own"
    own.mkdir()
    if way == "a file":
        (own / "README.md.j2").symlink_to("../secret.env")
    else:
        (own / "part").symlink_to(".." if way == "a relative folder" else tmp_path)
        (own / "README.md.j2").write_text("{% include 'part/secret.env' %}")
    for refuse in (check_templates, rendered):
        with pytest.raises(BuildError, match="leaves the folder of templates") as caught:
            refuse(own)
        name = "README.md.j2" if way == "a file" else "part/secret.env"
        assert caught.value.where == f"{own}/{name}:1"
        assert "canary" not in str(caught.value)


def test_links_within_the_folder_and_to_it_are_followed(tmp_path):
    (tmp_path / "own/of").mkdir(parents=True)
    (tmp_path / "own/of/now").write_text("FROM linked\n")
    (tmp_path / "own/Dockerfile.j2").symlink_to("of/now")
    (tmp_path / "link").symlink_to("own")
    check_templates(tmp_path / "link")
    assert rendered(tmp_path / "link") == "FROM linked\n"


UNUSABLE = {
    "a folder": Path.mkdir,
    "a dangling link": lambda path: path.symlink_to("nothing"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a pipe": os.mkfifo,
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_what_has_a_templates_name_and_is_no_file_is_refused_beside_a_good_one(tmp_path, kind):
    (tmp_path / "Dockerfile.j2").write_text("FROM x\n")
    check_templates(tmp_path)
    UNUSABLE[kind](tmp_path / "dockerignore.j2")
    with pytest.raises(UsageError, match="regular file") as caught:
        check_templates(tmp_path)
    assert caught.value.where == str(tmp_path / "dockerignore.j2")


def test_the_built_in_templates_pass_as_a_folder_of_ones_own(tmp_path):
    for name, data in built_in().items():
        (tmp_path / name).write_bytes(data)
    check_templates(tmp_path)
    made = build_context(LOCAL, b"six==1.17.0", b"lock-version", tmp_path)
    assert {name: data.decode() for name, data in made.items()} == context(LOCAL)


def test_eject_writes_the_templates_and_overwrites_no_changes(tmp_path):
    done = envbuild("eject", "own", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "own\n")
    assert {path.name: path.read_bytes() for path in (tmp_path / "own").iterdir()} == built_in()
    assert envbuild("eject", "own", cwd=tmp_path).returncode == 0
    changed = tmp_path / "own/layout.j2"
    changed.write_text("FROM x\n")
    (tmp_path / "own/README.md.j2").unlink()
    refused = envbuild("eject", "own", cwd=tmp_path)
    assert refused.returncode == 2
    assert "layout.j2" in refused.stderr
    assert "--force" in refused.stderr
    assert not (tmp_path / "own/README.md.j2").exists()
    assert changed.read_text() == "FROM x\n"
    assert envbuild("eject", "own", "--force", cwd=tmp_path).returncode == 0
    assert changed.read_bytes() == built_in()["layout.j2"]


def test_an_empty_folder_name_is_not_this_folder(tmp_path):
    (tmp_path / "manifest.json").write_text(json.dumps(MANIFEST))
    for name, data in built_in().items():
        (tmp_path / name).write_bytes(data)
    for option in ("--template", "--out"):
        done = envbuild("from-manifest", "manifest.json", "--dry-run", option, "", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"{option} is empty" in done.stderr
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "file").touch()
    done = envbuild("eject", "file", cwd=empty)
    assert (done.returncode, done.stdout) == (2, "")
    assert "a file, not a folder" in done.stderr
    (empty / "file").unlink()
    done = envbuild("eject", "", cwd=empty)
    assert (done.returncode, done.stdout) == (2, "")
    assert "DIR is empty" in done.stderr
    assert not list(empty.iterdir())


@pytest.mark.parametrize("more", [(), ("--dry-run",)], ids=["build", "dry run"])
@pytest.mark.parametrize("way", ["option", "configuration"])
def test_from_manifest_ends_before_any_work_with_the_line_of_a_broken_template(tmp_path, way, more):
    (tmp_path / "manifest.json").write_text(json.dumps(MANIFEST))
    (tmp_path / "own").mkdir()
    (tmp_path / "own/README.md.j2").write_text("# Title\n{{ nothing }}\n")
    if way == "configuration":
        (tmp_path / "envbuild.toml").write_text('[templates]\nfolder = "own"\n')
    option = ["--template", "own"] if way == "option" else []
    arguments = ["--variant", "gpu", "--base", "debian:bookworm", "--out", "out"]
    done = envbuild("from-manifest", "manifest.json", *arguments, *option, *more, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (13, "")
    assert "own/README.md.j2:2" in done.stderr
    assert "'nothing' is undefined" in done.stderr
    assert not (tmp_path / "out").exists()


def test_from_manifest_writes_the_context_by_the_templates_of_the_configuration_and_of_the_option_first(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.envbuild.templates]\nfolder = "own"\n')
    for folder in ("own", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "README.md.j2").write_text(f"by {folder} for {{{{ platform | word('machine') }}}}\n")
    with serving(TENSORFLOW, TOOL) as index:
        site = Site(tmp_path, index.url)
        for options, folder in (((), "own"), (("--template", "other"), "other")):
            done = site.build("--out", f"out-{folder}", *options)
            assert done.returncode == 0, done.stderr
            written = tmp_path / f"out-{folder}/context"
            assert (written / "README.md").read_text() == f"by {folder} for linux/amd64\n"
            assert parse((written / "Dockerfile").read_text())[0].word == "ARG"
