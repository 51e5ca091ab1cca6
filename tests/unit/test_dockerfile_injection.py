"""Whatever a run, a lock or a base calls itself: a Dockerfile has exactly the intended instructions, or there is none."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.errors import BuildError
from envbuild.image.context import as_env, as_json, as_shell, build_context
from envbuild.lock.model import LockedWheel, SystemPackage, Target
from envbuild.oci.digest import Digest
from envbuild.recipe import Recipe
from tests.unit.dockerfiles import Instruction, parse

DIGEST = Digest("5a" * 32)
REGISTRY_BASE = f"python:3.11.7-slim-bookworm@{DIGEST}"
FORMS = ("Dockerfile", "Dockerfile.classic")
KNOWN = {"PATH": "/usr/bin:/bin", "HOME": "/root"}
PIECES = [
    *"\"'\\$#`{}[]()=@:;|&<>*?!~%, /", "\\ ", "$(id)", "${PATH}", "`id`", "{{ 7 }}", "{% raw %}", "{# #}", "<<EOF", "0<<-'EOF'", "EOF",
    "RUN id", "--mount=type=secret", "# escape=`", "# syntax=x", "\\'", "'\\''", '"; id; "', "&& id", "é", "語", "\u00a0", "\ufeff", "\u202e", "😀",
]  # fmt: skip
ENDS = [
    "\n",
    "\r",
    "\r\n",
    "\nRUN id\n",
    "\n# escape=`\n",
    "\\\n",
    " \\",
    "\nEOF\n",
    "\0",
    "\t",
    "\x0b",
    "\x85",
    "\u2028",
    "\u2029",
]
LINE = st.lists(st.sampled_from(PIECES) | st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), max_size=10).map(
    "".join
)
ANYTHING = st.lists(
    st.sampled_from(PIECES + ENDS) | st.characters(codec="utf-8") | st.sampled_from("abc/1."), max_size=8
).map("".join)
NAMES = st.from_regex(r"[A-Z_][A-Z0-9_]{0,8}", fullmatch=True).filter(lambda name: name not in ("PATH", "VIRTUAL_ENV"))
LABELS = st.from_regex(r"[a-z][a-z0-9./-]{0,8}", fullmatch=True)


def a_wheel(name: str) -> LockedWheel:
    return LockedWheel(name=name, version=name, filename=name, sha256=DIGEST, size=1, url=f"file:///{name}")


def a_package(**changes: str) -> SystemPackage:
    values: dict[str, Any] = {
        "name": "libgomp1",
        "version": "1:12.2~0+b1",
        "architecture": "amd64",
        "filename": "x.deb",
    }
    return SystemPackage(**(values | changes), sha256=DIGEST, size=1)


def a_recipe(**changes: Any) -> Recipe:
    values: dict[str, Any] = {
        "base_name": REGISTRY_BASE,
        "base_digest": DIGEST,
        "python_path": "/usr/@python@/python3.11",
        "target": Target(python="3.11.7", machine="x86_64", glibc="2.36"),
        "wheels": (a_wheel("six"),),
        "packages": (a_package(),),
        "variables": (),
        "labels": (),
    }
    return Recipe(**(values | changes))


def meaning(text: str, *, old: bool) -> list[tuple[str, tuple[str, ...], Any, tuple[str, ...]]]:
    """What each instruction says, with every kind of quoting undone."""
    return [(it.word, it.flags, _said(it), it.heredocs) for it in parse(text, old=old)]


def _said(found: Instruction) -> Any:
    if found.word == "RUN":
        return [found.words, found.replaced]
    return found.pairs(KNOWN) if found.word in ("ENV", "LABEL") else found.rest


def replaced(value: Any, marks: dict[str, str]) -> Any:
    """The same with every mark in it replaced."""
    if isinstance(value, str):
        for mark, text in marks.items():
            value = value.replace(mark, text)
        return value
    return type(value)(replaced(it, marks) for it in value)


def check(nasty: Recipe, harmless: Recipe, marks: dict[str, str], *, wheelhouse: bool) -> None:
    """Hold both forms, read as old and new builders do, against those of a recipe that has marks for the values."""
    context = build_context(nasty, b"", b"", None, wheelhouse=wheelhouse)
    expected = build_context(harmless, b"", b"", None, wheelhouse=wheelhouse)
    for form in FORMS:
        for old in (False, True):
            found = meaning(context[form].decode(), old=old)
            assert found == replaced(meaning(expected[form].decode(), old=old), marks)
            assert not any(documents for *_, documents in found)


def attempted(recipe: Recipe) -> dict[str, bytes] | BuildError:
    try:
        return build_context(recipe, b"", b"", None)
    except BuildError as error:
        return error


def marked(mark: str, count: int) -> list[str]:
    return [f"@{mark}{number}@" for number in range(count)]


@settings(max_examples=settings().max_examples // 4)
@given(
    variables=st.dictionaries(NAMES, LINE, max_size=3),
    labels=st.dictionaries(LABELS, LINE, max_size=3),
    python=LINE,
    wheel=ANYTHING,
    wheelhouse=st.booleans(),
)
def test_values_of_any_printable_text_are_written_and_read_back(variables, labels, python, wheel, wheelhouse):
    values, texts = marked("value", len(variables)), marked("label", len(labels))
    nasty = a_recipe(
        variables=tuple(variables.items()),
        labels=tuple(labels.items()),
        python_path=f"/usr/{python}/python3.11",
        wheels=(a_wheel(wheel),),
    )
    harmless = a_recipe(
        variables=tuple(zip(variables, values, strict=True)), labels=tuple(zip(labels, texts, strict=True))
    )
    pairs = [*zip(values, variables.values(), strict=True), *zip(texts, labels.values(), strict=True)]
    check(nasty, harmless, {"@python@": python, **dict(pairs)}, wheelhouse=wheelhouse)


@settings(max_examples=settings().max_examples // 4)
@given(base=LINE | LINE.map(lambda text: f"{text}@{DIGEST}"), wheelhouse=st.booleans())
def test_a_base_is_pulled_by_its_name_or_asked_for(base, wheelhouse):
    nasty = a_recipe(base_name=base)
    asked = parse(build_context(nasty, b"", b"", None)["Dockerfile"].decode())[0].word == "ARG"
    harmless = a_recipe(base_name="debian:bookworm") if asked else a_recipe()
    check(nasty, harmless, {} if asked else {REGISTRY_BASE: base}, wheelhouse=wheelhouse)


TAKEN = {
    "user": (lambda text: {"user": text}, "65532:65532", "user"),
    "prefix": (lambda text: {"prefix": text}, "/opt/env", "prefix"),
    "machine": (lambda text: {"target": Target(python="3.11.7", machine=text, glibc="2.36")}, "x86_64", "machine"),
    "Python": (lambda text: {"target": Target(python=text, machine="x86_64", glibc="2.36")}, "3.11.7", "p"),
    "variable": (lambda text: {"variables": ((text, "1"),)}, "NAME", "variable"),
    "label": (lambda text: {"labels": ((text, "1"),)}, "name", "label"),
    "package": (lambda text: {"packages": (a_package(name=text),)}, "libgomp1", "package"),
    "package's version": (lambda text: {"packages": (a_package(version=text),)}, "1:12.2~0+b1", "package"),
    "architecture": (lambda text: {"packages": (a_package(architecture=text),)}, "amd64", "architecture"),
    "variable's value": (lambda text: {"variables": (("NAME", text),)}, "@value@", "variable NAME"),
    "label's value": (lambda text: {"labels": (("name", text),)}, "@value@", "label name"),
}
"""Each field with what it usually is, and what an error has to say of it."""


@pytest.mark.parametrize("name", TAKEN)
@settings(max_examples=settings().max_examples // 4)
@given(text=ANYTHING)
def test_any_text_in_any_field_is_refused_or_changes_nothing_but_the_field(name, text):
    """Names are written bare: a text that is taken has nothing in it that any reader could part or replace."""
    change, usual, field = TAKEN[name]
    found = attempted(a_recipe(**change(text)))
    if isinstance(found, BuildError):
        assert field in found.what
        assert found.what.isprintable()
        assert found.where.isprintable()
        return
    usually = build_context(a_recipe(**change(usual)), b"", b"", None)
    for form in FORMS:
        shape = [(it.word, len(it.flags), len(it.words)) for it in parse(usually[form].decode())]
        assert [(it.word, len(it.flags), len(it.words)) for it in parse(found[form].decode())] == shape
        said = [it for it in parse(found[form].decode()) if it.word in ("ENV", "LABEL")]
        if "value" in name:
            assert ("NAME" if name.startswith("v") else "name", text) in [
                pair for it in said for pair in it.pairs(KNOWN)
            ]


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
        (lambda bad: {"packages": (a_package(name=bad),)}, "package 'a"),
        (lambda bad: {"packages": (a_package(version=bad),)}, "package"),
        (lambda bad: {"packages": (a_package(architecture=bad),)}, "architecture"),
    ],
)
def test_what_could_end_a_line_is_refused_and_the_field_is_named(character, change, field):
    with pytest.raises(BuildError) as caught:
        build_context(a_recipe(**change(f"a{character}RUN id")), b"", b"", None)
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
        ({"packages": (a_package(name="a;id"),)}, "package 'a;id'"),
        ({"packages": (a_package(name="-oAPT::x"),)}, "package '-oAPT::x'"),
    ],
)
def test_names_that_cannot_be_quoted_are_refused(change, field):
    with pytest.raises(BuildError) as caught:
        build_context(a_recipe(**change), b"", b"", None)
    assert field in caught.value.what


def test_half_a_surrogate_pair_is_refused_as_no_file_can_hold_it():
    for quote in (as_env, as_json, as_shell):
        with pytest.raises(BuildError, match=r"U\+D800"):
            quote("\ud800", "variable A")
