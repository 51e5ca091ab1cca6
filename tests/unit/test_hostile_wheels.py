"""Every wheel of the corpus: the hostile ones are refused, each with its reason, and the odd ones installed."""

import base64
import csv
import hashlib
import io
import posixpath
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from envbuild.errors import WheelError
from envbuild.image.layers.writer import LayerFile, write_layer
from envbuild.wheel.archive import WheelArchive
from envbuild.wheel.install import installed_files
from tests.corpus import FILENAME, HOSTILE, ODD, SOURCE, parts
from tests.fakes.wheels import record_line
from tests.fakes.zips import archive
from tests.layers import SCHEME, entries_of, layer_of

SITE = "opt/env/lib/python3.11/site-packages"


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_wheels_are_refused_each_with_its_reason(case, tmp_path):
    make, why = HOSTILE[case]
    (tmp_path / FILENAME).write_bytes(make())
    with pytest.raises(WheelError, match=why) as refused:
        layer_of(tmp_path / FILENAME)
    assert refused.value.exit_code == 13
    assert refused.value.where == FILENAME
    assert refused.value.todo
    assert len(str(refused.value)) < 1000
    assert str(refused.value).replace("\n", "").isprintable()


def expected(path: Path) -> dict[str, bytes]:
    """What the wheel says it has, as zipfile reads it."""
    with zipfile.ZipFile(path) as opened:
        return {f"{SITE}/{info.filename}": opened.read(info) for info in opened.infolist() if not info.is_dir()}


@pytest.mark.parametrize("case", ODD)
def test_odd_wheels_are_installed_whole(case, tmp_path):
    path = tmp_path / FILENAME
    path.write_bytes(ODD[case]())
    found = entries_of(layer_of(path))
    assert all(name in ("opt", "opt/env") or name.startswith("opt/env/") for name in found)
    own = {f"{SITE}/hostile-1.dist-info/{name}" for name in ("RECORD", "INSTALLER", "REQUESTED")}
    files = {name: data for name, data in found.items() if data is not None and name not in own}
    assert files == {name: data for name, data in expected(path).items() if name not in own}
    assert own <= found.keys()
    check_record(found)


def check_record(found: dict[str, bytes | None]) -> None:
    """What RECORD says afterwards is true of every file, whatever it said before."""
    record = found[f"{SITE}/hostile-1.dist-info/RECORD"] or b""
    rows = {posixpath.normpath(f"{SITE}/{row[0]}"): row[1:] for row in csv.reader(io.StringIO(record.decode()))}
    assert rows.keys() == {name for name, data in found.items() if data is not None}
    for name, (digest, size) in rows.items():
        data = found[name] or b""
        if not name.endswith("/RECORD"):
            hashed = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert (digest, size) == (f"sha256={hashed}", str(len(data)))


def test_a_hash_of_record_that_is_wrong_is_not_taken_for_true(tmp_path):
    told = f"hostile.py,sha256={'a' * 43},{len(SOURCE)}\n"
    line = record_line("hostile.py", SOURCE)
    padded = "=,".join(line.rsplit(",", 1))  # as in CatBoost 1.0
    for text, true in ((told, False), (line, True), (padded, True)):
        (tmp_path / FILENAME).write_bytes(archive(parts(record=text)))
        with WheelArchive(tmp_path / FILENAME, FILENAME) as wheel, ThreadPoolExecutor(1) as pool:
            wheel.verify_record = True
            files = [LayerFile(file, wheel) for file in installed_files(wheel, SCHEME)]
            write_layer(io.BytesIO(), SCHEME.prefix, files, pool)
            assert ("hostile.py" in wheel.verified_members) == true


def test_a_refused_wheel_leaves_nothing_open(tmp_path):
    before = set(Path("/proc/self/fd").iterdir())
    for make, _ in list(HOSTILE.values())[:60]:
        (tmp_path / FILENAME).write_bytes(make())
        with pytest.raises(WheelError):
            layer_of(tmp_path / FILENAME)
    assert set(Path("/proc/self/fd").iterdir()) <= before


def test_the_corpus_can_be_written_to_a_folder(tmp_path, monkeypatch, capsys):
    from tests import corpus

    monkeypatch.setattr(corpus, "HOSTILE", dict(list(HOSTILE.items())[:3]))
    monkeypatch.setattr(corpus, "ODD", {"plain": ODD["plain"]})
    monkeypatch.setattr("sys.argv", ["corpus", str(tmp_path)])
    corpus.main()
    assert len(list(tmp_path.glob(f"*/{FILENAME}"))) == 4
    assert "3 that must be refused and 1 that must not" in capsys.readouterr().out
