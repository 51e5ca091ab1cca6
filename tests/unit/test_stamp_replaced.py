"""Stamps on what was replaced or copied, on top of what came during a build, and on records of newer versions."""

import json

import pytest

from envbuild.cli.commands import run
from envbuild.errors import StampConflict, StampError
from envbuild.oci.digest import Digest
from envbuild.oci.image import canonical_json
from envbuild.stamp.history import read_history, read_stamp
from envbuild.stamp.record import read_record, record_bytes, record_name
from envbuild.stamp.stamping import check_stampable, stamp
from tests.unit.attesting import NO_RECORD
from tests.unit.test_stamp import (  # noqa: F401 - fixtures
    NOW,
    InBucket,
    InFolder,
    alter,
    entry,
    gcs,
    model,
    write,
    write_between,
)
from tests.unit.test_stamp_schema import VALIDATOR

ANCHOR = "runs/1/saved_model.pb"


def replaced(gcs):  # noqa: F811
    """A model with a training and a serving image, and other content since, with the metadata of the old."""
    model = InBucket(gcs)  # noqa: F811
    write(model.uri)
    write(model.uri, entry("serve", content=b"old server"))
    gcs.put("models", ANCHOR, b"another graph", metadata={**model.metadata(), "owner": "somebody"})
    return model


def test_images_of_a_model_that_was_replaced_are_not_said_of_the_new_one(gcs):  # noqa: F811
    model = replaced(gcs)  # noqa: F811
    old = model.metadata()["envbuild-record"]
    result = write(model.uri, entry(content=b"new"))
    assert [image.digest for image in result.stamp.images] == [Digest.of(b"new")]
    assert [image.slot[0] for image in result.dropped] == ["serve"]
    assert result.stamp.previous == old
    metadata = model.metadata()
    assert [key for key in metadata if key.startswith("envbuild-image-")] == ["envbuild-image-train-cpu"]
    assert metadata["owner"] == "somebody"
    found = read_history(model.uri)
    assert (found.current, len(found.records)) == (True, 3)
    assert write(model.uri, entry("serve")).dropped == ()


def test_a_model_that_was_replaced_can_be_stamped_with_the_same_image(gcs, capsys):  # noqa: F811
    model = replaced(gcs)  # noqa: F811
    assert not read_history(model.uri).current
    assert write(model.uri).changed
    assert read_history(model.uri).current
    assert not write(model.uri).changed
    assert run(["inspect", model.uri]) == 0
    assert "replaced" not in capsys.readouterr().err


def test_who_stamps_the_old_image_on_the_new_model_meanwhile_is_a_rival(gcs):  # noqa: F811
    model = replaced(gcs)  # noqa: F811
    with pytest.raises(StampConflict, match=str(entry().digest)):
        write_between(model, lambda: write(model.uri), entry(content=b"ours"))
    assert model.metadata()["envbuild-image-train-cpu"] == entry().reference


def test_of_five_builds_at_once_for_one_place_the_first_wins(model):  # noqa: F811
    items = [entry(content=b"%d" % number) for number in range(5)]
    builds = [(check_stampable(model.uri), item) for item in items]

    def ended(early, item):
        return stamp(model.uri, item, manifest=b"{}", lock=b"lock", now=NOW, stamp_before=early)

    assert ended(*builds[0]).changed
    for early, item in builds[1:]:
        with pytest.raises(StampConflict) as caught:
            ended(early, item)
        assert items[0].image in str(caught.value)
        assert item.image in str(caught.value)
    assert not ended(builds[1][0], items[0]).changed
    assert ended(builds[1][0], entry("serve")).changed
    assert ended(check_stampable(model.uri), items[4]).changed
    stamp_now = read_stamp(model.uri)
    assert stamp_now
    # What serves was built on the training image that was replaced.
    assert {image.slot[0]: image.digest for image in stamp_now.images} == {"train": items[4].digest}


def newer(model: InFolder) -> str:  # noqa: F811
    """Have the newest record be one of a newer minor version; returns its name."""
    name = write(model.uri).record
    value = json.loads((model.folder / name).read_bytes())
    value["images"][0]["signature"] = {"by": "somebody", "score": 0.5}
    data = canonical_json(value | {"schema_version": "1.9", "region": "europe"})
    (model.folder / record_name(data)).write_bytes(data)
    path = model.folder / "envbuild/pointer.json"
    path.write_text(path.read_text().replace(name, record_name(data)))
    return record_name(data)


def test_what_a_newer_minor_version_says_is_shown_and_carried_over(tmp_path, capsys):
    model = InFolder(tmp_path)  # noqa: F811
    name = newer(model)
    assert run(["inspect", model.uri, "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)["records"]
    assert shown["record"] == json.loads((model.folder / name).read_bytes())
    result = write(model.uri, entry("serve"))
    value = json.loads((model.folder / result.record).read_bytes())
    assert value["schema_version"] == "1.9"
    assert [image.get("signature") for image in value["images"]] == [None, {"by": "somebody", "score": 0.5}]
    VALIDATOR.validate(value)
    assert not write(model.uri).changed


def test_what_cannot_be_written_again_is_no_record():
    data = rb'{"schema_version":"1.9","images":[{"a":"\ud800"}]}'
    with pytest.raises(StampError, match=NO_RECORD):
        read_record(record_name(data), data)


@pytest.mark.parametrize("previous", ["../../secret", 7])
def test_a_record_before_is_a_record(tmp_path, previous):
    model = InFolder(tmp_path)  # noqa: F811
    stamped = write(model.uri).stamp
    data = canonical_json(json.loads(record_bytes(stamped)) | {"previous": previous})
    with pytest.raises(StampError, match=NO_RECORD):
        read_record(record_name(data), data)


@pytest.mark.parametrize(("data", "said"), [(b"{}", "content is not what its name says"), (None, "not there any more")])
def test_an_older_record_that_is_altered_or_gone_ends_the_history(model, capsys, data, said):  # noqa: F811
    names = [write(model.uri, entry(content=content)).record for content in (b"one", b"two", b"three")]
    alter(model, names[1], data)
    assert [it.name for it in read_history(model.uri).records] == [names[2], names[1]]
    assert run(["inspect", model.uri, "--history"]) == 0
    told = capsys.readouterr().out
    assert f"{said}, so the records before it are unknown" in told
    assert "nothing ->" not in told
    assert run(["inspect", model.uri, "--history", "--json"]) == 0
    last = json.loads(capsys.readouterr().out)["records"][-1]
    assert (last["name"], last["record"]) == (names[1], None)
    assert said in last["fault"]
    assert write(model.uri, entry(content=b"four")).changed


def test_a_record_from_before_overrides_were_written_is_valid(tmp_path):
    model = InFolder(tmp_path)  # noqa: F811
    value = json.loads(record_bytes(write(model.uri).stamp))
    for key in ("overrides", "identity"):
        del value["images"][0][key]
    data = canonical_json(value)
    assert read_record(record_name(data), data).images[0].overrides == ()
    VALIDATOR.validate(value)


def test_a_missing_record_is_told_with_a_command(model):  # noqa: F811
    name = write(model.uri).record
    alter(model, name, None)
    with pytest.raises(StampError, match="missing") as caught:
        read_stamp(model.uri)
    command = "gcloud storage objects update gs://models" if isinstance(model, InBucket) else "rm "
    assert command in caught.value.todo


def test_who_was_refused_by_429_to_the_end_knows_it(gcs, monkeypatch):  # noqa: F811
    monkeypatch.setenv("ENVBUILD_GCS_TIMEOUT", "0.3")
    model = InBucket(gcs)  # noqa: F811
    gcs.fail("patch", status=429, times=99)
    with pytest.raises(StampError, match=r"^Cloud Storage kept answering 429") as caught:
        write(model.uri)
    assert "cannot be known" not in str(caught.value)
    assert read_stamp(model.uri) is None
