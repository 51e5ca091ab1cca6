"""--data: what stands for a place of the run, which values are rewritten, and what is refused."""

import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.errors import UsageError
from envbuild.local import data as exposure
from envbuild.local.data import DataMap, check_mounts, read_maps, rewritten, seen_at, workspace_mount
from envbuild.local.model import Mount


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The working folder, with a folder and a file of each name that tests use."""
    for name in ("data", "more data", "dät€n", "a=b", "b", "c,d", "x:rw"):
        (tmp_path / name).mkdir()
    (tmp_path / "file.csv").write_text("1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(*texts: str, home: str | None = None) -> list[tuple[str, str, str, bool]]:
    return [(it.uri, it.mount.source.name, it.mount.target, it.mount.read_only) for it in read_maps(texts, home)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gs://acme/p=./data", ("gs://acme/p", "data", "/gcs/acme/p", True)),
        ("gs://acme/p/=data/", ("gs://acme/p", "data", "/gcs/acme/p", True)),
        ("gs://acme=data:rw", ("gs://acme", "data", "/gcs/acme", False)),
        ("gs://acme/=data:ro", ("gs://acme", "data", "/gcs/acme", True)),
        ("gs://acme/p=x:rw:ro", ("gs://acme/p", "x:rw", "/gcs/acme/p", True)),
        ("gs://acme/p=more data", ("gs://acme/p", "more data", "/gcs/acme/p", True)),
        ("gs://acme/ü ö=dät€n", ("gs://acme/ü ö", "dät€n", "/gcs/acme/ü ö", True)),
        ("gs://acme/p=c,d", ("gs://acme/p", "c,d", "/gcs/acme/p", True)),
        ("gs://acme/p=data,unsafe", ("gs://acme/p", "data", "/gcs/acme/p", True)),
        ("gs://acme/p=data:rw,unsafe", ("gs://acme/p", "data", "/gcs/acme/p", False)),
        ("gs://acme/p=x:rw:ro,unsafe", ("gs://acme/p", "x:rw", "/gcs/acme/p", True)),
        ("gs://acme/year=2024=data", ("gs://acme/year=2024", "data", "/gcs/acme/year=2024", True)),
        ("gs://acme/p/t.csv=file.csv", ("gs://acme/p/t.csv", "file.csv", "/gcs/acme/p/t.csv", True)),
        ("/data/train=data", ("/data/train", "data", "/data/train", True)),
        ("//data/./train/=data", ("/data/train", "data", "/data/train", True)),
        ("file:///data/a%20b=data", ("/data/a b", "data", "/data/a b", True)),
        ("/gcs/acme/p=data", ("/gcs/acme/p", "data", "/gcs/acme/p", True)),
    ],
)
def test_a_place_and_what_stands_for_it(here, text, found):
    assert read(text) == [found]


def test_a_path_is_followed_from_this_folder_through_links_and_from_home(here):
    (here / "link").symlink_to("data")
    [link, home] = read_maps(["gs://acme/p=./b/../link", "gs://acme/q=~/b"], str(here))
    assert (link.mount.source, home.mount.source) == (here / "data", here / "b")


REFUSED = {
    "no such file or folder here: ./gone": ["gs://acme/p=./gone"],
    "2024=gone or gone": ["gs://acme/year=2024=gone:rw"],
    "no such file or folder": ["gs://acme/p=", "gs://acme/p=:rw", "gs://acme/p=/dev/null"],
    "maps nothing": ["gs://acme/p"],
    "two ways": ["gs://acme/p=a=b"],
    "bucket's name: 3 to 63": ["gs://=data", "gs://ab=data", "gs:///p=data", "gs://me:pw@acme/p=data"],
    "no path can stand": ["gs://acme//p=data", "gs://acme/../p=data"],
    "pattern": ["gs://acme/d/train-*=data"],
    "names no place": ["gs://acme/p\n=data", "gs://acme/p\udce9=data"],
    "no place of a run": ["s3://acme/p=data", "data/train=data", "=data"],
    "container needs": [
        "/=data", "/opt=data", "/opt/env/lib=data", "/etc/passwd=file.csv", "/run/secrets/x=data", "/var/run=data",
        "/var=data", "/usr/local=data", "/usr/bin/env=file.csv", "/lib64=data", "/usr/local/cuda-12.2/lib64=data",
        "/opt/notebook=data",
    ],
    "relative data lies there already": ["/workspace=data", "/workspace/x=data"],
    "no bucket": ["/gcs=data"],
    "two folders": ["gs://acme/p=data gs://acme/p/=b", "gs://acme/p=data /gcs/acme/p=b"],
}  # fmt: skip


@pytest.mark.parametrize(("texts", "said"), [(texts, said) for said, all_ in REFUSED.items() for texts in all_])
def test_what_cannot_be_meant_is_refused(here, texts, said):
    with pytest.raises(UsageError) as error:
        read(*texts.split(" "))
    assert said in error.value.what
    assert error.value.where.startswith("--data ")
    assert error.value.todo
    assert ":pw@" not in str(error.value)
    str(error.value).encode()


ORDINARY = """
    /data /mnt /srv/x /home/me/x /opt/data /var/lib/x /tmp/x /tmp/home /usr/local/data /usr/share/dict /usr/src/app/data
    /run/media/me/disk /workspace2 /etcetera /library
"""


@pytest.mark.parametrize("place", ORDINARY.split())
def test_places_that_runs_have_are_mapped(here, place):
    assert read(f"{place}=data") == [(place, "data", place, True)]


def test_a_place_is_shown_as_it_was_given_whatever_it_is_called(here):
    for text, seen in (
        ("/run/secrets=data", "/run/secrets=data"),
        ("/opt/env/token=abc/x=data", "/opt/env/token=abc/x=data"),
        ("gs://me:p=w@acme/p=data", "gs://acme/p=data"),
        ("https://x/y?token=hunter2=data", "https://x/y?token=[redacted]"),
    ):
        with pytest.raises(UsageError) as error:
            read(text)
        assert error.value.where == f"--data {seen}"


def test_the_longest_place_counts_and_only_whole_names(here):
    maps = read_maps(["gs://acme=data", "gs://acme/p=b", "/data=data"], None)
    assert rewritten("gs://acme/p", maps) == "/gcs/acme/p"
    assert rewritten("gs://acme/p/q/", maps) == "/gcs/acme/p/q/"
    assert rewritten("gs://acme/pq", maps) == "/gcs/acme/pq"
    assert rewritten("gs://acme-2/p", maps) == "gs://acme-2/p"
    assert rewritten("gs://acm", maps) == "gs://acm"
    assert rewritten("see gs://acme/p", maps) == "see gs://acme/p"
    assert rewritten("/data/x", maps) == "/data/x"


@given(st.lists(st.sampled_from("abc"), max_size=4), st.lists(st.sampled_from("abc"), max_size=4))
def test_what_lies_in_a_mapped_place_is_seen_at_its_own_path_and_nothing_else_is(mapped, value):
    uri, place = "/".join(["gs://bucket", *mapped]), "/".join(["gs://bucket", *value])
    target = seen_at(uri)
    assert target is not None
    it = DataMap(uri=uri, mount=Mount(source=Path("/x"), target=target))
    inside = value[: len(mapped)] == mapped
    assert rewritten(place, [it]) == (seen_at(place) if inside else place)


def test_this_folder_is_mounted_and_a_socket_in_it_is_told(here, monkeypatch):
    told: list[str] = []
    assert workspace_mount(told.append) == Mount(source=here, target="/workspace")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("b/s.sock")
    assert workspace_mount(told.append).source == here
    [line] = told
    assert f"{here}/b/s.sock" in line


def test_in_the_callers_own_home_only_the_rules_for_homes_count(here, monkeypatch):
    """A home may lie in a folder of the system: root's does, and those of services such as Jenkins do."""
    (here / "home/project").mkdir(parents=True)
    (here / "home/.keys").mkdir()
    monkeypatch.setattr(exposure, "_SYSTEM", (str(here),))
    monkeypatch.setenv("HOME", str(here / "home"))
    assert exposure.reserved(here / "home/project") is None
    assert "settings and keys" in (exposure.reserved(here / "home/.keys") or "")
    assert "the system's" in (exposure.reserved(here / "b") or "")


def mount(source: Path, target: str) -> Mount:
    return Mount(source=source, target=target)


def test_a_place_within_another_needs_room_in_it(here):
    (here / "data/p").mkdir()
    (here / "data/t.csv").touch()
    outer = mount(here / "data", "/gcs/acme")
    check_mounts([mount(here / "b", "/gcs/acme/p"), outer, mount(here / "file.csv", "/gcs/acme/t.csv")])
    check_mounts([outer, mount(here / "b", "/gcs/acme-2/p")])
    for source, target in (("b", "q"), ("file.csv", "p"), ("b", "t.csv"), ("b", "t.csv/x")):
        with pytest.raises(UsageError, match="has no such") as error:
            check_mounts([mount(here / source, f"/gcs/acme/{target}"), outer])
        assert str(here / "data" / target) in error.value.todo


def test_a_path_that_is_no_text_cannot_be_mounted(here):
    with pytest.raises(UsageError, match="cannot mount") as error:
        check_mounts([mount(here / "d\udce9", "/gcs/acme")])
    str(error.value).encode()
