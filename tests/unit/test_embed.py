"""The model in the image: the very files that were recorded and stamped, or none."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.errors import EnvbuildError, UsageError, VerifyError
from envbuild.image.child import Parent
from envbuild.image.content import hash_content
from envbuild.lock.model import Lock
from envbuild.manifest.model import Model, ModelFile
from envbuild.manifest.reader import read_manifest
from envbuild.oci.digest import Digest
from envbuild.report import Reporter
from envbuild.serve.contents import embedded
from envbuild.serve.model import Origin
from envbuild.verify.sources.model import read_model
from tests.fakes.images import image_of
from tests.reporting import Calling
from tests.unit import test_sides_model
from tests.unit.attesting import NO_STAMP
from tests.unit.test_sides_model import TARGET, InBucket, InFolder, manifest_bytes, put_stamp

gcs = test_sides_model.gcs


class Told(list[str]):
    """What was warned of."""

    def reporter(self) -> Reporter:
        return Calling(step=lambda _: None, note=lambda _: None, warn=self.append)


@pytest.fixture
def warned() -> Told:
    return Told()


@pytest.fixture(params=["folder", "bucket"])
def model(request, tmp_path):
    """A stamped SavedModel, whose weights are one file more."""
    found = InFolder(tmp_path) if request.param == "folder" else InBucket(request.getfixturevalue("gcs"))
    found.put("weights.bin", b"weights")
    put_stamp(found.uri)
    return found


def origin_of(uri: str, *, recorded: Model | None = None) -> Origin:
    manifest = read_manifest(manifest_bytes(uri), "m")
    if recorded:
        manifest = replace(manifest, model=recorded)
    return Origin(
        parent=Parent(image=image_of(), lock=Lock(target=TARGET, wheels=())), reference=None, manifest=manifest,
        manifest_bytes=b"", variant="cpu", platform="linux/amd64", environment=Digest.of(b"env"),
        stamped=read_model(uri),
    )  # fmt: skip


def refused(origin: Origin, cache: Path, warned: Told, kind: type[EnvbuildError] = VerifyError) -> str:
    with pytest.raises(kind) as caught, embedded(origin, cache, warned.reporter()):
        raise AssertionError("it was embedded")
    return str(caught.value)


def recorded_of(uri: str, *, sha256: bool = False) -> Model:
    """What the run saved: by what Cloud Storage tells of objects, or by what a disk does."""
    found = read_manifest(manifest_bytes(uri), "m").model
    assert found is not None
    if not sha256:
        return found
    digests = {"weights.bin": hashlib.sha256(b"weights").hexdigest()}
    files = [replace(it, crc32c=None, sha256=digests.get(it.path)) for it in found.files]
    return replace(found, files=tuple(files))


def test_the_model_s_files_lie_below_their_folder_and_the_stamp_s_own_do_not(model, tmp_path, warned):
    with embedded(origin_of(model.uri), tmp_path / "cache", warned.reporter()) as content:
        assert set(content.files) == {"/model/fingerprint.pb", "/model/saved_model.pb", "/model/weights.bin"}
        assert content.known["/model/weights.bin"] == Digest.of(b"weights")
        assert hash_content(replace(content, known={})).key == hash_content(content).key
        places = [Path(str(it)) for it in content.files.values()]
    assert warned == []
    assert isinstance(model, InFolder) or not any(it.exists() for it in places)


@pytest.mark.parametrize("sha256", [False, True])
def test_a_tampered_file_is_refused_with_both_digests(model, tmp_path, warned, sha256):
    origin = origin_of(model.uri, recorded=recorded_of(model.uri, sha256=sha256))
    model.put("weights.bin", b"WEIGHTS")
    said = refused(origin, tmp_path / "cache", warned)
    assert "weights.bin is not what the run saved" in said
    if sha256 or isinstance(model, InFolder):
        digests = (hashlib.sha256(it).hexdigest()[:12] for it in (b"weights", b"WEIGHTS"))
        assert all(f"weights.bin 7 bytes sha256 {it}" in said for it in digests)
    else:
        assert "recorded weights.bin 7 bytes crc32c kj6qRQ==" in said
    assert VerifyError.exit_code == 16


def test_missing_and_additional_files_are_refused(model, tmp_path, warned):
    origin = origin_of(model.uri)
    model.remove("weights.bin")
    model.put("more.bin", b"more")
    said, digest = refused(origin, tmp_path / "cache", warned), hashlib.sha256(b"more").hexdigest()[:12]
    assert "weights.bin is missing" in said
    assert f"no weights.bin, more.bin 4 bytes sha256 {digest}" in said


def test_a_model_that_was_replaced_or_never_stamped_is_refused(tmp_path, warned):
    model = InFolder(tmp_path)
    origin = origin_of(model.uri)
    assert NO_STAMP in refused(origin, tmp_path / "cache", warned)
    put_stamp(model.uri)
    origin = origin_of(model.uri)
    model.put("saved_model.pb", b"another")
    assert "saved_model.pb is not at generation" in refused(origin, tmp_path / "cache", warned)
    said = refused(replace(origin, stamped=None), tmp_path / "cache", warned, UsageError)
    assert "only a manifest was given" in said


def test_what_no_record_tells_is_a_warning(tmp_path, warned):
    model = InFolder(tmp_path)
    put_stamp(model.uri)
    recorded = recorded_of(model.uri)
    bare = tuple(ModelFile(path=it.path, size=it.size) for it in recorded.files)
    for known, line in (
        (replace(recorded, files=()), "lists no files of the model; only its stamp was checked"),
        (replace(recorded, files=bare), "of 2 files of the model the run's manifest has no digest; their size"),
        (replace(recorded, files=recorded.files[1:], file_count=None), "1 more were not compared"),
    ):
        with embedded(origin_of(model.uri, recorded=known), tmp_path / "cache", warned.reporter()) as content:
            assert len(content.files) == 2
        assert line in warned[-1]


def test_a_model_of_one_file_may_have_another_name(tmp_path, warned):
    path = tmp_path / "renamed.keras"
    path.write_bytes(b"a model")
    put_stamp(str(path))
    file = ModelFile(path="first.keras", size=7, sha256=hashlib.sha256(b"a model").hexdigest())
    recorded = Model(uri="gs://models/first.keras", files=(file,), file_count=1)
    with embedded(origin_of(str(path), recorded=recorded), tmp_path / "cache", warned.reporter()) as content:
        assert content.files == {"/model/renamed.keras": path}
