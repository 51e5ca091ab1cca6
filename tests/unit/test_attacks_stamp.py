"""What somebody who may write to a model's folder can do to its stamp, and that `--signed` refuses each of it.

None of these tests can hold on a commit without `--signed`. The table goes through `inspect`, which has the one reader
that all commands have; the commands themselves follow in `test_attacks_signed.py`.
"""

import base64
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from envbuild.attest.bundle import RECORD, record_keys, record_signer, sign_statement
from envbuild.attest.keys import signer_of
from envbuild.attest.statement import IN_TOTO, PROVENANCE, SIGNED, statement
from envbuild.cli.commands import run
from envbuild.errors import StampConflict, StampError, VerifyError
from envbuild.oci.digest import Digest
from envbuild.stamp import gcs as stamp_gcs
from envbuild.stamp.directory import DirectoryStore
from envbuild.stamp.history import Proof, read_history, read_stamp
from envbuild.stamp.objects import open_model
from envbuild.stamp.record import (
    ModelFiles,
    StampedFile,
    lock_name,
    manifest_name,
    read_record,
    record_bytes,
    record_name,
    signature_name,
)
from envbuild.stamp.stamping import check_stampable, stamp
from tests.unit.attesting import ANOTHER_KEY, ANOTHER_RECORD, NO_RECORD, NO_STAMP, NOT_SIGNED, REPLACED, key_pair
from tests.unit.test_stamp import NOW, InBucket, InFolder, entry, gcs, write, writer  # noqa: F401 - fixtures

V1, V2 = entry("serve", content=b"v1"), entry("serve", content=b"v2")
PUT = "envbuild/pointer.json"


class Site:
    """A model with three signed records, and what an attacker can do with it."""

    def __init__(self, model: InFolder | InBucket, folder: Path) -> None:
        self.model, self.folder, self.uri = model, folder, model.uri
        self.private, self.public = key_pair(folder)
        self.other, _ = key_pair(folder, "other")
        self.records = [self.stamped(entry()), self.stamped(V1), self.stamped(V2)]

    def stamped(self, item: Any = V2, key: Path | None = None, uri: str = "", now: datetime = NOW) -> str:
        signer = record_signer(str(key or self.private))
        return stamp(uri or self.uri, item, manifest=b"{}", lock=b"lock", now=now, signer=signer).record

    @property
    def newest(self) -> str:
        return self.records[-1]

    def path(self, name: str) -> Path:
        assert isinstance(self.model, InFolder)
        return self.model.folder / name

    def get(self, name: str) -> bytes:
        if isinstance(self.model, InBucket):
            return self.model.gcs.data("models", f"runs/1/{name}")
        return self.path(name).read_bytes()

    def put(self, name: str, data: bytes) -> None:
        if isinstance(self.model, InBucket):
            self.model.gcs.put("models", f"runs/1/{name}", data)
        else:
            self.path(name).write_bytes(data)

    def remove(self, name: str) -> None:
        if isinstance(self.model, InBucket):
            del self.model.gcs.buckets["models"].objects[f"runs/1/{name}"]
        else:
            self.path(name).unlink()

    def point(self, name: str | None, **more: str) -> None:
        """Rewrite the pointer; the model's file stays as it is."""
        values = {**self.model.metadata(), **({"envbuild-record": name} if name else {}), **more}
        if name is None:
            del values["envbuild-record"]
        if isinstance(self.model, InBucket):
            objects = self.model.gcs.buckets["models"].objects
            old = objects["runs/1/saved_model.pb"]
            changed = replace(old, properties={**old.properties, "metadata": values})
            objects["runs/1/saved_model.pb"] = replace(changed, metageneration=old.metageneration + 1)
        else:
            pointer = json.loads(self.get(PUT))
            pointer["objects"]["saved_model.pb"]["metadata"] = values
            self.put(PUT, json.dumps(pointer).encode())

    def sign(self, name: str, key: Path, subject: Digest | None = None, kind: str = RECORD) -> None:
        payload = statement(subject or Digest(name[-69:-5]), kind, {})
        self.put(signature_name(name), sign_statement(payload, signer_of(str(key)), "--sign"))

    def forge(self, key: Path | None = None, **changes: Any) -> str:
        """Point to a record that says something else: another serving image, unless other changes are given."""
        value = json.loads(self.get(self.newest)) | changes
        if not changes:
            evil = Digest.of(b"evil")
            value["images"][0] |= {"digest": str(evil), "reference": f"evil.example.com/a@{evil}"}
        return self.pointing(json.dumps(value).encode(), key)

    def pointing(self, data: bytes, key: Path | None = None) -> str:
        name = record_name(data)
        self.put(name, data)
        if key:
            self.sign(name, key)
        self.point(name)
        return name

    def bundle(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Change the newest record's signature."""
        value = json.loads(self.get(signature_name(self.newest)))
        change(value)
        self.put(signature_name(self.newest), json.dumps(value).encode())

    def payload(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Change what the newest record's signature says, and leave the signature itself."""

        def changed(value: dict[str, Any]) -> None:
            said = json.loads(base64.b64decode(value["dsseEnvelope"]["payload"]))
            change(said)
            value["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(said).encode()).decode()

        self.bundle(changed)


def copied_signature(site: Site, source: str, target: str) -> None:
    site.put(signature_name(target), site.get(signature_name(source)))


def edited_with_its_signature(site: Site) -> None:
    copied_signature(site, site.newest, site.forge())


def other_under_the_keys_name(site: Site) -> None:
    kept = json.loads(site.get(signature_name(site.newest)))
    site.sign(site.newest, site.other)
    kept["dsseEnvelope"] = json.loads(site.get(signature_name(site.newest)))["dsseEnvelope"]
    site.put(signature_name(site.newest), json.dumps(kept).encode())


def without_the_first(site: Site) -> None:
    site.point(site.records[1])
    site.remove(site.records[0])


def twice(site: Site) -> None:
    """A bundle with two payloads: the first is the signed one."""
    text = site.get(signature_name(site.newest)).decode()
    evil = base64.b64encode(statement(Digest.of(b"evil"), RECORD, {})).decode()
    text = text.replace('"payloadType"', f'"payload":"{evil}","payloadType"', 1)
    assert text.count('"payload"') == 2
    site.put(signature_name(site.newest), text.encode())


def other_model(site: Site, data: bytes = b"graph", anchor: str = "saved_model.pb", name: str = "other") -> str:
    """Another model that the same key has signed; its records are copied, and the newest is pointed to."""
    folder = site.folder / name
    folder.mkdir()
    (folder / anchor).write_bytes(data)
    for content in (b"1", b"2", b"3"):
        site.stamped(entry("serve", content=content), uri=str(folder))
    record = site.stamped(entry("serve", content=b"4"), uri=str(folder))
    for place in (record, signature_name(record)):
        site.put(place, (folder / place).read_bytes())
    site.point(record)
    return record


def whole_folder(site: Site) -> None:
    """Everything of another model that the same key has signed, model files and all."""
    other_model(site, b"another")
    for path in (site.folder / "other").rglob("*"):
        if path.is_file():
            site.put(str(path.relative_to(site.folder / "other")), path.read_bytes())


def replaced(site: Site) -> None:
    """Another file under the stamped one's name, with the pointer made to fit."""
    if isinstance(site.model, InBucket):
        site.model.gcs.put("models", "runs/1/saved_model.pb", b"evil", site.model.metadata())
        return
    site.put("saved_model.pb", b"evil")
    pointer = json.loads(site.get(PUT))
    pointer["objects"]["saved_model.pb"]["generation"] = str(Digest.of(b"evil"))
    site.put(PUT, json.dumps(pointer).encode())


def restored(site: Site) -> None:
    """The model was trained anew, and somebody puts back the old files with their stamp."""
    pointer = site.get(PUT)
    site.model.replace(b"trained anew")
    site.stamped(entry(content=b"new"))
    site.model.replace(b"graph")
    site.put(PUT, pointer)


def moved(site: Site) -> None:
    """Another file of the folder bears the pointer."""
    metadata = site.model.metadata()
    site.remove("saved_model.pb")
    site.put("other.keras", b"graph")
    state = {"generation": str(Digest.of(b"graph")), "metageneration": "1", "metadata": metadata}
    site.put(PUT, json.dumps({"objects": {"other.keras": state}}).encode())


def in_place(site: Site, kind: str) -> None:
    """Something that is no file, or lies elsewhere, where the signature belongs."""
    path = site.path(signature_name(site.newest))
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/etc/hostname" if kind == "link" else "/nowhere")


def deep(site: Site) -> bytes:
    return site.get(site.newest)[:-1] + b',"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


def doubled(site: Site) -> bytes:
    """A record with a second list of images."""
    value = json.loads(site.get(site.newest))["images"]
    return site.get(site.newest)[:-1] + b',"images":' + json.dumps(value).encode() + b"}"


def merged_unsigned(site: Site) -> None:
    """A stamp without a key on top of the signed one."""
    write(site.uri, entry("serve", "gpu", content=b"evil"))


def stamped_by_other(site: Site) -> None:
    site.stamped(entry(content=b"evil"), site.other)


def wrong_type(site: Site) -> None:
    payload = statement(Digest(site.newest[-69:-5]), RECORD, {}).replace(b"Statement/v1", b"Statement/v9")
    site.put(signature_name(site.newest), sign_statement(payload, signer_of(str(site.private)), "--sign"))


Attack = Callable[[Site], object]
IMAGE = Digest.of(b"v2")
CHANGED = "payload or signature was changed"
FOR_ANOTHER = "the stamp was written for file:///"
LEADS_OUT = "a link leads out of the model's folder"
NAMES_NO_RECORD = "names no record"
NO_BUNDLE = "it has no DSSE envelope"
NO_FILE = "not a regular file"
PUT_BACK = "record 2 of the model, and record 3 is signed too"
NOT_THIS = "and not for this model"
TWO_HISTORIES = "the model has two signed histories"
ANYWHERE: dict[str, tuple[Attack, str]] = {
    "signature removed": (lambda it: it.remove(signature_name(it.newest)), NOT_SIGNED),
    "signed by another key": (lambda it: it.sign(it.newest, it.other), ANOTHER_KEY),
    "another key under the key's name": (other_under_the_keys_name, CHANGED),
    "signature of an older record": (
        lambda it: copied_signature(it, it.records[0], it.newest),
        ANOTHER_RECORD,
    ),
    "record edited in place": (
        lambda it: it.put(it.newest, it.get(it.newest).replace(b"5000", b"6000")),
        "the record's content is not what its name says",
    ),
    "record edited, unsigned": (lambda it: it.forge(), NOT_SIGNED),
    "record edited, with its signature": (edited_with_its_signature, ANOTHER_RECORD),
    "record edited, signed by another key": (lambda it: it.forge(it.other), ANOTHER_KEY),
    "record edited, older signature": (
        lambda it: copied_signature(it, it.records[1], it.forge()),
        ANOTHER_RECORD,
    ),
    "pointer to the first record": (lambda it: it.point(it.records[0]), "record 1 of the model, and record 3 is signed"),
    "pointer to the one before": (lambda it: it.point(it.records[1]), PUT_BACK),
    "pointer to the one before, the first removed": (without_the_first, PUT_BACK),
    "another model's record": (other_model, FOR_ANOTHER),
    "another model's record, other content": (lambda it: other_model(it, b"x"), FOR_ANOTHER),
    "another model's record, other name": (
        lambda it: other_model(it, anchor="a.keras"),
        f"(a.keras), {NOT_THIS}",
    ),
    "stamped without a key on top": (merged_unsigned, NOT_SIGNED),
    "stamped by another key on top": (stamped_by_other, ANOTHER_KEY),
    "pointer removed": (lambda it: it.point(None), f"the model {NO_STAMP}"),
    "pointer to nothing": (lambda it: it.point(f"envbuild/record-{'0' * 64}.json"), "is missing"),
    "pointer to another folder": (lambda it: it.point("envbuild/../record.json"), NAMES_NO_RECORD),
    "pointer to a signature": (lambda it: it.point(signature_name(it.newest)), NAMES_NO_RECORD),
    "pointer with a line more": (lambda it: it.point(f"{it.newest}\n"), NAMES_NO_RECORD),
    "model's file replaced": (replaced, f"the model {REPLACED}"),
    "record with two lists of images": (lambda it: it.pointing(doubled(it)), NOT_SIGNED),
    "two payloads": (twice, CHANGED),
    "payload's type changed": (
        lambda it: it.bundle(lambda value: value["dsseEnvelope"].update(payloadType="text/plain")),
        CHANGED,
    ),
    "payload for more records": (
        lambda it: it.payload(lambda said: said["subject"].append({"digest": {"sha256": "0" * 64}})),
        CHANGED,
    ),
    "payload with another predicate": (
        lambda it: it.payload(lambda said: said.update(predicateType=SIGNED)),
        CHANGED,
    ),
    "an image's signature": (
        lambda it: it.sign(it.newest, it.private, IMAGE, SIGNED),
        ANOTHER_RECORD,
    ),
    "an image's kind of signature, for the record": (
        lambda it: it.sign(it.newest, it.private, kind=SIGNED),
        "it is a statement about something else: https://sigstore.dev/cosign/sign/v1",
    ),
    "a provenance for the record": (
        lambda it: it.sign(it.newest, it.private, kind=PROVENANCE),
        "it is a statement about something else: https://slsa.dev/provenance/v1",
    ),
    "a statement of another version": (wrong_type, "else than an in-toto statement"),
    "no signature in the envelope": (
        lambda it: it.bundle(lambda value: value["dsseEnvelope"].update(signatures=[])),
        CHANGED,
    ),
    "a signature that is no base64": (
        lambda it: it.bundle(lambda value: value["dsseEnvelope"]["signatures"][0].update(sig="!")),
        NO_BUNDLE,
    ),
    "an empty signature": (lambda it: it.put(signature_name(it.newest), b""), NO_BUNDLE),
    "a signature that is a list": (lambda it: it.put(signature_name(it.newest), b"[]"), NO_BUNDLE),
    "a signature with text behind it": (
        lambda it: it.put(signature_name(it.newest), it.get(signature_name(it.newest)) + b"{}"),
        NO_BUNDLE,
    ),
    "a huge signature": (lambda it: it.put(signature_name(it.newest), b"x" * (2 << 20)), "has more than 1048576 bytes"),
    "a deeply nested signature": (lambda it: it.put(signature_name(it.newest), b"[" * 500_000), NO_BUNDLE),
    "a huge record": (lambda it: it.pointing(b"x" * (17 << 20), it.private), "has more than 16777216 bytes"),
    "a deeply nested record": (lambda it: it.pointing(deep(it), it.private), NO_RECORD),
    "counter raised": (lambda it: it.forge(counter=99), NOT_SIGNED),
    "counter negative": (lambda it: it.forge(it.private, counter=-1), NO_RECORD),
    "counter huge": (lambda it: it.forge(it.private, counter=2**53), NO_RECORD),
    "counter a text": (lambda it: it.forge(it.private, counter="3"), NO_RECORD),
    "counter a fraction": (lambda it: it.forge(it.private, counter=3.0), NO_RECORD),
    "counter true": (lambda it: it.forge(it.private, counter=True), NO_RECORD),
    "counter null": (lambda it: it.forge(it.private, counter=None), NO_RECORD),
    "counter left out": (
        lambda it: it.forge(it.private, counter=0),
        "record 0 of the model, and record 3 is signed too",
    ),
    "a newer minor version, unsigned": (lambda it: it.forge(schema_version="1.99"), NOT_SIGNED),
    "a newer major version": (lambda it: it.forge(it.private, schema_version="2.0"), "the record has schema 2.0"),
    "a record before that leads elsewhere": (
        lambda it: it.forge(it.private, previous="../secret"),
        NO_RECORD,
    ),
    "a record before that is this one's successor": (
        lambda it: it.forge(previous=it.newest, counter=4),
        NOT_SIGNED,
    ),
    "the model's address changed": (lambda it: it.forge(model="gs://acme/other"), "for gs://acme/other"),
    "the model's address is none": (lambda it: it.forge(it.private, model="s3://x"), "for s3://x"),
}  # fmt: skip
IN_FOLDER: dict[str, tuple[Attack, str]] = {
    "a folder as signature": (lambda it: in_place(it, "folder"), NO_FILE),
    "a pipe as signature": (lambda it: in_place(it, "fifo"), NO_FILE),
    "a link to another file as signature": (lambda it: in_place(it, "link"), LEADS_OUT),
    "a link to nothing as signature": (lambda it: in_place(it, "broken"), LEADS_OUT),
    "another model's whole folder": (whole_folder, FOR_ANOTHER),
    "old files put back with their stamp": (restored, "and record 4 is signed too"),
    "another file bears the pointer": (moved, f"(saved_model.pb), {NOT_THIS}"),
}


def test_enough_is_tried():
    assert len(ANYWHERE) + len(IN_FOLDER) >= 54


def refused(site: Site, capsys: Any, *more: str) -> str:
    """What `inspect --signed` says; it ends with 15 or 16 and prints nothing for the next program."""
    code = run(["inspect", site.uri, "--signed", str(site.public), *more])
    out, said = capsys.readouterr()
    assert (code in (15, 16), out) == (True, ""), (code, said)
    assert "; " in said or "do: " in said
    assert "Traceback" not in said
    return " ".join(said.split())


@pytest.mark.parametrize("attack", ANYWHERE | IN_FOLDER)
def test_a_forged_or_older_stamp_in_a_folder_is_refused(tmp_path, capsys, attack):
    site = Site(InFolder(tmp_path), tmp_path)
    assert run(["inspect", site.uri, "--signed", str(site.public)]) == 0
    assert "signed by the key" in capsys.readouterr().out
    act, says = (ANYWHERE | IN_FOLDER)[attack]
    act(site)
    assert says in refused(site, capsys)


@pytest.mark.parametrize("attack", list(ANYWHERE)[::3])
def test_a_forged_or_older_stamp_in_a_bucket_is_refused(tmp_path, gcs, capsys, attack):  # noqa: F811
    site = Site(InBucket(gcs), tmp_path)
    act, says = ANYWHERE[attack]
    act(site)
    assert says in refused(site, capsys)


@pytest.mark.parametrize("gone", ["records", "signatures"])
def test_an_older_record_whose_successors_were_removed_is_refused_by_the_lowest_number_alone(tmp_path, capsys, gone):
    site = Site(InFolder(tmp_path), tmp_path)
    site.point(site.records[1])
    site.remove(site.newest if gone == "records" else signature_name(site.newest))
    assert run(["inspect", site.uri, "--signed", str(site.public)]) == 0
    assert V1.image in capsys.readouterr().out
    said = refused(site, capsys, "--minimum-record", "3")
    assert "record 2 of the model, and --minimum-record requires 3 or later; an older stamp was put back" in said


@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_a_newer_record_cannot_be_hidden_among_many_files(tmp_path, request, capsys, place):
    site = Site(InFolder(tmp_path) if place == "folder" else InBucket(request.getfixturevalue("gcs")), tmp_path)
    site.point(site.records[1])
    for number in range(1500):  # each more than one page of a list, and before the records
        site.put(f"envbuild/a{number}", b"")
        site.put(f"envbuild/record-!{number}.json", b"")
    for number in range(50):
        site.put(f"envbuild/record-{number:064x}.json", b"")
    assert PUT_BACK in refused(site, capsys)
    site.point(site.newest)
    assert run(["inspect", site.uri, "--signed", str(site.public)]) == 0
    assert site.stamped(entry(content=b"next"))
    assert run(["inspect", site.uri, "--signed", str(site.public), "--minimum-record", "4"]) == 0


JUNK: dict[str, Callable[[Path], object]] = {
    "large": lambda path: path.write_bytes(b"x" * (17 << 20)),
    "folder": lambda path: path.mkdir(),
    "pipe": os.mkfifo,
    "link": lambda path: path.symlink_to("/etc/hostname"),
    "link to itself": lambda path: path.symlink_to(path.name),
}


@pytest.mark.parametrize("name", [f"envbuild/record-{'f' * 64}.json", "envbuild/record-x.json", "signature"])
@pytest.mark.parametrize("junk", JUNK)
def test_a_file_that_cannot_be_read_stops_no_signed_stamp(tmp_path, capsys, junk, name):
    site = Site(InFolder(tmp_path), tmp_path)
    if name == "signature":  # of a record with a higher number
        name = signature_name(site.forge(counter=9))
        site.point(site.newest)
    JUNK[junk](site.path(name))
    assert run(["inspect", site.uri, "--signed", str(site.public)]) == 0
    site.stamped(entry(content=b"next"))
    assert run(["inspect", site.uri, "--signed", str(site.public), "--minimum-record", "4"]) == 0


@pytest.mark.parametrize("junk", JUNK)
def test_the_next_signed_stamp_mends_a_signature_that_cannot_be_read(tmp_path, capsys, junk):
    site = Site(InFolder(tmp_path), tmp_path)
    site.path(signature_name(site.newest)).unlink()
    JUNK[junk](site.path(signature_name(site.newest)))
    refused(site, capsys)
    site.stamped(entry("serve", content=b"next"))
    assert run(["inspect", site.uri, "--signed", str(site.public)]) == 0


def test_a_large_record_in_a_bucket_stops_no_signed_stamp_and_silence_does(tmp_path, gcs, capsys, monkeypatch):  # noqa: F811
    site = Site(InBucket(gcs), tmp_path)
    site.put(f"envbuild/record-{'f' * 64}.json", b"x" * (17 << 20))
    assert run(["inspect", site.uri, "--signed", str(site.public)]) == 0
    capsys.readouterr()
    site.point(site.records[1])
    usual = stamp_gcs.read_object

    def read_object(client: Any, bucket: str, name: str, **more: Any) -> bytes | None:
        with stamp_gcs.storage_errors(name, bucket, ""):
            if name.endswith(site.newest):
                raise ConnectionError
        return usual(client, bucket, name, **more)

    monkeypatch.setattr(stamp_gcs, "read_object", read_object)
    assert "Cloud Storage could not be reached" in refused(site, capsys)


def test_a_signed_record_names_the_record_that_it_continues(tmp_path, capsys):
    site = Site(InFolder(tmp_path), tmp_path)
    write(site.uri, entry("serve", content=b"evil"))
    site.stamped(entry(content=b"next"))
    history = read_history(site.uri)
    assert [it.name for it in history.records[1:]] == site.records[::-1]
    assert [it.stamp.counter for it in history.records if it.stamp] == [4, 3, 2, 1]


def test_what_is_told_of_older_records_is_signed_as_well(tmp_path, capsys):
    site = Site(InFolder(tmp_path), tmp_path)
    forged = site.forge()
    site.forge(site.private, previous=forged, counter=4)  # as an earlier envbuild signed on top of it
    found = read_history(site.uri, proof=Proof(keys=record_keys([str(site.public)])))
    assert [(it.name, it.stamp) for it in found.records[1:]] == [(forged, None)]
    assert run(["inspect", site.uri, "--history", "--signed", str(site.public)]) == 0
    out = capsys.readouterr().out
    assert f"{forged}: {NOT_SIGNED}" in out
    assert "evil" not in out


def test_train_and_serve_are_signed_together_on_top_of_what_another_wrote(tmp_path):
    site = Site(InFolder(tmp_path), tmp_path)
    write(site.uri, entry("serve", content=b"evil"))
    early, signer = check_stampable(site.uri), record_signer(str(site.private))
    for item in (entry(content=b"next"), entry("serve", content=b"next")):
        stamp(site.uri, item, manifest=b"{}", lock=b"lock", now=NOW, stamp_before=early, signer=signer)
    found = read_history(site.uri, proof=Proof(keys=record_keys([str(site.public)]), minimum=5)).proven
    assert found
    assert {it.digest for it in found.images} == {Digest.of(b"next")}


def test_what_only_the_pointer_says_changes_nothing(tmp_path, capsys):
    site = Site(InFolder(tmp_path), tmp_path)
    site.point(site.newest, **{"envbuild-image-serve-cpu": f"evil.example.com/a@{Digest.of(b'evil')}"})
    assert run(["inspect", site.uri, "--signed", str(site.public), "--minimum-record", "3"]) == 0
    out = capsys.readouterr().out
    assert (V2.image in out, "evil" in out) == (True, False)


def test_a_newer_minor_version_that_the_key_signed_is_read(tmp_path, capsys):
    site = Site(InFolder(tmp_path), tmp_path)
    site.forge(site.private, schema_version="1.99", counter=4, more="x")
    assert run(["inspect", site.uri, "--signed", str(site.public)]) == 0


def test_a_record_of_another_model_or_of_another_key_does_not_make_this_one_old(tmp_path, capsys):
    site = Site(InFolder(tmp_path), tmp_path)
    other_model(site)
    site.forge(site.other, counter=99)
    site.point(site.newest)
    assert run(["inspect", site.uri, "--signed", str(site.public)]) == 0


def test_the_model_is_the_same_by_its_file_and_at_a_linked_path(tmp_path, capsys):
    site = Site(InFolder(tmp_path), tmp_path)
    key = str(site.public)
    assert run(["inspect", f"{site.uri}/saved_model.pb", "--signed", key]) == 0
    assert run(["inspect", f"{site.uri}/../model/", "--signed", key]) == 0
    Path(site.uri).rename(tmp_path / "copy")
    capsys.readouterr()
    assert run(["inspect", str(tmp_path / "copy"), "--signed", key]) == 16
    said = " ".join(capsys.readouterr().err.split())
    assert "mount or link a folder that was copied at the path that it was stamped at" in said
    Path(site.uri).symlink_to(tmp_path / "copy")
    assert run(["inspect", site.uri, "--signed", key]) == 0


@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_counters_go_up_and_signatures_lie_there_before_the_pointer_moves(tmp_path, request, place):
    model = InFolder(tmp_path) if place == "folder" else InBucket(request.getfixturevalue("gcs"))
    site = Site(model, tmp_path)
    counters = [it.stamp.counter for it in read_history(site.uri).records if it.stamp]
    assert counters == [3, 2, 1]
    proof = Proof(keys=record_keys([str(site.public)]), minimum=3)
    found = read_history(site.uri, proof=proof)
    assert (found.proven, found.signed) == (found.records[0].stamp, True)
    assert all(signature_name(it) in model.names() for it in site.records)


def test_no_pointer_moves_to_a_record_whose_signature_is_still_to_come(tmp_path, gcs):  # noqa: F811
    site = Site(InBucket(gcs), tmp_path)
    there: list[int] = []
    gcs.before("patch", lambda: there.append(sum(it.endswith(".sigstore.json") for it in site.model.names())))
    site.stamped(entry(content=b"new"))
    assert there == [4]


def test_the_same_stamp_again_is_signed_only_where_it_was_not(tmp_path):
    site = Site(InFolder(tmp_path), tmp_path)
    names = site.model.names()
    assert site.stamped(V2) == site.newest
    assert site.model.names() == names
    site.remove(signature_name(site.newest))
    assert site.stamped(V2) == site.newest  # made at the same second as before, it is the same record
    assert signature_name(site.newest) in site.model.names()
    assert read_history(site.uri, proof=Proof(keys=record_keys([str(site.public)]))).proven


def slots(uri: str) -> list[tuple[str, str, str]]:
    found = read_stamp(uri)
    assert found
    return [(it.role, it.variant, it.digest.hex[:4]) for it in found.images]


@pytest.mark.parametrize("attack", ["unsigned", "other key", "edited", "other model"])
def test_a_key_does_not_take_over_what_it_has_not_signed(tmp_path, attack):
    site = Site(InFolder(tmp_path), tmp_path)
    before = slots(site.uri)
    evil = entry("serve", "gpu", content=b"evil")
    if attack == "unsigned":
        write(site.uri, evil)
    elif attack == "other key":
        site.stamped(evil, site.other)
    elif attack == "edited":
        edited_with_its_signature(site)
    else:
        other_model(site)
    new = entry(variant="gpu", content=b"new")
    result = stamp(site.uri, new, manifest=b"{}", lock=b"lock", now=NOW, signer=record_signer(str(site.private)))
    expected = [*before, ("train", "gpu", new.digest.hex[:4])]
    assert slots(site.uri) == expected  # those of the newest record that the key signed, and the new one
    assert result.stamp.counter == 4
    assert result.reason_dropped == "the current record was not signed by this key"
    assert read_history(site.uri, proof=Proof(keys=record_keys([str(site.public)]), minimum=4)).proven


def test_a_record_that_was_hidden_while_another_got_its_number_is_refused(tmp_path, capsys):
    site = Site(InFolder(tmp_path), tmp_path)
    hidden = {name: site.get(name) for name in (site.newest, signature_name(site.newest))}
    for name in hidden:
        site.remove(name)
    site.point(site.records[1])
    site.stamped(entry("serve", content=b"new"))
    for name, data in hidden.items():
        site.put(name, data)
    site.point(site.newest)
    assert "another record 3 is signed too" in refused(site, capsys, "--minimum-record", "3")


def hidden(site: Site, count: int) -> dict[str, bytes]:
    """Remove the newest records, and point to the one before."""
    gone = [name for record in site.records[-count:] for name in (record, signature_name(record))]
    data = {name: site.get(name) for name in gone}
    for name in gone:
        site.remove(name)
    site.point(site.records[-count - 1] if count < len(site.records) else None)
    return data


@pytest.mark.parametrize(("place", "count"), [("folder", 1), ("folder", 2), ("folder", 3), ("bucket", 3)])
def test_two_histories_that_one_key_signed_are_refused_where_stamps_are_read_and_written(
    tmp_path, request, capsys, place, count
):
    """Records are hidden while training stamps, and put back: the first of both lines continue the same record."""
    model = InFolder(tmp_path) if place == "folder" else InBucket(request.getfixturevalue("gcs"))
    site = Site(model, tmp_path)
    kept = hidden(site, count)
    later = [entry("serve", content=b"%d" % number) for number in range(4)]
    line = [site.stamped(item, now=NOW + timedelta(hours=1 + number)) for number, item in enumerate(later)]
    assert run(["inspect", site.uri, "--signed", str(site.public)]) == 0
    capsys.readouterr()
    for name, data in kept.items():
        site.put(name, data)
    said = refused(site, capsys)
    assert f"{site.newest}, is not continued by record {4 - count}, {line[0]}" in said
    assert "move the other away" in said
    signer = record_signer(str(site.private))
    with pytest.raises(StampError, match=TWO_HISTORIES):
        check_stampable(site.uri, signer)
    item = entry(content=b"next")
    with open_model(site.uri) as model_found, pytest.raises(StampError, match=TWO_HISTORIES):
        writer(model_found, item, signer=signer).write()
    for name in kept:
        site.remove(name)
    site.stamped(item, now=NOW + timedelta(hours=9))
    assert run(["inspect", site.uri, "--signed", str(site.public), "--minimum-record", "5"]) == 0


def test_keys_that_name_each_other_have_one_history(tmp_path, capsys):
    """A key is replaced, or training and serving have keys of their own."""
    site = Site(InFolder(tmp_path), tmp_path)
    private, public = key_pair(tmp_path, "new")
    keys = {
        site.private: record_signer(str(site.private), [str(public)]),
        private: record_signer(str(private), [str(site.public)]),
    }
    both = Proof(keys=record_keys([str(public), str(site.public)]))
    for number, key in enumerate((private, site.private, private, private)):
        item = entry(content=b"%d" % number)
        check_stampable(site.uri, keys[key])
        site.records.append(stamp(site.uri, item, manifest=b"{}", lock=b"lock", now=NOW, signer=keys[key]).record)
        assert read_history(site.uri, proof=replace(both, minimum=4 + number)).proven
        assert run(["inspect", site.uri, "--signed", str(public if key == private else site.public)]) == 0
    for older in site.records[:-1]:
        site.point(older)
        with pytest.raises(VerifyError, match=r"and record [4-7] is signed too"):
            read_history(site.uri, proof=both)


def test_of_keys_that_do_not_name_each_other_no_older_record_passes(tmp_path):
    """Serving continues training's records, and training begins anew, as it does not know serving's key."""
    site = Site(InFolder(tmp_path), tmp_path)
    private, public = key_pair(tmp_path, "serving")
    signer = record_signer(str(private), [str(site.public)])
    serve = [
        stamp(site.uri, entry("serve", content=it), manifest=b"{}", lock=b"lock", now=NOW, signer=signer).record
        for it in (b"serve 1", b"serve 2")
    ]
    site.stamped(entry(content=b"new"))
    both = Proof(keys=record_keys([str(public), str(site.public)]))
    for record in (serve[1], serve[0]):
        site.point(record)
        with pytest.raises(VerifyError, match=f"{TWO_HISTORIES}|is signed too"):
            read_history(site.uri, proof=both)
    with pytest.raises(StampError, match="written without --signed for the other's key"):
        check_stampable(site.uri, signer)


@pytest.mark.parametrize("there", [True, False])
def test_training_does_not_continue_a_record_below_the_lowest_number(tmp_path, there):
    site = Site(InFolder(tmp_path), tmp_path)
    key, item = str(site.private), entry(content=b"next")
    hidden(site, 1 if there else 3)
    has = "newest record by this key is 2" if there else "has no record by this key"
    for call in (
        lambda signer: check_stampable(site.uri, signer),
        lambda signer: stamp(site.uri, item, manifest=b"{}", lock=b"lock", now=NOW, signer=signer),
    ):
        names = site.model.names()
        with pytest.raises(StampError, match=f"the model('s)? {has}, and --minimum-record requires 3 or later"):
            call(record_signer(key, minimum=3))
        assert site.model.names() == names
    signer = record_signer(key, minimum=2 if there else 0)
    check_stampable(site.uri, signer)
    made = stamp(site.uri, item, manifest=b"{}", lock=b"lock", now=NOW, signer=signer)
    assert made.stamp.counter == (3 if there else 1)


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_a_model_that_was_replaced_is_not_said_to_have_had_no_stamp(tmp_path, request, capsys, place, signed):
    site = Site(InFolder(tmp_path) if place == "folder" else InBucket(request.getfixturevalue("gcs")), tmp_path)
    site.model.replace(b"another")
    assert run(["inspect", site.uri, *(["--signed", str(site.public)] if signed else [])]) == (16 if signed else 15)
    said = " ".join(capsys.readouterr().err.split())
    assert "the model was replaced or copied after it was stamped at " in said
    assert "saved_model.pb is another file" in said
    assert NO_STAMP not in said


def test_the_working_folder_is_called_as_the_person_called_it(tmp_path, capsys, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "link/in").mkdir()
    site = Site(InFolder(tmp_path / "link"), tmp_path)
    monkeypatch.chdir(site.uri)
    inspect = ["inspect", ".", "--signed", str(site.public)]
    monkeypatch.setenv("PWD", site.uri)
    assert run(inspect) == 0
    monkeypatch.chdir(tmp_path / "real/in")
    monkeypatch.setenv("PWD", str(tmp_path / "link/in"))
    assert run(["inspect", "../model", "--signed", str(site.public)]) == 16  # as the kernel goes up: to real/model
    monkeypatch.chdir(tmp_path / "real/model")
    for other in ("", ".", str(tmp_path), "/nowhere"):  # no folder, or another
        monkeypatch.setenv("PWD", other)
        capsys.readouterr()
        assert run(inspect) == 16, other
        assert NOT_THIS in " ".join(capsys.readouterr().err.split())
    monkeypatch.delenv("PWD")
    assert run(inspect) == 16


def test_a_path_with_dots_behind_a_link_is_the_kernels(tmp_path, capsys):
    site = Site(InFolder(tmp_path), tmp_path)
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "in").mkdir(parents=True)
    shutil.copytree(site.path(""), elsewhere / site.path("").name)
    (tmp_path / "link").symlink_to(elsewhere / "in")
    uri = f"{tmp_path}/link/../{site.path('').name}"
    code = run(["inspect", uri, "--signed", str(site.public)])
    out, err = capsys.readouterr()
    assert (code, out) == (16, ""), err
    assert NOT_THIS in " ".join(err.split())


def test_a_link_behind_dots_is_still_the_place_that_was_named(tmp_path, capsys, monkeypatch):
    site = Site(InFolder(tmp_path), tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "linked").symlink_to(site.path(""))
    monkeypatch.chdir(tmp_path / "sub")
    assert run(["inspect", f"../{site.path('').name}", "--signed", str(site.public)]) == 0
    capsys.readouterr()
    assert run(["inspect", "../linked", "--signed", str(site.public)]) == 16
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("value", ["1e400", "-1e400", "NaN", "[]", "null"])
def test_a_pointer_with_an_impossible_number_is_an_error(tmp_path, capsys, value):
    site = Site(InFolder(tmp_path), tmp_path)
    site.put(PUT, re.sub(rb'"metageneration": ?"?\d+"?', b'"metageneration":' + value.encode(), site.get(PUT)))
    assert run(["inspect", site.uri, "--signed", str(site.public)]) == 15
    assert "the metadata of the model cannot be read" in capsys.readouterr().err


def test_a_key_does_not_sign_a_rollback(tmp_path):
    site = Site(InFolder(tmp_path), tmp_path)
    site.point(site.records[1])
    site.stamped(entry(variant="gpu", content=b"new"))
    found = read_stamp(site.uri)
    assert found
    assert (found.counter, [it.digest for it in found.images if it.role == "serve"]) == (4, [V2.digest])


def test_an_unsigned_model_is_signed_with_the_new_image_alone(tmp_path):
    model = InFolder(tmp_path)
    write(model.uri, entry("serve", content=b"unsigned"))
    write(model.uri, entry())
    private, public = key_pair(tmp_path)
    signer = record_signer(str(private))
    result = stamp(model.uri, entry(), manifest=b"{}", lock=b"lock", now=NOW, signer=signer)
    assert [it.role for it in result.stamp.images] == ["train"]
    assert [it.role for it in result.dropped] == ["serve"]
    assert read_history(model.uri, proof=Proof(keys=record_keys([str(public)]))).proven


def test_records_of_a_key_that_is_named_are_continued(tmp_path):
    site = Site(InFolder(tmp_path), tmp_path)
    _, mine = key_pair(tmp_path, "mine")
    signer = record_signer(str(tmp_path / "mine.pem"), [str(site.public)])
    result = stamp(site.uri, entry("serve", "gpu", content=b"x"), manifest=b"{}", lock=b"lock", now=NOW, signer=signer)
    assert ([it.role for it in result.stamp.images], result.stamp.counter) == (["serve", "serve", "train"], 4)
    assert read_history(site.uri, proof=Proof(keys=record_keys([str(mine)]))).proven


def test_stamps_at_the_same_time_lose_nothing_of_each_other(tmp_path, monkeypatch):
    site = Site(InFolder(tmp_path), tmp_path)
    usual, theirs = DirectoryStore.patch, entry("train", "gpu", content=b"theirs")

    def patch(self, *given: Any) -> None:
        monkeypatch.setattr(DirectoryStore, "patch", usual)
        site.stamped(theirs)  # after ours was signed, and before its pointer is set
        usual(self, *given)

    monkeypatch.setattr(DirectoryStore, "patch", patch)
    site.stamped(entry("serve", "gpu", content=b"ours"))
    found = read_history(site.uri, proof=Proof(keys=record_keys([str(site.public)]))).proven
    assert found
    assert {it.digest for it in found.images} == {theirs.digest, Digest.of(b"ours"), V2.digest, entry().digest}


def test_a_stamp_that_broke_off_is_told_and_the_next_one_mends_it(tmp_path, monkeypatch, capsys):
    site = Site(InFolder(tmp_path), tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr(DirectoryStore, "patch", lambda *given: (_ for _ in ()).throw(StampError("no disk")))
        with pytest.raises(StampError):
            site.stamped(entry(content=b"half"))
    assert "or the newer one broke off: stamp the model again" in refused(site, capsys)
    site.stamped(entry(content=b"whole"))
    assert run(["inspect", site.uri, "--signed", str(site.public), "--minimum-record", "5"]) == 0


def test_a_rival_that_signs_too_is_a_conflict(tmp_path, monkeypatch):
    site = Site(InFolder(tmp_path), tmp_path)
    usual = DirectoryStore.patch

    def patch(self, *given: Any) -> None:
        monkeypatch.setattr(DirectoryStore, "patch", usual)
        site.stamped(entry(content=b"theirs"))
        usual(self, *given)

    monkeypatch.setattr(DirectoryStore, "patch", patch)
    with pytest.raises(StampConflict):
        site.stamped(entry(content=b"ours"))


def test_what_lies_in_the_place_of_a_signature_keeps_the_pointer(tmp_path, monkeypatch):
    """Somebody who knows the record's name writes there first."""
    site = Site(InFolder(tmp_path), tmp_path)
    usual = DirectoryStore.create

    def create(self, name: str, data: bytes) -> None:
        usual(self, name, b"garbage" if name.endswith(".sigstore.json") else data)

    monkeypatch.setattr(DirectoryStore, "create", create)
    with pytest.raises(StampError, match="the signature read back is not valid"):
        site.stamped(entry(content=b"new"))
    assert site.model.metadata()["envbuild-record"] == site.newest


def test_records_from_before_there_was_a_counter_are_read_and_stay_as_they_are(tmp_path):
    model = InFolder(tmp_path)
    write(model.uri)
    stamped_now = read_stamp(model.uri)
    assert stamped_now
    old = record_bytes(replace(stamped_now, counter=0, schema_version="1.0"))
    assert b"counter" not in old
    found = read_record(record_name(old), old)
    assert (found.counter, record_bytes(found)) == (0, old)


def test_inspect_says_the_number_and_whether_it_is_signed(tmp_path, capsys):
    site = Site(InFolder(tmp_path), tmp_path)

    def said(*more: str) -> tuple[Any, Any]:
        assert run(["inspect", site.uri, "--json", *more]) == 0
        value = json.loads(capsys.readouterr().out)
        return value["counter"], value["signed"]

    assert (said(), said("--signed", str(site.public))) == ((3, None), (3, True))
    assert run(["inspect", site.uri]) == 0
    out = capsys.readouterr().out
    assert ", record 3" in out
    assert "signed; --signed KEY checks by whom" in out
    write(site.uri, entry("serve", "gpu"))
    assert said() == (4, False)


def test_a_lowest_number_without_a_key_is_refused(tmp_path, capsys):
    site = Site(InFolder(tmp_path), tmp_path)
    assert run(["inspect", site.uri, "--minimum-record", "1"]) == 2
    assert "give --signed KEY too" in capsys.readouterr().err


def test_the_signature_is_one_that_others_can_check(tmp_path):
    site = Site(InFolder(tmp_path), tmp_path)
    envelope = json.loads(site.get(signature_name(site.newest)))["dsseEnvelope"]
    said = json.loads(base64.b64decode(envelope["payload"]))
    assert (envelope["payloadType"], said["predicateType"]) == (IN_TOTO, RECORD)
    assert said["subject"] == [{"name": "_", "digest": {"sha256": Digest.of(site.get(site.newest)).hex}}]


@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_another_anchor_does_not_begin_another_history(tmp_path, request, capsys, place):
    """An empty saved_model.pb lies beside model.keras while training stamps, and is removed afterwards."""
    model = InFolder(tmp_path) if place == "folder" else InBucket(request.getfixturevalue("gcs"))
    site = Site(model, tmp_path)
    for name in [*site.records, *map(signature_name, site.records), *([PUT] if place == "folder" else [])]:
        site.remove(name)
    site.put("model.keras", b"weights")
    site.remove("saved_model.pb")
    site.stamped(entry())
    site.stamped(V1)
    site.put("saved_model.pb", b"")
    says = "saved_model.pb has no stamp; the records in envbuild/, the newest of 2026-"
    assert says in (said := refused(site, capsys))
    assert "are for model.keras, so no key can have signed it" in said
    new = [site.stamped(entry(content=b"new")), site.stamped(V2)]
    key, other = ["--signed", str(site.public)], entry("serve", "gpu", content=b"more")
    assert run(["inspect", site.uri, *key, "--minimum-record", "4"]) == 0
    assert [it.stamp.counter for it in read_history(site.uri).records if it.stamp] == [4, 3, 2, 1]
    assert [it[:2] for it in slots(site.uri)] == [("serve", "cpu"), ("train", "cpu")]
    capsys.readouterr()
    site.remove("saved_model.pb")
    assert "record 2 of the model, and record 4 is signed too" in refused(site, capsys)
    for record in new[1:]:
        site.remove(record)
    assert PUT_BACK in refused(site, capsys, "--minimum-record", "2")
    site.stamped(other)
    assert run(["inspect", site.uri, *key, "--minimum-record", "4"]) == 0


def test_an_object_of_the_folders_name_does_not_begin_another_history(tmp_path, gcs):  # noqa: F811
    site = Site(InBucket(gcs), tmp_path)
    gcs.put("models", "runs/1", b"")
    with pytest.raises(StampError, match="an object has the same name as this folder"):
        site.stamped(entry(content=b"new"))
    assert run(["inspect", f"{site.uri}/", "--signed", str(site.public)]) == 0


@pytest.mark.parametrize("copy", ["manifest", "lock", "record"])
@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_what_lies_in_the_place_of_a_copy_is_named_and_the_pointer_stays(tmp_path, request, place, copy):
    model = InFolder(tmp_path) if place == "folder" else InBucket(request.getfixturevalue("gcs"))
    site = Site(model, tmp_path)
    newest = read_stamp(site.uri)
    assert newest
    image = newest.images[0]
    name = {"manifest": manifest_name(image), "lock": lock_name(image), "record": site.newest}[copy]
    kept = site.get(name)
    for junk in (b"[]", b"x" * 1000):
        site.put(name, junk)
        if copy == "record":
            site.point(site.records[1])
        for item in (V2,) if copy == "record" else (V2, entry(content=b"new")):
            with pytest.raises(StampError, match=re.escape(f"{name} has other content")) as error:
                site.stamped(item)
            assert error.value.todo == f"remove {name} and stamp again"
    site.remove(name)
    assert site.stamped(V2) == site.newest
    assert site.get(name) == kept


def test_a_record_that_an_access_list_hides_is_not_skipped_as_if_it_was_removed(tmp_path, gcs, capsys):  # noqa: F811
    site = Site(InBucket(gcs), tmp_path)
    site.point(site.records[1])
    gcs.fail("get", name=site.newest, status=403, times=99, message="x does not have storage.objects.get access to it.")
    assert "permission storage.objects.get is missing" in refused(site, capsys)
    with pytest.raises(StampError) as caught:
        site.stamped(entry(content=b"new"))
    assert "storage.objects.get" in caught.value.what


def content(**files: str) -> ModelFiles:
    found = tuple(StampedFile(path=name, size=1, sha256=Digest.of(it.encode()).hex) for name, it in files.items())
    return ModelFiles(files=found, file_count=len(found))


def test_images_of_other_model_files_are_not_carried_into_the_record_of_a_new_training(tmp_path):
    """The file that bears the stamp is the same, and so is training's image."""
    site = Site(InFolder(tmp_path), tmp_path)
    signer = record_signer(str(site.private))

    def trained(**files: str) -> Any:
        return stamp(
            site.uri, entry(), manifest=b"{}", lock=b"lock", now=NOW, content=content(**files), signer=signer
        )  # fmt: skip

    for files in ({"w": "1"}, {"w": "1", "more": "1"}):  # the records before know no files
        assert [it.role for it in trained(**files).stamp.images] == ["serve", "train"]
    done = trained(w="2", more="1")
    assert [it.role for it in done.stamp.images] == ["train"]
    assert [it.slot[0] for it in done.dropped] == ["serve"]
    assert done.reason_dropped == "training stamped another model or environment"


@pytest.mark.parametrize("how", ["file", "./file", "pointer"])
@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_what_no_key_signed_does_not_choose_the_file_that_bears_the_stamp(tmp_path, request, capsys, place, how):
    """A record, or a pointer, names a file that no training changes; so the next model would have the first's stamp."""
    model = InFolder(tmp_path) if place == "folder" else InBucket(request.getfixturevalue("gcs"))
    site = Site(model, tmp_path)
    value = json.loads(site.get(site.newest))
    for name in [*site.records, *map(signature_name, site.records), *([PUT] if place == "folder" else [])]:
        site.remove(name)
    site.remove("saved_model.pb")
    site.put("model.keras", b"weights")
    site.put("config.json", b"{}")
    bearer = "./config.json" if how == "./file" else "config.json"
    value["anchor"] = {"name": bearer, "generation": str(Digest.of(b"{}"))}
    data = json.dumps(value).encode()
    site.put(record_name(data), data)
    if how == "pointer" and place == "folder":
        metadata = {"envbuild-record": record_name(data)}
        state = {"generation": str(Digest.of(b"{}")), "metageneration": "1", "metadata": metadata}
        site.put(PUT, json.dumps({"objects": {bearer: state}}).encode())
    site.stamped(entry())
    record = site.stamped(V1)
    assert read_record(record, site.get(record)).anchor.name == "model.keras"
    assert run(["inspect", site.uri, "--signed", str(site.public)]) == 0
    site.put("model.keras", b"other weights")
    capsys.readouterr()
    assert "model.keras is another file" in refused(site, capsys)
