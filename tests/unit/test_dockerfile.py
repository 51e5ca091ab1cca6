"""The build context: readable, complete, and nothing from outside becomes an instruction."""

import json
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.dockerfile import build_context
from envbuild.dockerfile.quote import as_env, as_json
from envbuild.errors import BuildError
from envbuild.files import data_folder
from envbuild.lock.model import LockedWheel, Target
from envbuild.oci.digest import Digest
from envbuild.recipe import Recipe

GOLDEN = Path(__file__).parents[1] / "golden"
DIGEST = Digest("5a" * 32)
PATH = 'PATH="/opt/env/bin:${PATH}"'
REGISTRY_BASE = f"python:3.11.7-slim-bookworm@{DIGEST}"


def a_recipe(**changes: Any) -> Recipe:
    values: dict[str, Any] = {
        "base_name": REGISTRY_BASE,
        "base_digest": DIGEST,
        "python_path": "/usr/local/bin/python3.11",
        "target": Target(python="3.11.7", machine="x86_64", glibc="2.36"),
        "wheels": (),
        "variables": (
            ("TF_CPP_MIN_LOG_LEVEL", "1"),
            ("XLA_FLAGS", r'--xla_dump_to="$HOME/a b" --x=\\'),
        ),
        "labels": (("dev.envbuild.framework", "tensorflow==2.15.1"), ("dev.envbuild.variant", "gpu")),
    }
    return Recipe(**(values | changes))


def dockerfile(recipe: Recipe) -> str:
    return build_context(recipe, b"", b"", data_folder("templates"))["Dockerfile"].decode()


class Instruction(NamedTuple):
    word: str
    rest: str


def parsed(text: str) -> list[Instruction]:
    """Split into instructions as Docker's own parser does (moby/buildkit, frontend/dockerfile/parser)."""
    found, open_line = [], ""
    for raw in text.split("\n"):
        line = raw.lstrip()
        if not line or line.startswith("#"):  # also inside a continued instruction
            continue
        continued = re.search(r"\\[ \t]*$", line)
        open_line += line[: continued.start()] if continued else line
        if not continued:
            word, _, rest = open_line.strip().partition(" ")
            found.append(Instruction(word.upper(), rest.strip()))
            open_line = ""
    assert not open_line
    return found


def named_value(text: str) -> tuple[str, str]:
    """Read `NAME="value"` of ENV or LABEL: one word, whose value is the double-quoted string that Docker's lexer sees."""
    name, _, quoted = text.partition("=")
    assert re.fullmatch(r'"(?:[^"\\$]|\\["\\$])*"', quoted), quoted  # no quote closes early, no $ is left to expand
    return name, re.sub(r'\\(["\\$])', r"\1", quoted[1:-1])


def values(instructions: list[Instruction], word: str) -> list[tuple[str, str]]:
    return [named_value(rest) for found, rest in instructions if found == word and rest != PATH]


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("Dockerfile.registry", a_recipe()),
        (
            "Dockerfile.local",
            a_recipe(
                base_name="debian:bullseye",
                python_path="/usr/bin/python3.9",
                target=Target(python="3.9.2", machine="aarch64", glibc="2.31"),
            ),
        ),
    ],
)
def test_the_dockerfile_reads_as_the_golden_one(name, recipe):
    """ENVBUILD_UPDATE_GOLDEN=1 writes the file anew."""
    found = dockerfile(recipe)
    if os.environ.get("ENVBUILD_UPDATE_GOLDEN"):
        (GOLDEN / name).write_text(found)
    assert found == (GOLDEN / name).read_text()


def test_the_context_holds_the_lock_as_given_and_lets_only_the_requirements_into_the_build():
    context = build_context(a_recipe(), b"six==1.17.0", b"lock-version", data_folder("templates"))
    assert sorted(context) == [".dockerignore", "Dockerfile", "pylock.toml", "requirements.txt"]
    assert context["requirements.txt"] == b"six==1.17.0"
    assert context["pylock.toml"] == b"lock-version"
    rules = [line for line in context[".dockerignore"].decode().splitlines() if not line.startswith("#")]
    assert rules == ["*", "!requirements.txt"]


def test_equal_recipes_give_equal_files():
    assert build_context(a_recipe(), b"r", b"p", data_folder("templates")) == build_context(
        a_recipe(), b"r", b"p", data_folder("templates")
    )


def test_the_base_is_named_by_digest_and_its_platform_is_fixed():
    instructions = parsed(dockerfile(a_recipe()))
    assert instructions[0] == ("FROM", f"--platform=linux/amd64 {REGISTRY_BASE} AS base")
    assert [rest for word, rest in instructions if word == "FROM"][1:] == ["base AS environment", "base"]


@pytest.mark.parametrize("name", ["debian:bookworm", "/bases/python", f"/bases/a@{DIGEST}", "python:3.11"])
def test_a_base_that_no_engine_can_pull_by_digest_is_an_argument(name):
    instructions = parsed(dockerfile(a_recipe(base_name=name)))
    assert instructions[:2] == [("ARG", "BASE"), ("FROM", "--platform=linux/amd64 ${BASE} AS base")]


def test_pip_installs_the_locked_files_and_nothing_else():
    install = next(rest for word, rest in parsed(dockerfile(a_recipe())) if word == "RUN" and '"install"' in rest)
    command = json.loads(install)
    assert command[:4] == ["/opt/env/bin/python", "-m", "pip", "install"]
    assert {"--require-hashes", "--no-deps", "--no-compile", "--no-cache-dir"} < set(command)
    assert "--python" not in command  # pip 20.3, which Debian bullseye brings, does not know it


def test_the_final_stage_has_the_path_variables_labels_and_user_of_the_recipe():
    recipe = a_recipe()
    instructions = parsed(dockerfile(recipe))
    final = instructions[max(i for i, found in enumerate(instructions) if found.word == "FROM") :]
    assert ("COPY", "--from=environment /opt/env /opt/env") in final
    assert ("ENV", PATH) in final
    assert values(final, "ENV") == [("VIRTUAL_ENV", "/opt/env"), *recipe.variables]
    assert values(final, "LABEL") == list(recipe.labels)
    assert final[-1] == ("USER", "65532:65532")


HOSTILE = st.lists(
    st.sampled_from(
        [*"\"'\\$#`{}[]()=@:/ ", "\\ ", "$(id)", "${PATH}", "{{ 7 }}", "{% raw %}", "<<EOF", "RUN id", "é", "語"]
    )
    | st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")),
    max_size=12,
).map("".join)
NAMES = st.from_regex(r"[A-Z_][A-Z0-9_]{0,8}", fullmatch=True).filter(lambda name: name not in ("PATH", "VIRTUAL_ENV"))
LABELS = st.from_regex(r"[a-z][a-z0-9./-]{0,8}", fullmatch=True)
PLAIN = a_recipe(variables=(), labels=())


def a_wheel(name: str) -> LockedWheel:
    return LockedWheel(name=name, version=name, filename=name, sha256=DIGEST, size=1, url=name)


@settings(max_examples=60, deadline=None)
@given(
    variables=st.dictionaries(NAMES, HOSTILE, max_size=3),
    labels=st.dictionaries(LABELS, HOSTILE, max_size=3),
    base=HOSTILE | HOSTILE.map(lambda text: f"{text}@{DIGEST}"),
    python=HOSTILE,
    wheel=HOSTILE,
)
def test_whatever_the_values_hold_there_are_exactly_the_intended_instructions(variables, labels, base, python, wheel):
    recipe = a_recipe(
        variables=tuple(variables.items()),
        labels=tuple(labels.items()),
        base_name=base,
        python_path=python,
        wheels=(a_wheel(wheel),),
    )
    instructions = parsed(dockerfile(recipe))
    usual = [word for word, _ in parsed(dockerfile(PLAIN))]
    argument = ["ARG"] if instructions[0].word == "ARG" else []
    expected = argument + usual[:-1] + ["ENV"] * len(variables) + ["LABEL"] * len(labels) + usual[-1:]
    assert [word for word, _ in instructions] == expected
    assert values(instructions, "ENV")[2:] == list(variables.items())
    assert values(instructions, "LABEL") == list(labels.items())
    runs = [json.loads(rest) for word, rest in instructions if word == "RUN"]
    assert runs[0] == [python, "-m", "venv", "--without-pip", "/opt/env"]
    first = next(rest for word, rest in instructions if word == "FROM")
    assert first == f"--platform=linux/amd64 {'${BASE}' if argument else base} AS base"


@pytest.mark.parametrize("character", ["\n", "\r", "\0", "\t", "\x1b", "\x85", "\u2028", "\u2029"])
@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda bad: {"variables": (("XLA_FLAGS", bad),)}, "variable XLA_FLAGS"),
        (lambda bad: {"labels": (("dev.envbuild.framework", bad),)}, "label dev.envbuild.framework"),
        (lambda bad: {"base_name": bad}, "base"),
        (lambda bad: {"python_path": bad}, "python_path"),
        (lambda bad: {"user": bad}, "user"),
        (lambda bad: {"prefix": bad}, "prefix"),
        (lambda bad: {"variables": ((bad, "1"),)}, "variable"),
        (lambda bad: {"labels": ((bad, "1"),)}, "label"),
    ],
)
def test_what_could_end_a_line_is_refused_and_the_field_is_named(character, change, field):
    with pytest.raises(BuildError) as caught:
        dockerfile(a_recipe(**change(f"a{character}RUN id")))
    assert field in caught.value.what
    assert caught.value.what.isprintable()
    assert caught.value.where.isprintable()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"variables": (("A B", "1"),)}, "variable 'A B'"),
        ({"variables": (("1A", "1"),)}, "variable '1A'"),
        ({"labels": (("a=b", "1"),)}, "label 'a=b'"),
        ({"user": "0 AS root"}, "user"),
        ({"prefix": "/opt/$HOME"}, "prefix"),
        ({"target": Target(python="3.11 x.1", machine="x86_64", glibc="2.36")}, "target.python"),
        ({"target": Target(python="3.11.1", machine="a b", glibc="2.36")}, "machine"),
    ],
)
def test_names_that_cannot_be_quoted_are_refused(change, field):
    with pytest.raises(BuildError) as caught:
        dockerfile(a_recipe(**change))
    assert field in caught.value.what


def test_half_a_surrogate_pair_is_refused_as_no_file_can_hold_it():
    for quote in (as_env, as_json):
        with pytest.raises(BuildError, match=r"U\+D800"):
            quote("\ud800", "variable A")


def test_a_missing_template_is_an_error_that_names_it(tmp_path):
    with pytest.raises(BuildError) as caught:
        build_context(a_recipe(), b"", b"", tmp_path)
    assert caught.value.where == "Dockerfile.j2"


def test_a_broken_template_is_an_error_that_names_its_line(tmp_path):
    (tmp_path / "Dockerfile.j2").write_text("FROM x\n{% if %}\n")
    with pytest.raises(BuildError) as caught:
        build_context(a_recipe(), b"", b"", tmp_path)
    assert caught.value.where.endswith("Dockerfile.j2:2")


def test_a_template_that_names_an_unknown_value_is_an_error(tmp_path):
    (tmp_path / "Dockerfile.j2").write_text("FROM {{ nothing }}\n")
    with pytest.raises(BuildError, match="nothing"):
        build_context(a_recipe(), b"", b"", tmp_path)
