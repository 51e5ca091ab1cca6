"""Reading manifests: what is accepted, and how each fault is told."""

import base64
import json
from dataclasses import replace
from functools import cache
from importlib import resources
from types import UnionType
from typing import Literal, Union, get_args, get_origin, get_type_hints

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envbuild.capture import capture
from envbuild.errors import ManifestError
from envbuild.manifest.fields import (
    Address,
    AnyText,
    Base64,
    Count,
    Line,
    Name,
    Numbers,
    Pairs,
    PythonVersion,
    SchemaVersion,
    Sha1,
    Sha256,
    Size,
    Timestamp,
    VariableName,
    VariantLabel,
    Version,
)
from envbuild.manifest.hardware import Cpu
from envbuild.manifest.model import TrainingManifest
from envbuild.manifest.reader import MAX_MANIFEST, manifest_dict, read_manifest
from tests import manifest_schema

SCHEMA = json.loads(resources.files("envbuild.manifest").joinpath("schema.json").read_text("utf-8"))
VALID = jsonschema.Draft202012Validator(SCHEMA)
EXAMPLE = SCHEMA["examples"][1]
STRATEGIES = {
    Line: st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=12),
    Address: st.sampled_from(["gs://bucket/folder/", "https://git.example.com/x.git", "/data/my model"]),
    Name: st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,8}[A-Za-z0-9])?", fullmatch=True),
    VariantLabel: st.from_regex(r"\A[0-9a-z_.]{1,16}\Z"),
    Version: st.sampled_from(["1.0", "2.15.0.post1", "1!3.2rc1", "2.1+cu121", "0.dev3"]),
    PythonVersion: st.from_regex(r"\A3\.[0-9]{1,2}\.[0-9]{1,2}\Z"),
    Numbers: st.sampled_from(["11.2", "12.5.1", "8"]),
    Timestamp: st.sampled_from(["2026-11-02T09:30:00Z", "2026-11-02T09:30:00.5+01:00"]),
    VariableName: st.from_regex(r"[A-Z_]{1,6}", fullmatch=True),
    AnyText: st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=9),
    Sha256: st.text("0123456789abcdef", min_size=64, max_size=64),
    Sha1: st.text("0123456789abcdef", min_size=40, max_size=40),
    Base64: st.binary(max_size=9).map(lambda data: base64.b64encode(data).decode()),
    SchemaVersion: st.sampled_from(["1.0", "1.1", "1.7"]),
    Count: st.integers(0, 2**62),
    Size: st.floats(0, 1e9),
    bool: st.booleans(),
}


def normal(name: str) -> str:
    text = name.lower().replace("_", "-").replace(".", "-")
    return "-".join(part for part in text.split("-") if part)


@cache
def strategy_of(hint):
    """Values of a type hint, as the manifest's dataclasses use them."""
    if hint in STRATEGIES:
        return STRATEGIES[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if hint == Pairs:
        made = st.dictionaries(STRATEGIES[VariableName], STRATEGIES[AnyText], max_size=3)
        return made.map(lambda values: tuple(sorted(values.items())))
    if origin in (Union, UnionType):
        return st.none() | strategy_of(arguments[0])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        return st.lists(strategy_of(arguments[0]), max_size=2).map(tuple)
    hints = get_type_hints(hint, include_extras=True)
    return st.builds(hint, **{name: strategy_of(it) for name, it in hints.items()})


def sound(manifest):
    """With every distribution once and in order."""
    found = {normal(it.name): it for it in manifest.distributions}
    return replace(manifest, distributions=tuple(found[name] for name in sorted(found)))


MANIFEST = strategy_of(TrainingManifest).map(sound)


def told(value):
    """Without what is the same as absent."""
    if isinstance(value, dict):
        return {key: it for key, item in value.items() if (it := told(item)) not in (None, False, [], {})}
    return [told(item) for item in value] if isinstance(value, list) else value


def bytes_of(**changes) -> bytes:
    return json.dumps(EXAMPLE | changes).encode()


def distribution(**changes) -> dict:
    return {"name": "x", "version": "1.0", "origin": {"kind": "index"}} | changes


def refused(data: bytes) -> ManifestError:
    with pytest.raises(ManifestError) as caught:
        read_manifest(data, "run.json")
    assert caught.value.exit_code == 10
    assert caught.value.where.startswith("run.json")
    assert caught.value.todo
    return caught.value


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(MANIFEST)
def test_what_is_written_is_read_back_equal_and_fits_the_schema(manifest):
    shape = manifest_dict(manifest)
    VALID.validate(shape)
    assert read_manifest(json.dumps(shape).encode(), "x") == manifest


def test_a_real_capture_fits_the_schema_and_is_read_and_written_back():
    captured = capture(variables=("PATH",))
    VALID.validate(captured)
    manifest = read_manifest(json.dumps(captured).encode(), "x")
    assert told(manifest_dict(manifest)) == told(captured)


@pytest.mark.parametrize("example", SCHEMA["examples"])
def test_the_examples_of_the_schema_are_valid(example):
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    VALID.validate(example)
    shape = manifest_dict(read_manifest(json.dumps(example).encode(), "x"))
    assert told(shape | {"distributions": []}) == told(example | {"distributions": []})


def test_schema_and_page_are_what_the_dataclasses_say():
    for path, text in manifest_schema.files().items():
        assert path.read_text("utf-8") == text, "run: python -m tests.pages --write"


def test_every_field_is_documented():
    for part in (SCHEMA, *SCHEMA["$defs"].values()):
        for name, field in part["properties"].items():
            assert field["description"].endswith((".", "`")), name


def test_null_is_absent_and_unknown_keys_of_a_newer_minor_version_are_ignored():
    manifest = read_manifest(
        bytes_of(schema_version="1.9", surprise={"a": 1}, framework=None, model_uri=None, cpu=None, variables=None), "x"
    )
    assert (manifest.framework, manifest.model_uri, manifest.cpu, manifest.variables) == (None, None, Cpu(), ())


def test_distributions_are_sorted_by_normalised_name():
    found = [distribution(name=name) for name in ("b_b", "B.a", "C", "a-z")]
    manifest = read_manifest(bytes_of(distributions=found), "x")
    assert [item.name for item in manifest.distributions] == ["a-z", "B.a", "b_b", "C"]


def test_a_byte_order_mark_is_no_fault():
    assert read_manifest(b"\xef\xbb\xbf" + bytes_of(), "x") == read_manifest(bytes_of(), "x")


NO_JSON = [
    b"",
    b" \n\t",
    b"\x80\x02}q",
    b'{"a": "\xff"}',
    b"PK",
    b'{"a": 1,\n "b" 2}',
    b'{"a": ' + b"9" * 5000 + b"}",
]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        *((text, "not JSON") for text in NO_JSON),
        *((text * 200_000, "nested too deeply") for text in (b"[", b'{"a":')),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' stands twice"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b'{"a": -Infinity}', "-Infinity is not a JSON number"),
        *((text, "not a JSON object") for text in (b"[]", b"null", b"1.5")),
        *((text, "not a training manifest") for text in (b"{}", b'{"schema_version": 1}', b'{"schema_version": "1"}')),
        (b'{"schema_version": "2.0"}', "has schema 2.0, and this envbuild reads 1.1"),
    ],
)
def test_what_is_no_manifest_is_told_in_one_sentence(data, says):
    assert says in refused(data).what


def test_a_manifest_that_is_cut_off_is_called_so():
    data = json.dumps(EXAMPLE, indent=1).encode()
    for length in range(1, len(data), 7):
        assert "cut off" in refused(data[:length]).what or data[:length].rstrip()[-1:].isalnum()


def test_a_manifest_that_is_too_large_is_refused_before_it_is_parsed():
    assert "larger than 64 MiB" in refused(b" " * (MAX_MANIFEST + 1)).what


LONG = "1" * 5000
FAULTS = [
    ({"python": None}, "python"),
    ({"python": []}, "python"),
    ({"python": {"version": "3.11.7", "implementation": ""} | {"soabi": 3}}, "python.soabi"),
    ({"distributions": {}}, "distributions"),
    ({"distributions": None}, "distributions"),
    ({"distributions": [distribution(), "x"]}, "distributions[1]"),
    ({"distributions": [{"version": "1", "origin": {"kind": "index"}}]}, "distributions[0].name"),
    ({"distributions": [distribution(version=1.5)]}, "distributions[0].version"),
    ({"distributions": [distribution(version="new")]}, "distributions[0].version"),
    ({"distributions": [distribution(version="1.0\n")]}, "distributions[0].version"),
    ({"distributions": [distribution(version="1.0 ")]}, "distributions[0].version"),
    ({"distributions": [distribution(version="1.0po\u017ft1")]}, "distributions[0].version"),
    ({"distributions": [distribution(version=LONG)]}, "distributions[0].version"),
    ({"distributions": [distribution(name="")]}, "distributions[0].name"),
    ({"distributions": [distribution(name="a b")]}, "distributions[0].name"),
    ({"distributions": [distribution(name="a\nRUN x")]}, "distributions[0].name"),
    ({"distributions": [distribution(name="\u212aeras")]}, "distributions[0].name"),
    ({"distributions": [distribution(name="../x")]}, "distributions[0].name"),
    ({"distributions": [distribution(requested="yes")]}, "distributions[0].requested"),
    ({"distributions": [distribution(record_sha256="AB")]}, "distributions[0].record_sha256"),
    ({"distributions": [distribution(installer="pip\x1b[2J")]}, "distributions[0].installer"),
    ({"distributions": [distribution(origin={"kind": "ftp"})]}, "distributions[0].origin.kind"),
    ({"distributions": [distribution(origin="index")]}, "distributions[0].origin"),
    ({"distributions": [distribution(), distribution(name="X")]}, "distributions[1].name"),
    ({"accelerator": {"gpus": [{"name": "A", "memory": True}]}}, "accelerator.gpus[0].memory"),
    ({"accelerator": {"gpus": [{"name": "A", "memory": -1}]}}, "accelerator.gpus[0].memory"),
    ({"accelerator": {"gpus": [{"name": "A", "memory": 1.5}]}}, "accelerator.gpus[0].memory"),
    ({"cpu": {"flags": ["avx", 2]}}, "cpu.flags[1]"),
    ({"framework": EXAMPLE["framework"] | {"cuda": "64_112"}}, "framework.cuda"),
    ({"variables": {"A": 1}}, "variables.A"),
    ({"variables": {"A": "\0"}}, "variables.A"),
    ({"variables": {"A": "\ud800"}}, "variables.A"),
    ({"variables": {"A\nB": "1"}}, "variables"),
    ({"variables": {"": "1"}}, "variables"),
    ({"variables": {"A=B": "1"}}, "variables"),
    ({"variables": []}, "variables"),
    ({"code": {"commit": "abc", "dirty": 0}}, "code.dirty"),
    ({"created": "yesterday"}, "created"),
    ({"created": "2026-11-02T09:30:00"}, "created"),
    ({"model_uri": "gs://a\nb"}, "model_uri"),
]


@pytest.mark.parametrize(("changes", "path"), FAULTS)
def test_a_fault_names_its_place(changes, path):
    error = refused(bytes_of(**changes))
    assert error.where == f"run.json: {path}"
    assert error.what.startswith(path)
    assert error.what.isprintable()


def test_each_of_three_faults_is_named_with_its_path():
    python = EXAMPLE["python"] | {"version": "3.11"}
    error = refused(bytes_of(python=python, cpu={"count": -1}, variables={"A": 1}))
    assert [it.split()[0] for it in error.what.splitlines()[1:]] == ["python.version", "cpu.count", "variables.A"]


def test_all_faults_are_told_at_once_up_to_twenty():
    error = refused(
        bytes_of(created=3, distributions=[distribution(name=f"x{index}", version="?") for index in range(30)])
    )
    lines = error.what.splitlines()
    assert lines[0] == "31 faults:"
    assert lines[1].startswith("  created ")
    assert lines[-1] == "  and 11 more"
    assert len(lines) == 22


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([key for key in EXAMPLE if key != "schema_version"]), JSON)
def test_no_value_anywhere_gives_anything_but_a_manifest_or_its_error(key, value):
    try:
        manifest = read_manifest(bytes_of(**{key: value}), "x")
    except ManifestError:
        return
    VALID.validate(manifest_dict(manifest))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_no_bytes_give_anything_but_a_manifest_error(data):
    refused(data)
