"""`envbuild diff` of two manifests and of two locks: fact by fact, first what can change predictions."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.cli.commands import run
from envbuild.diff.facts import compare_facts, facts_of_manifest
from envbuild.lock.formats import pylock_text
from envbuild.lock.model import Lock, LockedWheel, Target
from envbuild.manifest.reader import read_manifest
from envbuild.oci.digest import Digest
from tests.unit.test_from_manifest import manifest_of


def lock_of(**versions: str) -> bytes:
    wheels = tuple(
        LockedWheel(
            name=name,
            version=version,
            filename=f"{name}-{version}-py3-none-any.whl",
            sha256=Digest.of(f"{name} {version}".encode()),
            size=9,
            url=f"https://files.example.com/{name}-{version}-py3-none-any.whl",
        )
        for name, version in versions.items()
    )
    return pylock_text(Lock(target=Target(python="3.11.2", machine="x86_64", glibc="2.36"), wheels=wheels))


@pytest.fixture
def diff(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def asked(a, b, *options):
        for name, value in (("a.json", a), ("b.json", b)):
            (tmp_path / name).write_text(json.dumps(value))
        capsys.readouterr()
        return run(["diff", "a.json", "b.json", *options]), *capsys.readouterr()

    return asked


def changed(**changes):
    manifest = json.loads(json.dumps(manifest_of()))
    for path, value in changes.items():
        *parents, last = path.split("__")
        inner = manifest
        for key in parents:
            inner = inner[int(key)] if isinstance(inner, list) else inner.setdefault(key, {})
        inner[last] = value
    return manifest


def test_a_manifest_does_not_differ_from_itself(diff):
    code, told, _ = diff(manifest_of(), manifest_of())
    assert code == 0
    assert told.startswith("equal: all ")


def test_a_moved_pin_comes_first_and_the_run_last(diff):
    name, version = (manifest_of()["distributions"][0][key] for key in ("name", "version"))
    other = changed(
        distributions__0__version="9.9", created="2026-01-01T00:00:00Z", variables={"TRAINING_DATA_PATH": "/d"}
    )
    code, told, said = diff(manifest_of(), other)
    assert code == 16
    lines = told.splitlines()
    groups = [line for line in lines if line.startswith(("what", "the run"))]
    assert groups == ["what can change predictions", "what can keep it from starting", "the run itself"]
    [pin] = [line for line in lines if f"distributions.{name}.version" in line]
    assert pin.endswith(f"{version} -> 9.9")
    assert any("variables.TRAINING_DATA_PATH" in line and line.endswith("not there -> /d") for line in lines)
    assert "the manifests differ" in said


def test_json_has_the_values_whole(diff):
    code, told, _ = diff(manifest_of(), changed(distributions__0__version="9.9"), "--json")
    assert code == 16
    [fact] = json.loads(told)["facts"]
    assert (fact["after"], fact["group"]) == ("9.9", "what can change predictions")


def test_flags_go_by_themselves_whatever_their_order(diff):
    assert diff(changed(cpu__flags=["avx", "fma"]), changed(cpu__flags=["fma", "avx"]))[0] == 0
    code, told, _ = diff(changed(cpu__flags=["avx", "fma"]), changed(cpu__flags=["fma"]))
    assert code == 16
    assert "cpu.flags.avx" in told
    assert "there -> not there" in told


def test_one_is_not_yes(diff):
    _, told, _ = diff(changed(cpu__count=1), changed(cpu__count=2))
    assert "1 -> 2" in told


def test_locks_differ_by_version_and_by_bytes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pylock.toml").write_bytes(lock_of(numpy="1.23.5", six="1.16"))
    (tmp_path / "pylock.new.toml").write_bytes(lock_of(numpy="1.22.0", six="1.16", idna="3.7"))
    assert run(["diff", "pylock.toml", "pylock.new.toml"]) == 16
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "different: 2 of 6 facts"
    assert any("numpy" in line and "1.23.5" in line and "-> 1.22.0" in line for line in told)
    assert any("idna" in line and "not there -> 3.7" in line for line in told)
    assert run(["diff", "pylock.toml", "pylock.toml"]) == 0


@pytest.mark.parametrize(("a", "b", "code"), [("a.json", "a.no.json", 2), ("pylock.toml", "pylock.no.toml", 2)])
def test_what_cannot_be_compared_is_refused(tmp_path, monkeypatch, capsys, a, b, code):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pylock.toml").write_bytes(lock_of(six="1.16"))
    (tmp_path / "a.json").write_text(json.dumps(manifest_of()))
    assert run(["diff", a, b]) == code
    said = capsys.readouterr()
    assert ("do:" in said.err, said.out) == (True, "")


@given(st.dictionaries(st.sampled_from("abcdef"), st.text(alphabet="12.", min_size=1, max_size=4)), st.data())
def test_exactly_what_differs_is_told(values, data):
    before = {("the run itself", name): text for name, text in values.items()}
    other = data.draw(st.dictionaries(st.sampled_from("abcdef"), st.text(alphabet="12.", min_size=1, max_size=4)))
    after = {("the run itself", name): text for name, text in other.items()}
    told = {fact.name for fact in compare_facts(before, after).facts}
    assert told == {name for name in values | other if values.get(name) != other.get(name)}


def test_every_value_of_a_manifest_is_a_fact():
    given_facts = changed(cpu__count=3, variables={"A": "1"})
    facts = facts_of_manifest(read_manifest(json.dumps(given_facts).encode(), "m"))
    assert {name.partition(".")[0] for _, name in facts} >= set(given_facts)


def test_what_a_capture_left_out_is_told(diff):
    gaps = changed(
        source={"format": "capture", "notes": ["tool could not be loaded"]}, installation__unreadable=["odd"]
    )
    code, _, said = diff(gaps, gaps)
    assert (code, "tool could not be loaded" in said, "left out: odd" in said) == (0, True, True)


def test_a_record_may_come_by_stdin(diff, tmp_path, monkeypatch):
    assert diff(manifest_of(), manifest_of())[0] == 0
    with (tmp_path / "a.json").open() as file:
        monkeypatch.setattr("sys.stdin", file)
        assert run(["diff", "manifest:-", "b.json"]) == 0
