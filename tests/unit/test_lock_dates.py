"""What is added to an incomplete record obeys the record's pins, and is of the record's time."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from envbuild.errors import LockError
from envbuild.lock.formats import read_pylock
from envbuild.lock.model import Lock
from envbuild.lock.resolvers import PipToolsResolver, Resolver, UvResolver
from envbuild.lock.run import Options, lock_run
from envbuild.lock.settings import read_settings
from envbuild.match.stack import Gaps
from tests.fakes.index import FakeIndex, serving
from tests.fakes.wheels import FakeWheel, make_wheel
from tests.running import run_envbuild
from tests.unit.locking import HERE, forget_settings

BOTH = pytest.mark.parametrize("resolver", [UvResolver(), PipToolsResolver()], ids=["uv", "pip-tools"])
OLD, NEW, NOW = "2021-03-01T00:00:00Z", "2023-03-01T00:00:00Z", "2026-03-01T00:00:00Z"
UPLOADS: list[tuple[str, FakeWheel]] = [
    (OLD, make_wheel("flow", "2.12", requires=["num<1.24", "jaxx>=0.3", "scipyy", "once"])),
    (OLD, make_wheel("num", "1.23")),
    (OLD, make_wheel("num", "1.24")),
    (NEW, make_wheel("num", "2.0")),
    (OLD, make_wheel("jaxx", "0.4", requires=["num"])),
    (NEW, make_wheel("jaxx", "0.5", requires=["num<2"])),
    (NOW, make_wheel("jaxx", "0.10", requires=["num>=2"])),
    (OLD, make_wheel("scipyy", "1.10")),
    (NEW, make_wheel("scipyy", "1.11")),
    (NOW, make_wheel("scipyy", "1.17", requires=["num>=1.26"])),
    (OLD, make_wheel("once", "1.0")),
    (OLD, make_wheel("late", "1.0", requires=["sourced"])),
    (NEW, make_wheel("sourced", "1.5")),
    (NOW, make_wheel("sourced", "2.0")),
    (OLD, make_wheel("through", "1.0", requires=["jaxx==0.10"])),
]


@pytest.fixture
def index(monkeypatch, tmp_path: Path):
    forget_settings(monkeypatch, tmp_path)
    monkeypatch.setenv("PIP_TOOLS_CACHE_DIR", str(tmp_path / "pip-tools"))
    with serving() as served:
        for moment, wheel in UPLOADS:
            served.add(wheel, uploaded=moment)
        monkeypatch.setenv("UV_DEFAULT_INDEX", served.url)
        yield served


def versions(locked: Lock) -> dict[str, str]:
    return {wheel.name: wheel.version for wheel in locked.wheels}


@BOTH
def test_what_is_added_fits_the_record_s_pins(index: FakeIndex, resolver: Resolver):
    found = resolver.resolve(("flow==2.12", "num==1.23"), HERE, Gaps())
    assert versions(found) == {"flow": "2.12", "num": "1.23", "jaxx": "0.5", "scipyy": "1.11", "once": "1.0"}
    assert found.date_warnings == ()


def test_a_contradiction_of_two_pins_frees_nothing_else(index: FakeIndex):
    found = UvResolver().resolve(("flow==2.12", "num==1.24"), HERE, Gaps())
    assert versions(found) == {"flow": "2.12", "num": "1.24", "jaxx": "0.5", "scipyy": "1.11", "once": "1.0"}
    with pytest.raises(LockError, match="flow") as refused:
        PipToolsResolver().resolve(("flow==2.12", "num==1.24"), HERE, Gaps())
    assert refused.value.todo.startswith("use --resolver uv")


def test_each_contradiction_is_named(index: FakeIndex, tmp_path: Path):
    options = Options(cache=tmp_path / "cache", settings=read_settings())
    run = lock_run(("flow==2.12", "num==1.24"), HERE, (), options, Gaps())
    assert [str(it) for it in run.conflicts] == ["flow 2.12 requires num<1.24; num 1.24 is there"]


def test_a_version_that_conda_had_counts_as_a_pin(index: FakeIndex):
    found = UvResolver().resolve(("flow==2.12",), HERE, Gaps(versions=("num==1.24",)))
    assert versions(found) == {"flow": "2.12", "num": "1.24", "jaxx": "0.5", "scipyy": "1.11", "once": "1.0"}


def test_what_an_extra_requires_may_be_contradicted_too(index: FakeIndex):
    index.add(make_wheel("plus", "1.0", requires=["num>=2; extra == 'gpu'", "once; extra == 'gpu'"]), uploaded=OLD)
    found = UvResolver().resolve(("plus[gpu]==1.0", "num==1.23"), HERE, Gaps())
    assert versions(found) == {"plus": "1.0", "num": "1.23", "once": "1.0"}


def test_a_contradiction_through_what_is_added_is_refused(index: FakeIndex):
    with pytest.raises(LockError, match=r"jaxx>=0.10 depends on num>=2(?s:.*)through==1.0 and num==1.23"):
        UvResolver().resolve(("through==1.0", "num==1.23"), HERE, Gaps())


def test_contradictions_are_found_in_folders_alone(index: FakeIndex, tmp_path: Path):
    for name, data in index.files.items():
        (tmp_path / name).write_bytes(data)
    resolver = UvResolver(settings=read_settings([tmp_path], offline=True))
    found = resolver.resolve(("flow==2.12", "num==1.24"), HERE, Gaps())
    assert versions(found)["scipyy"] == "1.11"


@BOTH
def test_a_date_decides_what_is_added_and_no_pin(index: FakeIndex, resolver: Resolver):
    gaps = Gaps(before="2022-01-01T00:00:00Z")
    found = resolver.resolve(("flow==2.12", "num==1.23"), HERE, gaps)
    assert versions(found) == {"flow": "2.12", "num": "1.23", "jaxx": "0.4", "scipyy": "1.10", "once": "1.0"}
    assert found.date_warnings == ()


def test_a_pin_may_be_younger_than_the_date(index: FakeIndex):
    found = UvResolver().resolve(("jaxx==0.5",), HERE, Gaps(before="2022-01-01T00:00:00Z"))
    assert versions(found) == {"jaxx": "0.5", "num": "1.24"}


def test_contradictions_are_overridden_as_of_the_date(index: FakeIndex):
    found = UvResolver().resolve(("flow==2.12", "num==1.24"), HERE, Gaps(before="2022-01-01T00:00:00Z"))
    assert versions(found) == {"flow": "2.12", "num": "1.24", "jaxx": "0.4", "scipyy": "1.10", "once": "1.0"}
    assert found.date_warnings == ()


@BOTH
def test_the_next_date_that_has_wheels_is_taken_and_said(index: FakeIndex, resolver: Resolver):
    found = resolver.resolve(("late==1.0",), HERE, Gaps(before="2022-12-01T00:00:00Z"))
    assert versions(found) == {"late": "1.0", "sourced": "1.5"}
    [remark] = found.date_warnings
    assert "before 2022-12-01T00:00:00Z" in remark
    assert "before 2023-03-31T00:00:00Z" in remark


def test_what_has_no_wheel_at_all_is_to_be_named_and_built(index: FakeIndex):
    source = FakeWheel(filename="sourceonly-1.0.tar.gz", data=b"")
    index.add(make_wheel("needs", "1.0", requires=["sourceonly"]), source, uploaded=OLD)
    with pytest.raises(LockError) as caught:
        UvResolver().resolve(("needs==1.0",), HERE, Gaps())
    assert "name the version of sourceonly in the record and add --build" in (caught.value.todo or "")


@BOTH
def test_an_index_that_knows_no_dates_is_named(index: FakeIndex, resolver: Resolver):
    index.dated.clear()
    found = resolver.resolve(("flow==2.12", "num==1.23"), HERE, Gaps(before="2022-01-01T00:00:00Z"))
    assert versions(found)["scipyy"] == "1.11"
    [remark] = found.date_warnings
    assert "does not say when files were uploaded" in remark


class Model:
    """A model folder of MLflow that names TensorFlow alone, and the program run on it."""

    def __init__(self, folder: Path, index: FakeIndex) -> None:
        tags = ["cp311-cp311-manylinux_2_17_x86_64"]
        index.add(make_wheel("tensorflow-cpu", "2.15.1", tags=tags, requires=["scipyy"]), uploaded=NEW)
        self.folder = folder / "model"
        self.folder.mkdir()
        self.write("MLmodel", "mlflow_version: 2.9.1\nutc_time_created: '2024-02-01 10:00:00.5'\n")
        self.write("python_env.yaml", "python: 3.11.7\n")
        self.write("requirements.txt", "tensorflow-cpu==2.15.1\n")

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def run(self, command: str, *options: str) -> subprocess.CompletedProcess[str]:
        cache = {"ENVBUILD_CACHE": str(self.folder.parent / "cache")}
        words = ("--gpu", "none", *options)
        return run_envbuild(command, self.folder, *words, cwd=self.folder.parent, env=os.environ | cache)

    def plan(self, *options: str) -> dict[str, str]:
        done = self.run("from-manifest", "--dry-run", "--json", *options)
        assert done.returncode == 0, done.stderr
        decisions = json.loads(done.stdout)["stack"]["decisions"]
        [found] = [it for it in decisions if it["what"] == "as of"]
        return found

    def added(self, *options: str) -> str:
        done = self.run("lock", "--out", "lock", *options)
        assert done.returncode == 0, done.stderr
        text = (self.folder.parent / "lock" / "requirements.txt").read_text()
        return next(line.split()[0] for line in text.splitlines() if line.startswith("scipyy"))


@pytest.fixture
def model(index: FakeIndex, tmp_path: Path) -> Model:
    return Model(tmp_path, index)


def test_the_record_s_own_date_counts_unless_another_is_asked_for(model: Model):
    own = model.plan()
    assert (own["value"], own["source"]) == ("2024-02-01T10:00:00Z", "manifest: created")
    asked = model.plan("--exclude-newer", "2022-01-31")
    assert (asked["value"], asked["source"]) == ("2022-01-31T23:59:59Z", "--exclude-newer")
    assert model.plan("--exclude-newer", "2022-01-31T12:00:00+02:00")["value"] == "2022-01-31T10:00:00Z"
    assert model.plan("--exclude-newer", "none")["value"] == "now"
    model.write("MLmodel", "mlflow_version: 2.9.1\n")
    assert "the record has no date" in model.plan()["reason"]


def test_a_lock_is_completed_as_of_the_record_s_date(model: Model):
    assert model.added() == "scipyy==1.11"
    assert model.added("--exclude-newer", "2022-01-31") == "scipyy==1.10"
    assert model.added("--exclude-newer", "none") == "scipyy==1.17"


def test_a_date_that_has_to_be_moved_is_a_warning_and_is_shown_as_it_was_given(model: Model):
    model.write("requirements.txt", "tensorflow-cpu==2.15.1\nlate==1.0\n")
    done = model.run("lock", "--out", "lock", "--exclude-newer", "2022-12-01", "--json")
    [warning] = [line for line in done.stderr.splitlines() if "fit together" in line]
    assert warning.startswith("warning: no wheels uploaded before 2022-12-01T23:59:59Z fit together")
    assert json.loads(done.stdout)["warnings"][0] == warning.removeprefix("warning: ")


@pytest.mark.parametrize(
    ("options", "kept"),
    [((), "2024-02-01T10:00:00Z"), (("--exclude-newer", "2022-01-31"), "2022-01-31T23:59:59Z"),
     (("--exclude-newer", "none"), "none")],
)  # fmt: skip
def test_the_lock_keeps_as_of_when_it_was_completed(model: Model, options, kept):
    model.added(*options)
    data = (model.folder.parent / "lock" / "pylock.toml").read_bytes()
    assert read_pylock(data, "pylock.toml").as_of == kept


def test_what_is_no_date_is_refused(model: Model):
    for command, text in (("lock", "yesterday"), ("from-manifest", "2023-02-29")):
        done = model.run(command, "--exclude-newer", text)
        assert done.returncode == 2
        assert f"--exclude-newer {text}" in done.stderr
