"""Known vulnerabilities by a copy of OSV's database."""

import json
import os
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from envbuild.errors import UsageError
from envbuild.verify.vulnerable import Advisory, check_vulnerable

NUMPY = {("numpy", "1.26.4")}


def entry(name: str = "GHSA-1", **affected: Any) -> dict[str, Any]:
    about = {"package": {"ecosystem": "PyPI", "name": "numpy"}} | affected
    return {"id": name, "modified": "2026-11-20T08:00:00Z", "summary": "overflow", "affected": [about]}


def ranged(*events: dict[str, str], kind: str = "ECOSYSTEM") -> dict[str, Any]:
    return {"ranges": [{"type": kind, "events": list(events)}]}


ALWAYS = ranged({"introduced": "0"})


def database(folder: Path, *entries: dict[str, Any] | bytes) -> Path:
    path = folder / "all.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, one in enumerate(entries):
            name = f"{one['id']}.json" if isinstance(one, dict) else f"broken-{number}.json"
            archive.writestr(name, one if isinstance(one, bytes) else json.dumps(one))
    return path


@pytest.mark.parametrize(
    ("affected", "hit"),
    [
        ({"versions": ["1.26.4"]}, True),
        ({"versions": ["1.26.4.0"]}, True),
        ({"versions": ["1.26.3", "not a version"]}, False),
        (ALWAYS, True),
        (ranged({"introduced": "0"}, {"fixed": "1.26.4"}), False),
        (ranged({"introduced": "0"}, {"fixed": "1.26.5"}), True),
        (ranged({"introduced": "1.26.4"}, {"last_affected": "1.26.4"}), True),
        (ranged({"introduced": "0"}, {"last_affected": "1.26.3"}), False),
        (ranged({"fixed": "1.10"}, {"introduced": "1.20"}, {"introduced": "1.9"}), True),
        (ranged({"introduced": "1.9"}, {"fixed": "1.10"}, {"introduced": "1.27"}), False),
        (ranged({"introduced": "0"}, {"limit": "1.20"}), False),
        (ranged({"introduced": "0"}, {"limit": "*"}), True),
        (ranged({"introduced": "1.26.4rc1"}, {"fixed": "2"}), True),
        (ranged({"introduced": "0"}, kind="GIT"), False),
        ({"package": {"ecosystem": "npm", "name": "numpy"}} | ALWAYS, False),
        ({"package": {"ecosystem": "PyPI", "name": "NumPy"}} | ALWAYS, True),
    ],
)
def test_a_version_is_affected_as_the_schema_says(tmp_path, affected, hit):
    [finding] = check_vulnerable(NUMPY, database(tmp_path, entry(**affected)))
    assert (finding.agrees, finding.rule or finding.about) == (not hit, "vulnerable")


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=4), st.integers(0, 9))
def test_a_range_holds_what_lies_between_its_events(pairs, number):
    """Each pair is introduced and fixed; those that end before they begin hold nothing alone."""
    parts = [(min(pair), max(pair)) for pair in pairs]
    ranges = tuple((("introduced", str(low)), ("fixed", str(high))) for low, high in parts if low < high)
    one = Advisory(name="x", id="X", ids=frozenset({"X"}), summary="", versions=frozenset(), ranges=ranges)
    inside = any(Version(str(low)) <= Version(str(number)) < Version(str(high)) for low, high in parts)
    assert one.affects(str(number)) is inside


def test_a_finding_names_what_it_is_known_as_and_what_repairs_it(tmp_path):
    fixed = ranged({"introduced": "0"}, {"fixed": "1.27"})
    one = entry("PYSEC-2026-1", **fixed) | {"aliases": ["CVE-2026-1"]}
    other = entry("GHSA-aaaa", **ranged({"introduced": "1.0"}, {"fixed": "2.0"})) | {"aliases": ["CVE-2026-1"]}
    [finding] = check_vulnerable(NUMPY, database(tmp_path, one, other))
    assert (finding.about, finding.severity, finding.found, finding.wanted) == (
        "numpy",
        "warning",
        "1.26.4",
        "2.0",
    )
    assert finding.says == "1.26.4 has GHSA-aaaa (CVE-2026-1, PYSEC-2026-1): overflow"
    assert finding.packages == ("numpy 1.26.4",)
    assert "train again with numpy 2.0;" in finding.todo


@pytest.mark.parametrize(
    ("affected", "repairs"),
    [
        (ranged({"introduced": "0"}, {"fixed": "1.0"}, {"introduced": "1.20"}), ""),
        (ranged({"introduced": "0"}, {"fixed": "1.0"}, {"introduced": "1.20"}, {"fixed": "1.27"}), "1.27"),
        (ranged({"introduced": "1"}, {"fixed": "1.100"}, {"introduced": "2"}, {"fixed": "2.1"}), "1.100, 2.1"),
        (ranged({"introduced": "0"}, {"fixed": "1.27"}) | {"versions": ["1.27"]}, ""),
        (ranged({"introduced": "0"}, {"fixed": "1.27"}, {"introduced": "1.27"}, {"fixed": "1.28"}), "1.28"),
    ],
)
def test_only_later_versions_that_are_not_affected_repair_it(tmp_path, affected, repairs):
    [finding] = check_vulnerable(NUMPY, database(tmp_path, entry(**affected)))
    advice = f"with numpy {repairs.replace(', ', ' or ')};" if repairs else "without numpy 1.26.4;"
    assert (finding.wanted, finding.todo.startswith(f"train again {advice}")) == (repairs, True)


def test_what_was_withdrawn_is_left_out_and_what_is_malicious_is_an_error(tmp_path):
    gone = entry("GHSA-gone", **ALWAYS) | {"withdrawn": "2026-01-01T00:00:00Z"}
    [finding] = check_vulnerable(NUMPY, database(tmp_path, gone, entry("MAL-2026-1", **ALWAYS)))
    assert (finding.severity, "MAL-2026-1" in finding.says) == ("error", True)
    [nothing] = check_vulnerable(NUMPY, database(tmp_path, gone))
    assert nothing.says == "none of 1 distributions is among 1 entries, the newest of 2026-11-20"


def test_entries_that_cannot_be_read_are_said_and_the_rest_counts(tmp_path):
    strange = entry("GHSA-strange", **ranged({"introduced": "not a version"}))
    path = database(tmp_path, b"{", entry(**ALWAYS), b"[]", {"id": "x", "affected": [{"package": 3}]}, strange)
    found = check_vulnerable(NUMPY, path)
    assert [it.about for it in found] == ["numpy", "database"]
    assert found[1].says.startswith("4 of its 5 entries cannot be read: broken-0.json, broken-2.json, x.json")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_entry_whose_bytes_are_damaged_is_one_that_cannot_be_read(tmp_path, method):
    path = tmp_path / "all.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("GHSA-1.json", json.dumps(entry(**ALWAYS)))
        first = archive.getinfo("GHSA-1.json")
        archive.writestr("GHSA-2.json", json.dumps(entry("GHSA-2", **ALWAYS)))
    whole, start = path.read_bytes(), first.header_offset + 30 + len(first.filename)
    for at in range(start + 10, start + first.compress_size, 9):  # behind LZMA's header, of which not all matters
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        found = check_vulnerable(NUMPY, path)
        assert [it.about for it in found] == ["numpy", "database"]
        assert found[1].says == "1 of its 2 entries cannot be read: GHSA-1.json"


@settings(max_examples=50)
@given(st.integers(0, 4000), st.integers(0, 255))
def test_no_byte_of_an_archive_ends_in_anything_but_findings_or_a_refusal(tmp_path_factory, at, value):
    path = database(tmp_path_factory.mktemp("osv"), entry(**ALWAYS), entry("GHSA-2", **ALWAYS))
    whole = path.read_bytes()
    at %= len(whole)
    path.write_bytes(whole[:at] + bytes([value]) + whole[at + 1 :])
    with suppress(UsageError):
        assert check_vulnerable(NUMPY, path)


def test_a_folder_of_entries_is_a_database_too(tmp_path):
    (tmp_path / "GHSA-1.json").write_text(json.dumps(entry(**ALWAYS)))
    assert not check_vulnerable(NUMPY, tmp_path)[0].agrees


def test_what_is_no_file_or_too_large_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "large.json").write_text(json.dumps(entry(**ALWAYS)) + " " * (16 << 20))
    found = check_vulnerable(NUMPY, tmp_path)
    assert [it.about for it in found] == ["vulnerable", "database"]
    assert found[1].says == "3 of its 3 entries cannot be read: folder.json, large.json, pipe.json"
    with pytest.raises(UsageError, match="neither a file nor a folder"):
        check_vulnerable(NUMPY, tmp_path / "pipe.json")


@pytest.mark.parametrize("data", [b"no zip", None])
def test_what_is_no_database_is_refused(tmp_path, data):
    path = tmp_path / "all.zip"
    if data:
        path.write_bytes(data)
    with pytest.raises(UsageError, match="the database"):
        check_vulnerable(NUMPY, path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="has no entries"):
        check_vulnerable(NUMPY, tmp_path / "empty")
