"""One tar file that is an OCI layout and Docker's archive at once."""

import io
import json
import os
import tarfile
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.errors import BuildError, UsageError
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image, image_index
from envbuild.oci.layout import Archive, check_archive, read_layout, write_archive
from envbuild.oci.reference import Reference
from tests.fakes.images import image_of

IMAGE = image_of([b"one", b"two" * 1000, b"one"])
NAMES = (Reference.parse("example.com/team/app:1"), Reference.parse("app"))


def members(archive: Archive) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(b"".join(archive.parts()))) as tar:
        return {one.name: file.read() if (file := tar.extractfile(one)) else b"" for one in tar}


def blob(digest: Digest) -> str:
    return f"blobs/sha256/{digest.hex}"


def test_it_is_a_layout(tmp_path):
    write_archive(IMAGE, tmp_path / "a.tar", NAMES[:1])
    with tarfile.open(tmp_path / "a.tar") as tar:
        tar.extractall(tmp_path / "out", filter="data")
    image = read_layout(tmp_path / "out", machine="x86_64", reference="example.com/team/app:1")
    assert (image.manifest, image.config) == (IMAGE.manifest, IMAGE.config)
    for ours, theirs in zip(image.layers, IMAGE.layers, strict=True):
        with ours.open() as one, theirs.open() as other:
            assert one.read() == other.read()


def test_it_says_in_dockers_words_where_the_same_blobs_are():
    found = members(Archive(IMAGE, NAMES))
    assert json.loads(found["manifest.json"]) == [
        {
            "Config": blob(IMAGE.config_digest),
            "RepoTags": ["example.com/team/app:1", "docker.io/library/app:latest"],
            "Layers": [blob(layer.descriptor.digest) for layer in IMAGE.layers],
        }
    ]
    assert found[blob(IMAGE.config_digest)] == IMAGE.config
    assert found.keys() == {
        *("oci-layout", "index.json", "manifest.json", "blobs", "blobs/sha256"),
        *(blob(layer.descriptor.digest) for layer in IMAGE.layers),
        *(blob(digest) for digest in (IMAGE.config_digest, IMAGE.digest)),
    }


def test_every_name_is_there_for_containerd_and_for_podman():
    entries = json.loads(members(Archive(IMAGE, (*NAMES, NAMES[0])))["index.json"])["manifests"]
    wanted = ["example.com/team/app:1", "docker.io/library/app:latest"]
    for key in ("io.containerd.image.name", "org.opencontainers.image.ref.name"):
        assert [one["annotations"][key] for one in entries] == wanted


def test_without_a_name_it_has_none():
    found = members(Archive(IMAGE))
    assert json.loads(found["manifest.json"])[0]["RepoTags"] is None
    assert [one.get("annotations") for one in json.loads(found["index.json"])["manifests"]] == [None]


def test_a_name_by_digest_is_refused():
    with pytest.raises(UsageError, match="by digest"):
        Archive(IMAGE, (NAMES[0].at(IMAGE.digest),))


def test_of_an_index_docker_gets_the_first_image_and_the_others_all():
    arm = image_of([b"arm"], architecture="arm64")
    index = image_index([arm, IMAGE])
    found = members(Archive(index, NAMES))
    assert [one["Config"] for one in json.loads(found["manifest.json"])] == [blob(IMAGE.config_digest)]
    assert [one["digest"] for one in json.loads(found["index.json"])["manifests"]] == [str(index.digest)] * 2
    assert {blob(index.digest), blob(arm.digest), blob(arm.config_digest)} < found.keys()


def test_the_size_is_known_before_a_layer_is_opened():
    whole = b"".join(Archive(IMAGE, NAMES).parts())

    def fails():
        raise AssertionError("opened")

    unopened = replace(IMAGE, layers=tuple(replace(layer, open=fails) for layer in IMAGE.layers))
    assert Archive(unopened, NAMES).size == len(whole)


def test_the_same_image_gives_the_same_bytes(tmp_path):
    heard: list[int] = []
    umask = os.umask(0o077)
    try:
        write_archive(IMAGE, tmp_path / "a", NAMES, heard.append)
    finally:
        os.umask(umask)
    data = (tmp_path / "a").read_bytes()
    assert data == b"".join(Archive(IMAGE, NAMES).parts())
    assert heard == sorted(heard)
    assert heard[-1] == len(data)


def test_it_goes_through_a_pipe():
    read, write = os.pipe()
    with os.fdopen(read, "rb") as source, os.fdopen(write, "wb") as target:
        Archive(IMAGE, NAMES).write(target)
        target.close()
        assert source.read() == b"".join(Archive(IMAGE, NAMES).parts())


def test_layers_that_a_reader_has_are_left_out_and_still_named():
    first = IMAGE.layers[0].descriptor.digest
    archive = Archive(IMAGE, NAMES, frozenset({first}))
    found = members(archive)
    assert blob(first) not in found
    assert json.loads(found["manifest.json"])[0]["Layers"][0] == blob(first)
    assert archive.size == len(b"".join(archive.parts()))


def with_layer(opener) -> Image:
    return replace(IMAGE, layers=(replace(IMAGE.layers[0], open=opener), *IMAGE.layers[1:]))


@pytest.mark.parametrize("data", [b"", b"other", b"x" * 5_000_000])
def test_bytes_that_are_not_the_descriptors_leave_no_file(data, tmp_path):
    (tmp_path / "a").write_text("before")
    with pytest.raises(BuildError, match="digest"):
        write_archive(with_layer(lambda: io.BytesIO(data)), tmp_path / "a")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "before"


def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path):
    folder = tmp_path / "far"
    folder.mkdir()
    for name in ("there", "new"):
        (tmp_path / name).symlink_to(Path("far") / name)
    (folder / "there").write_text("before")
    for name in ("there", "new"):
        check_archive(tmp_path / name)
        write_archive(IMAGE, tmp_path / name, NAMES)
        assert (tmp_path / name).readlink() == Path("far") / name
        assert (folder / name).read_bytes() == b"".join(Archive(IMAGE, NAMES).parts())
    with pytest.raises(BuildError, match="digest"):
        write_archive(with_layer(lambda: io.BytesIO(b"x")), tmp_path / "there")
    assert (folder / "there").read_bytes() == (folder / "new").read_bytes()
    assert sorted(path.name for path in folder.iterdir()) == ["new", "there"]


def test_a_place_where_none_can_be_is_known_before(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("absent/a")
    (tmp_path / "circle").symlink_to("circle")
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.rglob("*"))
    for place in ("absent/a", "file/a", "link", "circle", "pipe", "."):
        with pytest.raises(UsageError, match="cannot write the archive: ") as caught:
            check_archive(tmp_path / place)
        assert caught.value.where == f"--archive {tmp_path / place}"
        assert caught.value.todo
    for place in ("file", "new"):
        check_archive(tmp_path / place)
    assert sorted(tmp_path.rglob("*")) == before


def test_the_last_bytes_of_a_wrong_layer_are_never_given_out():
    with IMAGE.layers[0].open() as file:
        right = file.read()
    given = bytearray()

    def take() -> None:
        for part in Archive(with_layer(lambda: io.BytesIO(right[:-1] + b"x"))).parts():
            given.extend(part)

    with pytest.raises(BuildError):
        take()
    assert given
    assert right[:-1] not in given


def test_a_layer_that_has_left_the_cache_is_told(tmp_path):
    with pytest.raises(BuildError, match="No such file"):
        write_archive(with_layer((tmp_path / "gone").open), tmp_path / "a")


def test_ctrl_c_leaves_nothing(tmp_path):
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_archive(with_layer(interrupted), tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_a_large_layer_passes_in_pieces(tmp_path):
    path: Path = tmp_path / "layer"
    with path.open("wb") as file:
        file.truncate(200 << 20)
    with path.open("rb") as file:
        digest, size = Digest.of_file(file)
    layer = IMAGE.layers[0]
    descriptor = replace(layer.descriptor, digest=digest, size=size)
    image = replace(IMAGE, layers=(replace(layer, descriptor=descriptor, open=lambda: path.open("rb")),))
    tracemalloc.start()
    try:
        total = sum(len(part) for part in Archive(image).parts())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total > 200 << 20
    assert peak < 10 << 20
