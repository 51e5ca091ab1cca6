"""A virtual environment from a lock: exactly its files, whole or not at all, and in no folder of somebody else."""

import dataclasses
import fcntl
import platform
import subprocess
import threading
from pathlib import Path

import pytest

from envbuild.errors import BuildError, LockError, MissingComponentError, UsageError
from envbuild.local.model import Choice, Machine, Subject
from envbuild.local.venv import BY_HAND, MARKER, check_fits, held_venv, lost, state
from envbuild.lock.model import Lock, LockedWheel, SystemPackage, Target
from envbuild.oci.digest import Digest
from envbuild.stamp.record import StampedImage
from envbuild.verify.sources import Side
from tests.fakes.wheels import FakeWheel, make_wheel
from tests.making import make_venv

PYTHON = platform.python_version()
HERE = Target(python=PYTHON, machine=platform.machine(), glibc="2.17")
TOOL = make_wheel(
    "tool", "1.0", {"tool.py": "def main(): print('tool 1')\n"}, entry_points={"console_scripts": {"tool": "tool:main"}}
)
NEWER = make_wheel("tool", "2.0", {"tool.py": "def main(): print('tool 2')\n"})
OTHER = make_wheel("other", "1.0", data={"share/other/notes.txt": "data"})
DIGEST = Digest("0" * 64)


class Told:
    """Keeps what is told; `heard` is set when something is."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.heard = threading.Event()

    def step(self, text: str) -> None:
        self.lines.append(text)

    def note(self, text: str) -> None:
        self.lines.append(text)
        self.heard.set()

    def warn(self, text: str) -> None:
        self.lines.append(f"warning: {text}")

    def progress(self, label: str, done: int, total: int | None) -> None:
        pass

    @property
    def warnings(self) -> list[str]:
        return [it for it in self.lines if it.startswith("warning: ")]


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    """No Python but this one, and no network to ask for another."""
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS", "never")
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path / "pythons"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))


@pytest.fixture
def make(tmp_path):
    """Make an environment of wheels that lie in a folder, below one with a space and an umlaut in its name."""
    folder = tmp_path / "a b ü" / "env"

    def run(*wheels: FakeWheel, python: str = PYTHON, told: Told | None = None, place: Path = folder) -> Path:
        return make_venv(place, locked(tmp_path / "wheels", *wheels), python, told or Told(), cache=tmp_path / "cache")

    return run


def locked(shelf: Path, *wheels: FakeWheel) -> Lock:
    shelf.mkdir(exist_ok=True)
    for wheel in wheels:
        (shelf / wheel.filename).write_bytes(wheel.data)
    return Lock(target=HERE, wheels=tuple(locked_wheel(it, (shelf / it.filename).as_uri()) for it in wheels))


def locked_wheel(wheel: FakeWheel, url: str) -> LockedWheel:
    name, version = wheel.filename.split("-")[:2]
    sha256 = Digest(wheel.sha256)
    return LockedWheel(
        name=name, version=version, filename=wheel.filename, sha256=sha256, size=len(wheel.data), url=url
    )


def packages(python: Path) -> set[str]:
    return {path.name for path in python.parents[1].glob("lib/*/site-packages/*.dist-info")}


def said_by(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_exactly_the_locked_wheels_in_a_folder_with_any_name_and_kept_as_they_are(make, tmp_path, monkeypatch):
    told = Told()
    monkeypatch.setenv("UV_VENV_SEED", "1")
    monkeypatch.setenv("UV_LINK_MODE", "symlink")
    python = make(TOOL, OTHER, told=told)
    folder = python.parents[1]
    assert packages(python) == {"tool-1.0.dist-info", "other-1.0.dist-info"}
    assert said_by(folder / "bin/tool") == "tool 1"
    assert said_by(python, "-c", "import sys; print(sys.prefix)") == str(folder)
    assert not list(folder.glob("lib/*/site-packages/*.dist-info/direct_url.json"))
    assert {it.name for it in folder.iterdir()} >= {MARKER, "bin", "lib", "share"}
    assert not list(folder.glob(".envbuild-new*")) + list((tmp_path / "cache/bases").iterdir())
    assert told.warnings == []
    marker = (folder / MARKER).stat()
    (tmp_path / "wheels" / TOOL.filename).unlink()
    lock = Lock(target=HERE, wheels=(locked_wheel(TOOL, "file:///gone"), locked_wheel(OTHER, "file:///gone")))
    assert make_venv(folder, lock, PYTHON, told, cache=tmp_path / "none") == python
    assert (folder / MARKER).stat() == marker
    assert "was made from the same lock" in told.lines[-1]


def test_another_lock_brings_it_up_to_date_and_a_wheel_that_is_not_there_leaves_it_as_it_was(make, tmp_path):
    python = make(TOOL, OTHER)
    damaged = locked_wheel(NEWER, (tmp_path / "wheels" / TOOL.filename).as_uri())
    with pytest.raises(LockError, match=r"hash of tool-2.0.* does not match|longer than"):
        make_venv(python.parents[1], Lock(target=HERE, wheels=(damaged,)), PYTHON, Told(), cache=tmp_path / "cache")
    assert said_by(python.parent / "tool") == "tool 1"
    make(NEWER)
    assert packages(python) == {"tool-2.0.dist-info"}
    assert not (python.parents[1] / "share").exists()


def test_what_was_run_by_hand_in_it_does_not_refuse_another_lock_and_goes_with_it(make):
    folder = make(TOOL).parents[1]
    before = state(folder)
    (folder / BY_HAND / "key").mkdir(parents=True)
    assert make(TOOL).parents[1] == folder
    assert state(folder) == before
    make(NEWER)
    assert not (folder / BY_HAND).exists()
    assert "tool 1.0" in before
    assert "tool 2.0" in state(folder)


def test_what_was_installed_into_it_since_is_said(make):
    python = make(TOOL)
    [site] = python.parents[1].glob("lib/*/site-packages")
    (site / "tool-1.0.dist-info/METADATA").write_text("Name: tool\nVersion: 1.1\n")
    (site / "more-3.dist-info").mkdir()
    (site / "more-3.dist-info/METADATA").write_text("Name: more\nVersion: 3\n")
    told = Told()
    make(TOOL, told=told)
    assert "more 3 added, tool 1.0 -> 1.1" in told.warnings[0]


@pytest.mark.parametrize("name", ["notes.txt", "pyvenv.cfg"])
def test_a_folder_with_files_of_somebody_else_is_refused_and_left_alone(make, tmp_path, name):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / name).write_text("mine")
    with pytest.raises(UsageError, match=f"did not put there: {name}"):
        make(TOOL, place=tmp_path / "mine")
    assert [it.name for it in (tmp_path / "mine").iterdir()] == [name]
    with pytest.raises(UsageError, match="cannot be a folder"):
        make(TOOL, place=tmp_path / "mine" / name)


def test_a_file_that_somebody_put_into_ours_is_not_removed(make):
    folder = make(TOOL).parents[1]
    (folder / "notes.txt").write_text("mine")
    make(TOOL)
    with pytest.raises(UsageError, match=r"notes\.txt"):
        make(NEWER)
    assert said_by(folder / "bin/tool") == "tool 1"


def test_what_a_killed_run_left_is_made_anew(make, tmp_path):
    folder = tmp_path / "half"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python").write_text("half")
    (folder / ".envbuild-new").mkdir()
    (folder / MARKER).write_text("{}")
    assert said_by(make(TOOL, place=folder).parent / "tool") == "tool 1"
    assert not (folder / ".envbuild-new").exists()


def test_after_an_error_nothing_is_left_that_looks_like_an_environment(make, tmp_path):
    broken = FakeWheel(filename=TOOL.filename, data=b"no zip")
    with pytest.raises(BuildError, match="uv could not make the environment"):
        make(broken, place=tmp_path / "env")
    assert {it.name for it in (tmp_path / "env").iterdir()} == {".envbuild.lock"}
    assert make(TOOL, place=tmp_path / "env").exists()


def test_one_run_at_a_time_changes_a_folder(make, tmp_path):
    folder, told = tmp_path / "env", Told()
    folder.mkdir()
    with (folder / ".envbuild.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        thread = threading.Thread(target=make, args=(TOOL,), kwargs={"place": folder, "told": told})
        thread.start()
        assert told.heard.wait(10)
        assert "waiting for another run" in told.lines[-1]
        assert not (folder / "bin").exists()
    thread.join(60)
    assert (folder / "bin/python").exists()


def test_who_uses_an_environment_keeps_it_and_the_next_one_has_its_own(make, tmp_path):
    folder, told, found = make(TOOL).parents[1], Told(), []
    newer = locked(tmp_path / "wheels", NEWER)

    def other() -> None:
        with held_venv(folder, newer, PYTHON, told, cache=tmp_path / "cache") as python:
            found.append(said_by(python, "-c", "import tool; tool.main()"))

    thread = threading.Thread(target=other)
    with held_venv(folder, locked(tmp_path / "wheels", TOOL), PYTHON, Told(), cache=tmp_path / "none") as python:
        thread.start()
        assert told.heard.wait(10)
        assert said_by(python.parent / "tool") == "tool 1"
        assert found == []
    thread.join(60)
    assert found == ["tool 2"]


@pytest.mark.parametrize(("place", "says"), [("a:b", "PATH cannot hold it"), ("", "current folder")])
def test_a_folder_whose_programs_are_not_found_is_refused_before_anything_is_made(make, tmp_path, place, says):
    with pytest.raises(UsageError, match=says):
        make(TOOL, place=tmp_path / place if place else Path())
    assert [it.name for it in tmp_path.iterdir()] == ["wheels"]


def test_how_much_was_fetched_is_said_at_the_end(make):
    told = Told()
    make(TOOL, OTHER, told=told)
    assert any(it.startswith("2 wheels of ") and it.endswith("are here, as locked") for it in told.lines)


def test_another_patch_of_python_is_taken_with_a_warning(make):
    told = Told()
    wanted = f"{HERE.python_minor}.99"
    assert make(TOOL, python=wanted, told=told).exists()
    assert f"its Python is {PYTHON}: {wanted} is neither on this machine" in told.warnings[0]
    again = Told()
    make(TOOL, python=wanted, told=again)
    assert again.warnings == told.warnings


def test_without_a_python_of_that_minor_version_it_is_said_how_to_get_one(make, tmp_path):
    with pytest.raises(MissingComponentError) as caught:
        make(TOOL, python="3.99.1", place=tmp_path / "env")
    assert "there is no Python 3.99 here: UV_PYTHON_DOWNLOADS forbids a download" in caught.value.what
    assert "uv python install 3.99.1" in caught.value.todo
    assert not (tmp_path / "env" / MARKER).exists()


LINUX = {"system": "Linux", "machine": "x86_64", "libc": "glibc", "libc_version": "2.36"}
NEW = locked_wheel(make_wheel("new", "1", tags=["cp311-cp311-manylinux_2_34_x86_64"]), "https://index.invalid/new")
LOCK = Lock(target=Target(python="3.11.2", machine="x86_64", glibc="2.36"), wheels=(NEW,))


@pytest.mark.parametrize(
    ("facts", "says", "todo"),
    [
        (
            {"system": "Darwin", "libc": None},
            "the lock is for Linux with glibc, and this is Darwin",
            "container engine",
        ),
        ({"libc": "musl"}, "this is musl", "container engine"),
        ({"machine": "aarch64"}, "this machine is aarch64", "--platform linux/arm64"),
        ({"libc_version": "2.31"}, "do not run on glibc 2.31: new-1-", "--glibc 2.31"),
    ],
)
def test_a_lock_of_another_machine_is_refused(facts, says, todo):
    check_fits(LOCK, LINUX)
    with pytest.raises(UsageError, match=says) as caught:
        check_fits(LOCK, LINUX | facts)
    assert todo in caught.value.todo


def test_what_is_lost_is_said_beforehand():
    package = SystemPackage(
        name="libgl1", version="1.6.0-1", architecture="amd64", filename="pool/l.deb", sha256=DIGEST, size=1
    )
    image = StampedImage(
        role="train", variant="gpu", platform="linux/amd64", reference=None, digest=DIGEST, environment=DIGEST,
        manifest_sha256=DIGEST, lock_sha256=DIGEST,
    )  # fmt: skip
    lock = dataclasses.replace(LOCK, packages=(package,), target=dataclasses.replace(LOCK.target, glibc="2.99"))
    side = Side(name="m", kind="model", machine="riscv64")
    subject = Subject(name="m", side=side, images=(image,), locks={image.slot: lock})
    choice = Choice(variant="gpu", platform="linux/amd64", gpus=False, expected=image)
    told = "\n".join(lost(subject, choice, Machine(machine="x86_64", system="Linux")))
    for words in (
        "Python is 3.11.2 only if", "instead of 2.99", "not installed: libgl1 1.6.0-1", "machine was riscv64",
        "CUDA's libraries lie in the image's base", "no GPU", "run as you",
    ):  # fmt: skip
        assert words in told
    plain = Subject(name="m", side=Side(name="m", kind="manifest"))
    assert (
        len(
            lost(
                plain,
                Choice(variant="cpu", platform="linux/amd64", gpus=False),
                Machine(machine="x86_64", system="Linux"),
            )
        )
        == 2
    )
