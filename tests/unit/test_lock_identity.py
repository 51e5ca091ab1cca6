"""Whether locked wheels are what the run had, by what RECORD says of the files that came out of a wheel."""

import base64
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.capture.distributions import record_content
from envbuild.errors import LockError, VerifyError
from envbuild.lock.download import fetch, wheel_path
from envbuild.lock.formats import pylock_text, read_pylock
from envbuild.lock.run import lock_run, verify_files
from envbuild.lock.settings import uv_program
from envbuild.manifest.packages import Distribution, Origin
from envbuild.match.stack import PinChange
from envbuild.oci.digest import Digest
from envbuild.report import Reporter
from tests.fakes.index import FakeIndex, serving
from tests.fakes.wheels import FakeWheel, make_wheel, record_line
from tests.unit.locking import TARGET, asked_for, forget_settings, installed, options, pin, record_of

MANY = make_wheel(
    "many-kinds",
    "1.0",
    {"many/__init__.py": "", "many/a.py": "A = 1\n", 'many/it"s, odd.txt': "x"},
    scripts={"run-it": "#!python\nprint(1)\n"},
    data={"share/many/x": "x"},
    headers={"many.h": "int x;"},
    platlib={"many/native.so": b"\x7fELF"},
    entry_points={"console_scripts": {"many": "many:main"}},
)
PURE, OTHER = make_wheel("pure", "1.0"), make_wheel("other", "2.0")
BIG = make_wheel("big", "1.0", {"big.bin": bytes(range(256)) * 4096, "big.py": ""}, requires=["pure>=1"], method=0)


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch, tmp_path):
    forget_settings(monkeypatch, tmp_path)


@pytest.fixture
def index(monkeypatch):
    with serving(PURE, OTHER, BIG) as served:
        monkeypatch.setenv("UV_DEFAULT_INDEX", served.url)
        yield served


def proven(tmp_path, *distributions: Distribution, target=TARGET):
    pins = tuple(f"{it.name}=={it.version}" for it in distributions)
    return lock_run(pins, target, distributions, options(tmp_path))


def outcome(run, name: str) -> tuple[str, str]:
    [found] = [it for it in run.proof.identities if it.name == name]
    return found.outcome, found.why


@pytest.mark.usefixtures("index")
def test_the_lock_says_whose_a_file_of_two_distributions_was_and_calls_both_identical(tmp_path):
    overwritten = (("gone.py", "absent"), ("shared.py", "Other"))
    run = proven(tmp_path, installed(PURE, overwritten=overwritten), installed(OTHER))
    assert run.lock.owners == (("shared.py", "other"),)
    assert run.proof.summary == "2 of 2 identical"


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_what_an_installer_records_gives_what_the_wheel_says(tmp_path: Path, installer):
    (tmp_path / MANY.filename).write_bytes(MANY.data)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python = str(tmp_path / "venv/bin/python")
    commands = {
        "pip": [sys.executable, "-m", "pip", "-q", "--python", python, "install", "--no-deps", "--no-index"],
        "uv": [uv_program(), "pip", "install", "-q", "--python", python, "--no-deps", "--no-index"],
    }
    subprocess.run([*commands[installer], tmp_path / MANY.filename], check=True, cwd=tmp_path)
    [record] = (tmp_path / "venv").rglob("many_kinds-1.0.dist-info/RECORD")
    text = record.read_text()
    assert "../../../bin/many" in text
    assert text != record_of(MANY)
    assert record_content(text) == record_content(record_of(MANY)) is not None


def test_another_file_another_content_or_another_place_is_another_digest():
    base = record_line("a.py", b"1") + "\n" + record_line("b-1.dist-info/METADATA", b"m")
    changed = [
        base.replace("a.py", "c.py"),
        record_line("a.py", b"2") + "\n" + record_line("b-1.dist-info/METADATA", b"m"),
        base + "\n" + record_line("new.py", b""),
        record_line("a.py", b"1"),
    ]
    assert len({record_content(text) for text in (base, *changed)}) == 5


@pytest.mark.parametrize(
    "line",
    [
        "__pycache__/a.cpython-311.pyc,,",
        record_line("__pycache__/a.cpython-311.pyc", b"x"),
        record_line("b-1.dist-info/INSTALLER", b"pip"),
        record_line("b-1.dist-info/direct_url.json", b"{}"),
        "b-1.dist-info/REQUESTED,,",
        "b-1.dist-info/RECORD,,",
        record_line("../../../bin/b", b"#!/venv/bin/python"),
        record_line("b-1.data/scripts/b", b"#!python"),
        "",
    ],
)
def test_what_installers_add_changes_nothing(line):
    base = record_line("a.py", b"1")
    padded = base.replace(",1", "=,1")
    assert record_content(f"{line}\n{base}\n{padded}\n") == record_content(base)


@pytest.mark.parametrize("text", ["", "a.py,,\n", "../x,sha256=aa,1\n", "a.py"])
def test_a_record_of_nothing_has_no_digest(text):
    assert record_content(text) is None


def test_the_run_s_own_wheels_are_identical_and_the_lock_says_so(index: FakeIndex, tmp_path):
    run = proven(tmp_path, installed(PURE), installed(OTHER), installed(BIG))
    assert run.proof.summary == "3 of 3 identical"
    run.proof.require_identical()
    text = pylock_text(run.lock, run.proof)
    assert b'[tool.envbuild.identity]\n"big" = "identical"\n' in text
    assert read_pylock(text, "pylock.toml") == run.lock


def test_a_wheel_is_read_in_place(index: FakeIndex, tmp_path):
    proven(tmp_path, installed(BIG))
    asked = asked_for(index, BIG)
    assert None not in asked
    assert asked[0] == f"bytes=-{128 << 10}"
    assert proven(tmp_path, installed(BIG)).proof.summary == "1 of 1 identical"
    assert asked_for(index, BIG) == asked


def test_a_directory_and_a_record_longer_than_one_answer_are_read_too(index: FakeIndex, tmp_path):
    files = {f"long/{'n' * 90}{number:05}.txt": str(number) * 40 for number in range(2500)}
    long = make_wheel("long", "1.0", {"long/a.bin": bytes(range(256)) * 2048, **files}, method=0)
    index.add(long)
    assert proven(tmp_path, installed(long)).proof.summary == "1 of 1 identical"
    assert None not in asked_for(index, long)
    assert len(asked_for(index, long)) <= 4


def test_what_no_wheel_of_the_index_has_was_built_from_source(index: FakeIndex, tmp_path):
    index.add(FakeWheel(filename="pure-1.0.tar.gz", data=b"x"))
    built = make_wheel("pure", "1.0", {"pure.py": "VERSION = 'mine'\n"})
    run = proven(tmp_path, installed(built), installed(OTHER))
    assert run.proof.summary == "1 of 2 identical; pure was built from source"
    with pytest.raises(VerifyError, match="1 of 2 distributions are not proven") as caught:
        run.proof.require_identical()
    assert "pure 1.0: different build: it was built from source" in str(caught.value)
    assert b'"pure" = "different build"' in pylock_text(run.lock, run.proof)


@pytest.mark.parametrize(
    ("facts", "found", "why"),
    [
        (
            {"changed_files": 3, "modified": ("pure.py",), "missing": ("x.py", "y.py")},
            "locally modified",
            "was changed after installation: 3 files (pure.py, x.py, y.py)",
        ),
        ({"changed_files": 1}, "locally modified", "was changed after installation: 1 file"),
        ({"content_sha256": None}, "unknown", "has no hash in the run's record"),
        (
            {"content_sha256": "0" * 64, "origin": Origin(kind="conda", channel="forge", build="py311_0")},
            "different build",
            "was built by conda forge py311_0",
        ),
        ({"content_sha256": None, "origin": Origin(kind="index", hashes=(PURE.sha256,))}, "identical", ""),
        (
            {"content_sha256": None, "origin": Origin(kind="index", hashes=(PURE.sha256, "0" * 64))},
            "unknown",
            "is one of several files that the record allows",
        ),
        ({"origin": Origin(kind="unknown"), "content_sha256": "0" * 64}, "different build", "is another build"),
    ],
)
def test_each_way_to_differ_is_told_apart(index: FakeIndex, tmp_path, facts, found, why):
    assert outcome(proven(tmp_path, installed(PURE, **facts)), "pure") == (found, why)


def test_a_changed_build_says_both(index: FakeIndex, tmp_path):
    run = proven(tmp_path, installed(PURE, content_sha256="0" * 64, changed_files=1))
    assert outcome(run, "pure")[1].endswith("1 file, and was built from source")


NATIVE = {
    level: make_wheel("native", "1.0", {"n.so": f"{level}"}, tags=[f"cp311-cp311-manylinux_2_{level}_x86_64"])
    for level in (17, 28)
}


def test_the_run_s_own_wheel_is_taken_where_a_resolver_prefers_another(index: FakeIndex, tmp_path):
    index.add(*NATIVE.values())
    run = proven(tmp_path, installed(NATIVE[17]))
    [wheel] = run.lock.wheels
    assert (wheel.filename, wheel.sha256.hex) == (NATIVE[17].filename, NATIVE[17].sha256)
    assert wheel.size == len(NATIVE[17].data)
    assert run.proof.summary == "1 of 1 identical"
    assert f"{NATIVE[17].filename} is the run's own wheel; the resolver chose {NATIVE[28].filename}" in run.notes()


def test_the_run_s_own_wheel_is_named_where_it_does_not_fit(index: FakeIndex, tmp_path):
    index.add(*NATIVE.values())
    run = proven(tmp_path, installed(NATIVE[28]), target=replace(TARGET, glibc="2.17"))
    assert run.lock.wheels[0].filename == NATIVE[17].filename
    found, why = outcome(run, "native")
    assert found == "different build"
    assert why.startswith(f"was {NATIVE[28].filename}, which does not fit")


def test_the_file_that_the_record_allows_is_taken_or_the_lock_is_refused(index: FakeIndex, tmp_path):
    index.add(*NATIVE.values())
    allowed = {level: Origin(kind="index", hashes=(wheel.sha256,)) for level, wheel in NATIVE.items()}
    run = proven(tmp_path, installed(NATIVE[17], origin=allowed[17], content_sha256=None))
    assert run.lock.wheels[0].sha256.hex == NATIVE[17].sha256
    assert run.proof.summary == "1 of 1 identical"
    with pytest.raises(LockError, match=f"{NATIVE[17].filename} has sha256 "):
        proven(tmp_path, installed(NATIVE[28], origin=allowed[28]), target=replace(TARGET, glibc="2.17"))


def test_of_several_files_that_the_record_allows_one_is_taken(index: FakeIndex, tmp_path):
    between = make_wheel("native", "1.0", {"n.so": "24"}, tags=["cp311-cp311-manylinux_2_24_x86_64"])
    index.add(*NATIVE.values(), between)
    origin = Origin(kind="index", hashes=("0" * 64, NATIVE[17].sha256))
    run = proven(tmp_path, installed(NATIVE[17], origin=origin, content_sha256=None))
    assert run.lock.wheels[0].sha256.hex == NATIVE[17].sha256


def test_an_intruder_with_a_better_tag_does_not_take_the_run_s_place(index: FakeIndex, tmp_path):
    data = make_wheel("pure", "1.0", {"pure.py": "import evil\n"}).data
    index.add(FakeWheel(filename="pure-1.0-99-py3-none-any.whl", data=data))
    run = proven(tmp_path, installed(PURE))
    assert run.lock.wheels[0].sha256.hex == PURE.sha256


@pytest.mark.parametrize(
    ("changes", "says", "fails"),
    [
        ((), "1 of 3 identical, 1 left out: other, 1 added: big", "big 1.0: added: it is not in the run's record"),
        (
            (PinChange(name="other", before="other==2.0", after="big==1.0", reason="for the variant"),),
            "1 of 2 identical, 1 replaced: other by big 1.0",
            "other 2.0: replaced by big 1.0",
        ),
        (
            (PinChange(name="other", before="other==2.0", after=None, reason="for the variant"),),
            "1 of 3 identical, 1 left out: other, 1 added: big",
            "other 2.0: left out: for the variant",
        ),
    ],
)
def test_what_is_replaced_or_left_out_is_not_identical(index: FakeIndex, tmp_path, changes, says, fails):
    had = [installed(PURE), installed(OTHER)]
    run = lock_run((pin(PURE), pin(BIG)), TARGET, had, options(tmp_path, changes=changes))
    assert run.proof.summary == says
    with pytest.raises(VerifyError, match="distributions are not proven to be the run's") as caught:
        run.proof.require_identical()
    assert fails in caught.value.what
    assert f'"other" = "{outcome(run, "other")[0]}"'.encode() in pylock_text(run.lock, run.proof)


def test_what_no_record_names_is_not_identical(index: FakeIndex, tmp_path):
    """On 6aa7f22 this is `1 of 1 identical`, and --require-identical passes."""
    run = lock_run((pin(BIG),), TARGET, [installed(BIG)], options(tmp_path, extras=("other",)))
    assert run.proof.summary == "1 of 2 identical, 1 added: other"
    with pytest.raises(VerifyError, match="1 of 2 distributions are not proven"):
        run.proof.require_identical()


def test_another_version_of_a_distribution_replaces_it(index: FakeIndex, tmp_path):
    run = lock_run(
        (pin(PURE), pin(OTHER)), TARGET, [installed(PURE), installed(OTHER, version="1.9")], options(tmp_path)
    )
    assert run.proof.summary == "1 of 2 identical, 1 replaced: other by other 2.0"


def test_a_server_without_ranges_leaves_big_wheels_unknown(index: FakeIndex, tmp_path):
    index.ranges = False
    run = proven(tmp_path, installed(BIG), installed(PURE))
    assert (
        run.proof.summary == "1 of 2 identical; 1 cannot be compared: big has a RECORD that only a download could read"
    )
    assert outcome(run, "big") == ("unknown", "has a RECORD that only a download could read")
    assert run.lock.wheels[0].size == len(BIG.data)


def test_what_is_no_wheel_is_refused(index: FakeIndex, tmp_path):
    index.add(FakeWheel(filename="broken-1.0-py3-none-any.whl", data=b"no zip" * 100))
    with pytest.raises(LockError, match=r"broken-1\.0-py3-none-any\.whl cannot be read"):
        lock_run(("broken==1.0",), TARGET, (), options(tmp_path))


def test_a_file_that_is_not_what_ranges_showed_is_found_out(index: FakeIndex, tmp_path):
    evil = make_wheel("pure", "1.0", {"pure.py": "import evil\n"})
    index.pages["pure"] = []
    index.add(evil)
    index.files[evil.filename] = PURE.data  # what it shows to range requests
    run = proven(tmp_path, installed(PURE))
    assert run.proof.summary == "1 of 1 identical"
    index.files[evil.filename] = evil.data
    run = replace(run, lock=replace(run.lock, wheels=(replace(run.lock.wheels[0], size=len(evil.data)),)))
    list(fetch(run.lock.wheels, tmp_path / "cache"))
    with pytest.raises(LockError, match=r"showed other metadata than the files have: pure-1\.0"):
        verify_files(run, tmp_path / "cache")
    assert proven(tmp_path, installed(PURE)).proof.summary == "0 of 1 identical; pure was built from source"


def test_fetched_files_confirm_what_an_honest_index_showed(index: FakeIndex, tmp_path):
    run = proven(tmp_path, installed(PURE), installed(BIG))
    list(fetch(run.lock.wheels, tmp_path / "cache"))
    assert verify_files(run, tmp_path / "cache") == run
    count = len(index.requests)
    assert proven(tmp_path, installed(PURE), installed(BIG)).proof.summary == "2 of 2 identical"
    assert all(it.path.startswith("/simple/") for it in index.requests[count:])


@pytest.mark.parametrize("left", [b"", b"PK", PURE.data[:-30], PURE.data[: len(PURE.data) // 2] * 2])
def test_a_damaged_file_of_the_cache_is_forgotten_where_nothing_else_is_known_of_it(index: FakeIndex, tmp_path, left):
    run = proven(tmp_path, installed(PURE))
    list(fetch(run.lock.wheels, tmp_path / "cache"))
    path = wheel_path(tmp_path / "cache", run.lock.wheels[0].sha256)
    for kind in ("facts", "claims"):
        shutil.rmtree(tmp_path / "cache" / kind, ignore_errors=True)
    path.write_bytes(left)
    assert proven(tmp_path, installed(PURE)).proof.summary == "1 of 1 identical"
    assert not path.exists()
    list(fetch(run.lock.wheels, tmp_path / "cache"))
    assert path.read_bytes() == PURE.data


def test_a_wheel_that_is_broken_as_it_was_locked_stays_and_is_refused(index: FakeIndex, tmp_path):
    broken = FakeWheel(filename="broken-1.0-py3-none-any.whl", data=b"no zip" * 100)
    index.add(broken)
    path = wheel_path(tmp_path / "cache", Digest.of(broken.data))
    path.parent.mkdir(parents=True)
    path.write_bytes(broken.data)
    with pytest.raises(LockError, match="cannot be read as a wheel"):
        lock_run(("broken==1.0",), TARGET, (), options(tmp_path))
    assert path.read_bytes() == broken.data


def test_a_file_that_no_record_lists_is_no_proof(index: FakeIndex, tmp_path):
    repacked = make_wheel("other", "3.0", extra=[("evil.pth", b"import evil\n", 0o644)])
    index.add(repacked)
    run = proven(tmp_path, installed(repacked))
    assert outcome(run, "other") == ("unknown", "has files that its RECORD does not list")


def test_a_file_that_is_not_what_its_record_says_is_no_proof_once_it_is_here(index: FakeIndex, tmp_path):
    honest = make_wheel("other", "3.0")
    forged = make_wheel("other", "3.0", {"other.py": "import evil\n"}, record=record_of(honest))
    index.add(forged)
    run = proven(tmp_path, installed(honest))
    assert run.proof.summary == "1 of 1 identical"
    list(fetch(run.lock.wheels, tmp_path / "cache"))
    found = verify_files(run, tmp_path / "cache")
    assert outcome(found, "other") == ("unknown", "has files that are not what its RECORD says")
    with pytest.raises(VerifyError):
        found.proof.require_identical()
    assert proven(tmp_path, installed(honest)).proof == found.proof
    assert verify_files(run, tmp_path / "cache").proof == found.proof


def test_what_was_held_against_record_is_not_hashed_again_and_all_else_is(index: FakeIndex, tmp_path):
    honest = make_wheel("other", "3.0")
    forged = make_wheel("other", "3.0", {"other.py": "import evil\n"}, record=record_of(honest))
    index.add(forged)
    run = proven(tmp_path, installed(honest))
    list(fetch(run.lock.wheels, tmp_path / "cache"))
    believed = {run.lock.wheels[0].sha256: {"other.py"}}
    assert verify_files(run, tmp_path / "cache", believed).proof.summary == "1 of 1 identical"
    shutil.rmtree(tmp_path / "cache/truths")
    found = verify_files(run, tmp_path / "cache", {run.lock.wheels[0].sha256: {"other-3.0.dist-info/METADATA"}})
    assert outcome(found, "other")[0] == "unknown"


@pytest.mark.parametrize("algorithm", ["sha384", "sha512", "md5"])
def test_the_hashes_that_a_record_may_use(index: FakeIndex, tmp_path, algorithm):
    lines = []
    for line in record_of(make_wheel("other", "3.0")).splitlines():
        path, _, size = line.split(",")
        data = {"other.py": b"VERSION = '3.0'\n"}.get(path)
        value = base64.urlsafe_b64encode(hashlib.new(algorithm, data).digest()).decode() if data else ""
        lines.append(f"{path},{algorithm}={value},{size}" if data else line)
    wheel = make_wheel("other", "3.0", record="\n".join(lines))
    index.add(wheel)
    list(fetch(proven(tmp_path, installed(wheel)).lock.wheels, tmp_path / "cache"))
    found = "1 of 1 identical" if algorithm != "md5" else "0 of 1 identical; 1 cannot be compared: other has "
    assert proven(tmp_path, installed(wheel)).proof.summary.startswith(found)


def test_many_that_differ_are_not_all_named_in_the_summary(index: FakeIndex, tmp_path):
    wheels = [make_wheel(f"odd{number}", "1") for number in range(5)]
    index.add(*wheels)
    run = proven(tmp_path, *[installed(wheel, content_sha256="0" * 64) for wheel in wheels])
    assert run.proof.summary.startswith("0 of 5 identical; odd0 was built from source; odd1 was")
    assert run.proof.summary.endswith("; 2 more differ")


def test_progress_is_reported_by_count(index: FakeIndex, tmp_path, monkeypatch):
    notes: list[str] = []

    def note(_: Reporter, what: str) -> Callable[[int, int], None]:
        return lambda done, total: notes.append(f"{done} of {total} {what}")

    monkeypatch.setattr("envbuild.lock.facts.count", note)
    lock_run((pin(PURE), pin(OTHER)), TARGET, [installed(PURE), installed(OTHER)], options(tmp_path))
    assert notes[-2:] == ["1 of 2 wheels read", "2 of 2 wheels read"]
