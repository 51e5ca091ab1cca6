"""Locking with the real uv against an index on loopback."""

import platform
import sys
from pathlib import Path

import pytest

from envbuild.errors import LockError, UsageError
from envbuild.lock.lock import lock
from envbuild.lock.model import Lock, Target
from envbuild.lock.resolvers import PipToolsResolver, UvResolver, parse_pins
from envbuild.lock.settings import IndexSettings, read_settings
from envbuild.manifest.packages import Distribution, Origin
from envbuild.oci.digest import Digest
from tests.fakes.index import FakeIndex, Fault, closed_port, serving
from tests.fakes.wheels import FakeWheel, make_wheel

TARGET = Target(python="3.9.2", machine="aarch64", glibc="2.31")
HERE = Target(python=platform.python_version(), machine=platform.machine(), glibc=platform.libc_ver()[1])
NATIVE = [
    make_wheel("native", "1.0", tags=[tag])
    for tag in (
        "cp39-cp39-manylinux_2_17_aarch64",
        "cp39-cp39-manylinux_2_17_x86_64",
        "cp39-cp39-manylinux_2_34_aarch64",
        "cp311-cp311-manylinux_2_17_x86_64",
    )
]


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch, tmp_path):
    for name in ("PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX", "UV_FIND_LINKS", "UV_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("XDG_CONFIG_HOME", "XDG_CONFIG_DIRS", "UV_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("UV_HTTP_RETRIES", "1")
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://127.0.0.1:{closed_port()}/simple")


@pytest.fixture
def index(monkeypatch):
    with serving(*NATIVE, make_wheel("pure", "1.0"), make_wheel("pure", "2.0b1")) as served:
        monkeypatch.setenv("UV_DEFAULT_INDEX", served.url)
        yield served


def resolve(*requirements: str, target: Target = TARGET) -> Lock:
    return UvResolver().resolve(requirements, target)


def refusal(*requirements: str, target: Target = TARGET) -> str:
    with pytest.raises(LockError) as caught:
        resolve(*requirements, target=target)
    return str(caught.value)


def test_one_wheel_for_another_python_and_platform_is_chosen(index: FakeIndex):
    found = resolve("Pure==1.0", "native==1.0")
    assert [wheel.filename for wheel in found.wheels] == [NATIVE[0].filename, "pure-1.0-py3-none-any.whl"]
    [native, _] = found.wheels
    assert (native.sha256.hex, native.size) == (NATIVE[0].sha256, len(NATIVE[0].data))
    assert native.url == index.file_url(native.filename)


def test_exact_pins_allow_prereleases_and_ranges_take_the_newest(index: FakeIndex):
    assert resolve("pure==2.0b1").wheels[0].version == "2.0b1"
    assert resolve("pure<3,>=1").wheels[0].version == "1.0"


def test_dependencies_are_not_added(index: FakeIndex):
    index.add(make_wheel("needy", "1", requires=["absent>=3"]))
    assert [wheel.name for wheel in resolve("needy==1").wheels] == ["needy"]


def test_sizes_come_from_servers_that_refuse_head(index: FakeIndex):
    index.head = False
    assert resolve("native==1.0").wheels[0].size == len(NATIVE[0].data)


def test_a_wheel_without_a_hash_on_the_index_gets_one(index: FakeIndex):
    wheel = make_wheel("bare", "1")
    index.add(wheel, hashed=False)
    assert resolve("bare==1").wheels[0].sha256.hex == wheel.sha256


def test_credentials_of_the_index_work_and_are_written_nowhere(index: FakeIndex, monkeypatch):
    index.credentials = ("user", "pa55")
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
    [wheel] = resolve("pure==1.0").wheels
    assert wheel.url == index.file_url("pure-1.0-py3-none-any.whl")
    assert "pa55" not in refusal("pure==1.5")


def test_everything_that_cannot_be_locked_is_named_at_once(index: FakeIndex):
    index.add(FakeWheel(filename="source-1.0.tar.gz", data=b"x"))
    index.add(make_wheel("newer", "1"), requires_python=">=3.12")
    index.add(make_wheel("cuda", "2.0"))
    said = refusal(
        "absent==1", "pure==9", "source==1.0", "newer==1", "cuda==2.0+cu118", "native==1.0", "pure2 @ https://x.invalid/a",
        target=Target(python="3.9.2", machine="aarch64", glibc="2.17"),
    )  # fmt: skip
    assert said.startswith("6 distributions cannot be locked for CPython 3.9.2 on aarch64 with glibc 2.17:")
    for line in (
        "absent==1: no index has a project of this name",
        "pure==9: the index does not have this version, or has it no more; the nearest there: 1.0, 2.0b1",
        "source==1.0: the index has only a source distribution",
        "newer==1: it needs Python >=3.12",
        "cuda==2.0+cu118: the index has this version only without the local label +cu118",
        "is named by an address",
    ):
        assert line in said
    assert "native==1.0" not in said


def test_wheels_for_others_are_listed_by_their_tags(index: FakeIndex):
    said = refusal("native==1.0", target=Target(python="3.13.1", machine="x86_64", glibc="2.41"))
    assert "there are: cp311-cp311-manylinux_2_17_x86_64, cp39-cp39-manylinux_2_17_x86_64\n" in said


def test_two_versions_of_one_distribution_are_refused_in_uvs_words(index: FakeIndex):
    assert "you require pure==1.0 and pure==2.0b1" in refusal("pure==1.0", "pure==2.0b1")


@pytest.mark.parametrize("text", ["-r /etc/passwd", "a==1\n--index-url=http://x.invalid", "a b", ""])
def test_what_is_no_requirement_never_reaches_the_resolver(text):
    assert "not a requirement" in refusal(text)


def test_an_index_that_is_down_is_said_to_be_down(monkeypatch):
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    assert "could not be reached" in refusal("pure==1.0")


def test_two_server_errors_are_survived(index: FakeIndex, monkeypatch):
    monkeypatch.setenv("UV_HTTP_RETRIES", "3")
    index.fail("/simple/pure/", Fault(status=500), Fault(status=500))
    assert resolve("pure==1.0").wheels[0].version == "1.0"


def test_the_settings_of_the_folder_at_hand_do_not_count(index: FakeIndex, tmp_path: Path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text(
        '[tool.uv]\nconstraint-dependencies = ["pure<1"]\nexclude-newer = "2000-01-01"\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UV_OVERRIDE", "nowhere.txt")
    assert resolve("pure==1.0").wheels[0].version == "1.0"


def test_indexes_of_pip_count_where_uv_has_none(index: FakeIndex, monkeypatch):
    monkeypatch.delenv("UV_DEFAULT_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    with serving(make_wheel("pure", "3.0+cu118")) as other:
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", other.url)
        settings = read_settings()
        assert (settings.default, settings.extra, settings.from_pip) == (index.url, (other.url,), True)
        assert resolve("pure==1.0").wheels[0].url.startswith(index.root)
        assert resolve("pure==3.0+cu118").wheels[0].url.startswith(other.root)


def test_indexes_of_uv_go_before_those_of_pip(index: FakeIndex, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://other.invalid/simple")
    assert (read_settings().default, read_settings().from_pip) == (index.url, False)


def test_without_an_index_only_folders_count(tmp_path: Path, monkeypatch):
    monkeypatch.delenv("UV_DEFAULT_INDEX")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    wheel = make_wheel("own", "1")
    (tmp_path / wheel.filename).write_bytes(wheel.data)
    monkeypatch.setenv("PIP_FIND_LINKS", f"{tmp_path} {tmp_path}/absent")
    [found] = resolve("own==1").wheels
    assert (found.url, found.sha256.hex, found.size) == (
        (tmp_path / wheel.filename).as_uri(),
        wheel.sha256,
        len(wheel.data),
    )
    assert "no index has a project of this name" in refusal("other==1")


def distribution(name: str, version: str, kind, url: str | None = None, sha256: str | None = None) -> Distribution:
    return Distribution(name=name, version=version, origin=Origin(kind=kind, url=url, commit="abc", sha256=sha256))


def test_what_came_from_no_index_is_refused_together_with_what_no_index_has(index: FakeIndex):
    run = [
        distribution("Pure", "1.0", "vcs", "https://git.invalid/pure"),
        distribution("local", "1", "archive", "file:///tmp/local-1.whl"),
        distribution("mine", "1", "editable", "file:///home/me/mine"),
        distribution("native", "1.0", "conda", "file:///croot/native"),
        distribution("dropped", "1", "vcs", "https://git.invalid/dropped"),
        distribution("changed", "1", "editable"),
    ]
    with pytest.raises(LockError) as caught:
        lock(("pure==1.0", "local==1", "mine==1", "native==1.0", "absent==1"), TARGET, UvResolver(), run)
    said = str(caught.value)
    assert said.startswith("4 distributions cannot be locked")
    assert "Pure==1.0: was installed from version control (https://git.invalid/pure at abc)" in said
    assert "local==1: was installed from a local path" in said
    assert "mine==1: is an editable install" in said
    assert "absent==1: no index has a project" in said
    assert "native" not in said
    assert "dropped" not in said


def test_a_doubtful_distribution_is_refused_although_the_index_has_its_name(index: FakeIndex):
    with pytest.raises(LockError, match="editable install"):
        lock(("pure==1.0",), TARGET, UvResolver(), [distribution("pure", "1.0", "editable", "file:///home/me/pure")])


def test_a_doubtful_distribution_is_accepted_from_a_folder_of_wheels(index: FakeIndex, tmp_path: Path, monkeypatch):
    wheel = make_wheel("mine", "1")
    (tmp_path / wheel.filename).write_bytes(wheel.data)
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path))
    found = lock(("mine==1",), TARGET, UvResolver(), [distribution("mine", "1", "editable")])
    assert found.wheels[0].sha256.hex == wheel.sha256


def test_a_wheel_in_a_folder_is_hashed_once_until_it_changes(tmp_path: Path, monkeypatch):
    folder, hashed, of_file = tmp_path / "wheels", list[str](), Digest.of_file

    def counted(file):
        hashed.append(Path(file.name).name)
        return of_file(file)

    folder.mkdir()
    monkeypatch.setattr(Digest, "of_file", counted)
    resolver = UvResolver(settings=IndexSettings(default=None, find_links=(str(folder),)), cache=tmp_path / "cache")
    for wheel in (make_wheel("mine", "1", {"mine.py": text}, method=0) for text in ("a", "b")):
        (folder / wheel.filename).write_bytes(wheel.data)
        for _ in range(2):
            assert resolver.resolve(("mine==1",), TARGET).wheels[0].sha256.hex == wheel.sha256
    assert hashed == ["mine-1-py3-none-any.whl"] * 2


def test_an_archive_is_compared_with_what_the_index_has(index: FakeIndex):
    url = "https://files.invalid/pure-1.0-py3-none-any.whl"
    same = make_wheel("pure", "1.0").sha256
    assert lock(("pure==1.0",), TARGET, UvResolver(), [distribution("pure", "1.0", "archive", url, same)]).wheels
    with pytest.raises(LockError, match="with sha256 00"):
        lock(("pure==1.0",), TARGET, UvResolver(), [distribution("pure", "1.0", "archive", url, "00")])


def test_pip_tools_gives_the_lock_of_uv(index: FakeIndex):
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    index.add(
        *[make_wheel("both", "1.0", tags=[f"{tag}-{tag}-manylinux_2_{level}_{HERE.machine}"]) for level in (17, 28)]
    )
    requirements = ("pure==1.0", "both<2,>=1", "pip==1")
    index.add(make_wheel("pip", "1", requires=["more"]), make_wheel("more", "1"))
    assert PipToolsResolver().resolve(requirements, HERE) == UvResolver().resolve(requirements, HERE)


def test_with_pip_tools_too_a_wheel_in_a_folder_may_require_what_only_the_index_has(index: FakeIndex, tmp_path: Path):
    wheel = make_wheel("mine", "1", requires=["pure"])
    (tmp_path / wheel.filename).write_bytes(wheel.data)
    settings, run = read_settings([tmp_path]), [distribution("mine", "1", "editable")]
    locks = [
        lock(("mine==1", "pure==1.0"), HERE, kind(settings=settings), run) for kind in (UvResolver, PipToolsResolver)
    ]
    assert locks[0] == locks[1]


def test_pip_tools_refuses_pins_that_contradict_each_other_and_points_to_uv(index: FakeIndex):
    index.add(make_wheel("old", "1", requires=["pure<1"]))
    assert [it.name for it in UvResolver().resolve(("old==1", "pure==1.0"), HERE).wheels] == ["old", "pure"]
    with pytest.raises(LockError, match="old") as caught:
        PipToolsResolver().resolve(("old==1", "pure==1.0"), HERE)
    assert caught.value.todo.startswith("use --resolver uv")


def test_pip_tools_names_everything_at_once_too(index: FakeIndex):
    with pytest.raises(LockError, match="2 distributions cannot be locked") as caught:
        PipToolsResolver().resolve(("pure==7", "absent==1", "pure==1.0"), HERE)
    assert "absent==1: no index has a project" in str(caught.value)


@pytest.mark.parametrize("target", [TARGET, Target(python=HERE.python, machine=HERE.machine, glibc="2.99")])
def test_pip_tools_refuses_another_target_than_this_interpreter(target):
    with pytest.raises(UsageError, match="only for the interpreter that runs it") as caught:
        PipToolsResolver().resolve(("pure==1.0",), target)
    assert caught.value.todo == "use --resolver uv"


def test_the_output_of_pip_tools_is_read():
    text = "a==1.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n\n# The following are unsafe:\nB-c==2+l --hash=sha256:cc\n"
    assert {name: (str(version), sorted(hashes)) for name, (version, hashes) in parse_pins(text).items()} == {
        "a": ("1.0", ["aa", "bb"]),
        "b-c": ("2+l", ["cc"]),
    }
