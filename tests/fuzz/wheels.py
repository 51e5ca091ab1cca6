"""Wheels for the fuzzer: as bytes, and as valid ones of which some fields lie."""

import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from envbuild.errors import WheelError
from tests.corpus import FILENAME, HOSTILE, ODD, entry_point, parts
from tests.fakes.zips import Part, archive
from tests.layers import SCHEME, entries_of, layer_of

SITE = f"opt/env/{SCHEME.site_packages}"
_LARGEST = 16_000
_MOST = 1 << 20
"""Bytes of a part that was repeated, maybe several times."""
_FIELDS = ("crc", "packed", "size", "method", "flags", "name", "extra", "offset", "mode", "comment", "disk")
_TEXTS = ("name", "extra", "comment")
_LIES = ("disk", "first_disk", "here", "entries", "size", "start", "comment_length")
_WIDTH = {"crc": 32, "packed": 32, "size": 32, "offset": 32, "start": 32}


def wheel_seeds() -> list[bytes]:
    """The corpus, without what is large."""
    made = (make() for make in (*(make for make, _ in HOSTILE.values()), *ODD.values(), entry_point("tool")))
    return [data for data in made if len(data) < _LARGEST]


def read_a_wheel(data: bytes) -> None:
    """A wheel is refused with a reason, or its layer has just what other readers find in the wheel, below /opt/env."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / FILENAME
        path.write_bytes(data)
        try:
            blob = layer_of(path)
        except WheelError as error:
            if error.where != FILENAME or not error.what.startswith("wheel refused: "):
                raise AssertionError(str(error)) from error
            return
        found = entries_of(blob)
        assert all(name in ("opt", "opt/env") or name.startswith("opt/env/") for name in found)
        assert not any(part in ("..", ".", "") or part.startswith(".wh.") for name in found for part in name.split("/"))
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                _check_same(info, archive, found)


def _check_same(info: zipfile.ZipInfo, archive: zipfile.ZipFile, found: dict[str, bytes | None]) -> None:
    made_anew = info.filename.rpartition("/")[2] in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
    if info.is_dir():  # installers make the folder, and read nothing of what its entry holds
        return
    content = archive.read(info)
    if not made_anew and ".data/" not in info.filename:
        assert found[f"{SITE}/{info.filename}"] == content, info.filename


def read_changed_parts(data: bytes) -> None:
    """The same for a wheel that is right but for a few fields, which the bytes choose."""
    read_a_wheel(changed_wheel(data))


def changed_wheel(data: bytes) -> bytes:
    """A valid wheel, changed as the bytes say: each change is a part, a field and a value."""
    given = iter(data)
    made = parts(
        Part(name=b"pkg/data.bin", data=bytes(range(256)) * 3, method=0),
        Part(name=b"pkg/empty", data=b""),
        Part(name=b"hostile-1.data/scripts/tool", data=b"#!python\nprint()\n"),
        Part(name=b"hostile-1.data/data/share/x", data=b"x"),
        info={"entry_points.txt": b"[console_scripts]\nx = hostile:main\n"},
    )
    whole: dict = {}
    for _ in range(6):
        which = next(given, 255)
        if which == 255:
            break
        if which % 16 < len(made):
            made[which % 16] = _changed(made[which % 16], which // 16, given)
        else:
            _change_whole(whole, given)
    return archive(made, **whole)


def _changed(part: Part, how: int, given: Iterator[int]) -> Part:
    name = _FIELDS[next(given, 0) % len(_FIELDS)]
    text, number = _text(given), _number(given, _WIDTH.get(name, 16))
    value = {name: text if name in _TEXTS else number}
    both = {"local": {**part.local, **value}, "central": {**part.central, **value}}
    return replace(
        part,
        **(
            {"local": both["local"]},
            {"central": both["central"]},
            both,
            {"name": text or b"x"},
            {"data": text, "local": {**part.local}},
            {"packed": text},
            {"packed": part.stored + text},
            {"behind": text},
            {"zip64": True},
            {"streamed": True},
            {"streamed": True, "descriptor": text},
            {"method": (0, 8, 12, 9)[number % 4]},
            {"mode": number & 0xFFFF},
            {"packed": part.stored[: number % (len(part.stored) + 1)]},
            {"zip64": True, **both},
            {"data": (part.data * (number % 64))[:_MOST]},
        )[how % 16],
    )


def _change_whole(whole: dict, given: Iterator[int]) -> None:
    how, lie = next(given, 0), _LIES[next(given, 0) % len(_LIES)]
    match how % 6:
        case 0:
            whole["before"] = _text(given)
        case 1:
            whole["between"] = _text(given)
        case 2:
            whole["behind"] = _text(given)
        case 3:
            whole["comment"] = _text(given)
        case 4:
            whole["zip64"] = {
                ("record", "entries", "size", "start", "place", "disks")[how // 6 % 6]: _number(given, 32)
            }
        case _:
            whole[lie] = _number(given, _WIDTH.get(lie, 16))


def _text(given: Iterator[int]) -> bytes:
    return bytes(next(given, 0) for _ in range(next(given, 0) % 48))


def _number(given: Iterator[int], bits: int) -> int:
    return int.from_bytes(bytes(next(given, 0) for _ in range(bits // 8)), "little")
