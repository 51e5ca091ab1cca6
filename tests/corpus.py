"""Wheels that must be refused, each with its reason, and odd ones that must not: `python -m tests.corpus FOLDER` writes them."""

import struct
import sys
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.deflating import FORGED, text
from tests.deflating import deflated as in_blocks
from tests.fakes.wheels import record_line
from tests.fakes.zips import FULL, Part, archive, deflated, extra_field, local

FILENAME = "hostile-1-py3-none-any.whl"
INFO = "hostile-1.dist-info"
MODULE, SOURCE = b"hostile.py", b"answer = 42\n" * 40
WHEEL = b"Wheel-Version: 1.0\nGenerator: corpus\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
METADATA = b"Metadata-Version: 2.1\nName: hostile\nVersion: 1\n"
Make = Callable[[], bytes]


def parts(
    *more: Part, info: Mapping[str, bytes | None] | None = None, record: str | None = None, **module
) -> list[Part]:
    """The parts of a wheel; `module` changes what is said of its one module, `info` its metadata (None leaves out)."""
    described: dict[str, bytes | None] = {"METADATA": METADATA, "WHEEL": WHEEL, **(info or {})}
    named = {f"{INFO}/{name}": data for name, data in described.items() if data is not None}
    found = [Part(name=MODULE, data=SOURCE, **module), *more]
    found += [Part(name=name.encode(), data=data) for name, data in named.items()]
    if "RECORD" not in described:
        rows = [
            record_line(part.name.decode("utf-8", "replace"), part.data) for part in found if part.name[-1:] != b"/"
        ]
        text = "\n".join([*rows, f"{INFO}/RECORD,,", ""]) if record is None else record
        found.append(Part(name=f"{INFO}/RECORD".encode(), data=text.encode()))
    return found


def more(name: bytes | str, data: bytes = b"x", **how) -> Make:
    """A wheel with one more entry."""
    encoded = name if isinstance(name, bytes) else name.encode()
    return lambda: archive(parts(Part(name=encoded, data=data, **how)))


def module(**how) -> Make:
    """A wheel whose module is told of in another way."""
    return lambda: archive(parts(**how))


def whole(**how) -> Make:
    """A wheel whose archive is told of in another way."""
    return lambda: archive(parts(), **how)


def info(**files: bytes | None) -> Make:
    """A wheel with other metadata."""
    return lambda: archive(parts(info={name.replace("_txt", ".txt"): data for name, data in files.items()}))


def record(text: str) -> Make:
    return lambda: archive(parts(record=text))


def entry_point(name: str, target: str = "hostile:main") -> Make:
    return info(entry_points_txt=f"[console_scripts]\n{name} = {target}\n".encode())


def twice(*names: str) -> Make:
    return lambda: archive(
        parts(*(Part(name=name.encode(), data=name.encode() * index) for index, name in enumerate(names)))
    )


def overlapping() -> bytes:
    """Two entries of the directory that share one stream, as the bombs of overlapping files do."""
    return archive(parts(Part(name=b"again.py", data=SOURCE, local={"name": MODULE}, central={"offset": 0})))


def inside() -> bytes:
    """An entry that lies in the data of another, header and all."""
    hidden = Part(name=b"hidden.py", data=b"hidden")
    outer = Part(name=b"outer.bin", data=local(hidden), method=0)
    listed = Part(name=b"hidden.py", data=b"hidden", central={"offset": archive(parts(outer)).index(local(hidden))})
    return archive(parts(outer, listed))


def second_archive() -> bytes:
    """An end inside of the comment of another: some readers take the first, some the last."""
    return whole(comment=archive([Part(name=b"evil.py", data=b"evil")]))()


def joined() -> bytes:
    return archive([Part(name=b"evil.py", data=b"evil")]) + archive(parts())


def flipped(place: int) -> Make:
    """A wheel with one bit of the module's stream turned over."""
    stream = bytearray(deflated(SOURCE))
    stream[place] ^= 1
    return module(packed=bytes(stream))


def nested(depth: int) -> bytes:
    """Headers of as many messages inside of each other."""
    return WHEEL + b"".join(b'Content-Type: multipart/mixed; boundary="%d"\n\n--%d\n' % (n, n) for n in range(depth))


def bomb() -> bytes:
    compressor = zlib.compressobj(1, zlib.DEFLATED, -15)
    megabyte = compressor.compress(bytes(1 << 20)) + compressor.flush(zlib.Z_FULL_FLUSH)
    said = {"size": 1025 << 20}
    return archive(parts(packed=megabyte * 1025 + b"\x03\x00", local=said, central=said, record=""))


def of_size(size: int) -> Make:
    """A wheel whose directory, local header and RECORD agree on another size than the module has."""
    return lambda: archive(
        parts(local={"size": size}, central={"size": size}, record=f"hostile.py,sha256={'a' * 43},{size}\n")
    )


def unicode_path(name: bytes) -> bytes:
    return extra_field(0x7075, b"\x01" + struct.pack("<L", zlib.crc32(MODULE)) + name)


_STREAM = deflated(SOURCE)
_BLOCKS = text(0, 300), text(1, 300)
_INCOMPLETE = bytes.fromhex("ecc13101000000c220fba75e0a3f7000000000c05d000000ffff0380")
"""What ISA-L reads as 5,000 zeros, and neither zlib nor Go's library takes."""
_ABSOLUTE, LEAVES, _TWICE = "is absolute or has forbidden characters", "leaves its folder", "is in the archive twice"
_WHITEOUT, _LONG, _KIND = (
    "means a deletion in an image layer",
    "is longer than a file system takes",
    "is a link or device",
)
_NAMES, _SIZES = (
    "local header and directory disagree on name or method",
    "local header and directory disagree on size or CRC",
)
_BOTH, OWN, POINT = "is a file and a folder", "would replace the environment's", "does not name a callable"
_ARCHIVE = "not a readable zip archive"
_CRC = "has another size or CRC"
_NOWHERE = "belong to no entry"
_SHORTER = "does not end where the archive says"
_FEATURES = "features that few readers support"
_RECORD = "RECORD cannot be read"
_RELEASE = "METADATA is that of another release"
UNKNOWN = "no known folder"
_DESCRIPTOR = "data descriptor and directory disagree"
_HEADERLESS = "has no local header"
_PLACES = "installed as a file and as a folder"
_END, _END64, _BEHIND = (
    "has no directory where its end says",
    "has no ZIP64 end where it says",
    "behind the end that it states",
)

HOSTILE: dict[str, tuple[Make, str]] = {
    "absolute": (more("/etc/passwd"), _ABSOLUTE),
    "drive": (more("C:/evil.py"), _ABSOLUTE),
    "drive alone": (more("C:evil.py"), _ABSOLUTE),
    "share": (more("\\\\host\\share\\evil.py"), _ABSOLUTE),
    "backslash": (more("pkg\\..\\evil.py"), _ABSOLUTE),
    "newline": (more("pkg/a\nb.py"), _ABSOLUTE),
    "zero": (more(b"evil.py\0.txt"), _ABSOLUTE),
    "escape sequence": (more("pkg/\x1b[2Jx.py"), _ABSOLUTE),
    "writing direction": (more("pkg/a\u202ecod.py"), _ABSOLUTE),
    "parent": (more("../evil.py"), LEAVES),
    "far parent": (more("../" * 40 + "etc/passwd"), LEAVES),
    "inner parent": (more("pkg/../../evil.py"), LEAVES),
    "parent at the end": (more("pkg/.."), LEAVES),
    "folder of the parent": (more("../evil/", b"", mode=0o40755), LEAVES),
    "dot": (more("./evil.py"), LEAVES),
    "double slash": (more("pkg//evil.py"), LEAVES),
    "nothing as a name": (more(b""), LEAVES),
    "whiteout": (more("pkg/.wh.other"), _WHITEOUT),
    "opaque": (more(".wh..wh..opq"), _WHITEOUT),
    "folder of a whiteout": (more(".wh.pkg/x"), _WHITEOUT),
    "long name": (more("x" * 256), _LONG),
    "long name in bytes": (more("\u00e9" * 128), _LONG),
    "long path": (more("/".join(["x" * 200] * 20)), _LONG),
    "not utf-8": (more(b"\xff\xfe.py", local={"flags": 0x800}, central={"flags": 0x800}), _ARCHIVE),
    "twice": (twice("a.py", "a.py"), _TWICE),
    "file and folder": (twice("a", "a/b"), _BOTH),
    "file and empty folder": (lambda: archive(parts(Part(name=b"a", data=b"1"), Part(name=b"a/", mode=0o40755))), _BOTH),
    "file and folder when installed": (twice("hostile-1.data/purelib/a", "a/b"), _PLACES),
    "two files at one place": (twice("hostile-1.data/purelib/a", "a"), "where another of its files is"),
    "link": (more("link", b"/etc/passwd", mode=0o120777), _KIND),
    "device": (more("device", b"", mode=0o020666), _KIND),
    "pipe": (more("pipe", b"", mode=0o010666), _KIND),
    "folder without a slash": (more("folder", b"", mode=0o040755), _KIND),
    "folder that is a link": (more("folder/", b"", mode=0o120777), _KIND),
    "folder with content": (more("folder/", b"x", mode=0o040755), "is a folder with content"),
    "other name": (module(local={"name": b"evil.py"}), _NAMES),
    "other case": (module(local={"name": b"HOSTILE.py"}), _NAMES),
    "other encoding": (more("\u00e9.py", local={"flags": 0}), _NAMES),
    "name that cannot be decoded": (more("\ufffd.py", local={"name": b"\xff.py"}), _NAMES),
    "unicode name beside": (module(local={"extra": unicode_path(b"evil.py")}), _NAMES),
    "unicode name in the directory": (module(central={"extra": unicode_path(b"evil.py")}), _NAMES),
    "other method": (module(local={"method": 0}), _NAMES),
    "encrypted beside": (module(local={"flags": 1}), _NAMES),
    "other size": (module(local={"size": 7}), _SIZES),
    "other packed size": (module(local={"packed": 7}), _SIZES),
    "other crc": (module(local={"crc": 7}), _SIZES),
    "other ZIP64 sizes": (module(local={"extra": extra_field(1, struct.pack("<QQ", 7, 7))}), _SIZES),
    "ZIP64 sizes that are missing": (module(local={"size": FULL, "packed": FULL}), _SIZES),
    "ZIP64 field cut off": (module(local={"extra": b"\x01\x00\x10\x00abc"}), "extra field that is cut off"),
    "descriptor of another size": (module(streamed=True, descriptor=struct.pack("<3L", zlib.crc32(SOURCE), len(_STREAM), 7)), _DESCRIPTOR),
    "no descriptor": (module(streamed=True, descriptor=b""), _DESCRIPTOR),
    "no local header": (module(local={"signature": b"PK\x03\x05"}), _HEADERLESS),
    "local header beyond the end": (module(central={"offset": 1 << 30}), _HEADERLESS),
    "codes that are incomplete": (more("zeros.bin", bytes(5000), packed=_INCOMPLETE), "is damaged"),
    "stream cut off": (module(packed=_STREAM[:-3]), _SHORTER),
    "stream goes on": (module(packed=_STREAM + b"tail"), r"ends before the archive says|does not end where"),
    "second stream behind": (module(packed=_STREAM + _STREAM), r"ends before the archive says|does not end where"),
    "no stream": (module(packed=b""), _SHORTER),
    "damaged start": (module(packed=b"\xff" * 20), "is damaged"),
    "damaged stream": (flipped(len(_STREAM) // 2), r"is damaged|has another size or CRC|does not end"),
    "wrong crc": (module(local={"crc": 7}, central={"crc": 7}), _CRC),
    "wrong crc of a stored file": (module(method=0, local={"crc": 7}, central={"crc": 7}), _CRC),
    "wrong crc of an empty file": (more("empty", b"", local={"crc": 7}, central={"crc": 7}), _CRC),
    "smaller than said": (of_size(999), _CRC),
    "larger than said": (of_size(7), _CRC),
    "something in an empty file": (more("empty", b"", packed=deflated(b"full")), r"does not end|has another size or CRC"),
    "stored with two sizes": (module(method=0, local={"size": 7}, central={"size": 7}), "its two sizes differ"),
    "encrypted": (module(local={"flags": 1}, central={"flags": 1}), "is encrypted"),
    "patched data": (module(local={"flags": 0x20}, central={"flags": 0x20}), _FEATURES),
    "masked header": (module(local={"flags": 0x2000}, central={"flags": 0x2000}), _FEATURES),
    "deflate64": (module(method=9), "compression method 9"),
    "bzip2": (module(method=12), "compression method 12"),
    "lzma": (module(method=14), "compression method 14"),
    "zstandard": (module(method=93), "compression method 93"),
    "unknown method": (module(method=77), "compression method 77"),
    "bomb": (bomb, "is a bomb"),
    "bomb that only says so": (module(local={"size": 1 << 31}, central={"size": 1 << 31}), "is a bomb"),
    "shared stream": (overlapping, rf"overlaps|{_NAMES}"),
    "entry inside of another": (inside, "overlaps what comes behind it"),
    "bytes before": (whole(before=b"#!/bin/sh\nexit\n"), "bytes before its first entry"),
    "bytes before, and not counted": (lambda: b"#!/bin/sh\nexit\n" + archive(parts()), _END),
    "bytes between entries": (module(behind=b"between"), _NOWHERE),
    "hidden entry": (module(behind=archive([Part(name=b"evil.py", data=b"e")])[:40]), _NOWHERE),
    "bytes before the directory": (whole(between=b"between"), _NOWHERE),
    "bytes behind": (whole(behind=b"behind"), _BEHIND),
    "comment cut off": (whole(comment_length=9), _BEHIND),
    "comment goes on": (whole(comment=b"comment", comment_length=3), _BEHIND),
    "archive in the comment": (second_archive, rf"{_END}|{_BEHIND}|before its first entry"),
    "end in the comment": (whole(comment=b"PK\x05\x06" + bytes(18)), rf"{_END}|entries where its end says"),
    "two archives": (joined, _END),
    "fewer entries than there are": (whole(here=1, entries=1), "entries where its end says 1"),
    "more entries than there are": (whole(here=9, entries=9), "entries where its end says 9"),
    "part of several": (whole(disk=1), "one part of an archive of several"),
    "directory elsewhere": (whole(start=7), _END),
    "directory of another size": (whole(size=7), _END),
    "ZIP64 end elsewhere": (whole(zip64={"place": 7}), _END64),
    "ZIP64 end of another length": (whole(zip64={"record": 99}), _END64),
    "ZIP64 directory elsewhere": (whole(zip64={"start": 1 << 40}), _END),
    "ZIP64 directory of exabytes": (whole(zip64={"start": 0, "size": (1 << 63) - 1}), _END),
    "two ends that disagree": (whole(zip64={}, start=7), "two ends that disagree"),
    "two counts that disagree": (whole(zip64={"entries": 1}), "entries where its end says 1"),
    "no archive": (lambda: b"not a wheel at all" * 9, _ARCHIVE),
    "nothing": (lambda: b"", _ARCHIVE),
    "half": (lambda: archive(parts())[:200], _ARCHIVE),
    "no RECORD": (info(RECORD=None), "has no RECORD"),
    "RECORD of another size": (record(f"hostile.py,sha256={'a' * 43},7\n"), "480 bytes where its RECORD says '7'"),
    "RECORD that says two things": (record(f"hostile.py,sha256={'a' * 43},480\nhostile.py,sha256={'b' * 43},480\n"), "two different rows"),
    "RECORD in no encoding": (info(RECORD=b"\xff\xfe,,\n"), _RECORD),
    "RECORD with a field without end": (record('"' + "x" * 140_000), _RECORD),
    "no WHEEL": (info(WHEEL=None), "has no WHEEL"),
    "WHEEL of version 2": (info(WHEEL=b"Wheel-Version: 2.0\n"), "Wheel-Version '2.0' is not supported"),
    "WHEEL without a version": (info(WHEEL=b"Generator: x\n"), "Wheel-Version '' is not supported"),
    "no METADATA": (info(METADATA=None), "has no METADATA"),
    "METADATA of another project": (info(METADATA=b"Name: numpy\nVersion: 1\n"), _RELEASE),
    "METADATA of another version": (info(METADATA=b"Name: hostile\nVersion: 2\n"), _RELEASE),
    "two dist-info folders": (more("other-1.dist-info/METADATA"), "2 .dist-info folders"),
    "dist-info of another project": (lambda: archive([Part(name=b"other-1.dist-info/WHEEL", data=WHEEL)]), "belongs to another release"),
    "no dist-info": (lambda: archive([Part(name=MODULE, data=SOURCE)]), "0 .dist-info folders"),
    "no entry": (lambda: archive([]), "0 .dist-info folders"),
    "unknown scheme": (more("hostile-1.data/evil/x"), UNKNOWN),
    "scheme without a path": (more("hostile-1.data/scripts"), UNKNOWN),
    "interpreter": (more("hostile-1.data/scripts/python3"), OWN),
    "interpreter by version": (more("hostile-1.data/data/bin/python3.11"), OWN),
    "configuration": (more("hostile-1.data/data/pyvenv.cfg"), OWN),
    "folder of programs as a file": (more("hostile-1.data/data/bin"), OWN),
    "library folder as a file": (more("hostile-1.data/data/lib64"), OWN),
    "file below the interpreter": (more("hostile-1.data/data/bin/python/x"), OWN),
    "site-packages as a file": (more("hostile-1.data/data/lib/python3.11/site-packages"), _PLACES),
    "entry point outside": (entry_point("../evil"), POINT),
    "entry point with a path": (entry_point("/bin/evil"), POINT),
    "entry point that deletes": (entry_point(".wh.activate"), _WHITEOUT),
    "entry point with a zero": (entry_point("e\0vil"), _ABSOLUTE),
    "entry point of a long name": (entry_point("e" * 256), _LONG),
    "entry point as the interpreter": (entry_point("python3.11"), OWN),
    "entry point with code": (entry_point("evil", "os:system('id')"), POINT),
    "entry point with a newline": (entry_point("evil", "hostile:main\n  import os"), POINT),
    "entry points without a section": (info(entry_points_txt=b"evil = a:b\n"), "entry_points.txt"),
    "entry points in no encoding": (info(entry_points_txt=b"\xff\xfe"), "utf-8"),
}  # fmt: skip
"""Bytes of a wheel, and a pattern of the reason that it is refused for."""


def many(count: int) -> Make:
    """So many files, and an end that needs ZIP64 from 65,535 on."""
    return lambda: archive(parts(*(Part(name=b"many/%06d.py" % n, method=0) for n in range(count))), zip64={})


ODD: dict[str, Make] = {
    "plain": module(),
    "ZIP64": lambda: archive(parts(zip64=True), zip64={}),
    "ZIP64 end alone": whole(zip64={}),
    "streamed": module(streamed=True),
    "streamed without a signature": module(streamed=True, descriptor=struct.pack("<3L", zlib.crc32(SOURCE), len(_STREAM), len(SOURCE))),
    "stored": module(method=0),
    "empty file": more("empty.py", b""),
    "empty stored file": more("empty.py", b"", method=0),
    "nothing but metadata": lambda: archive(parts()[1:]),
    "folders": lambda: archive(parts(Part(name=b"pkg/", mode=0o40755), Part(name=b"pkg/x.py", data=b"x"))),
    "folder with an empty stream": more("pkg/", b"", mode=0o40755, packed=b"\x03\x00"),
    "program": more("tool", b"\x7fELF", mode=0o100755),
    "no mode": more("plain.txt", b"x", mode=0),
    "other letters": more("\u0444\u0430\u0439\u043b/\u6587\u4ef6.py", b"x"),
    "old letters": more("\u00e9.py".encode("cp437"), b"x", local={"flags": 0}, central={"flags": 0}),
    "same unicode name beside": module(local={"extra": unicode_path(MODULE)}),
    "names that differ in case": twice("Pkg/x.h", "pkg/X.h", "pkg/x.h"),
    "names that differ in normal form": twice("\u00e9.py", "e\u0301.py"),
    "longest name": more("x" * 255),
    "long path": more("/".join(["x" * 250] * 12)),
    "comment": whole(comment=b"made by hand"),
    "runs at the end of a piece": more("zeros.bin", bytes((1 << 20) + 3)),
    "repeats beyond all measure": more("zeros.bin", bytes(9 << 20)),
    "several blocks": more("blocks.bin", b"".join(_BLOCKS), packed=in_blocks(*_BLOCKS)[0]),
    "what looks like a last block": more("forged.bin", zlib.decompress(FORGED, -15), packed=FORGED),
    "RECORD without the file": record(f"{INFO}/RECORD,,\n"),
    "RECORD with other files": lambda: archive(parts(record=f"/etc/passwd,sha256={'a' * 43},7\n../x,,\nhostile.py,,\n")),
    "RECORD with other hashes": record("hostile.py,md5=1B2M2Y8AsgTpgAmY7PhCfg,480\n"),
    "RECORD of damaged rows": record("hostile.py\n,,,,,\n\n"),
    "WHEEL of a later minor version": info(WHEEL=WHEEL.replace(b"1.0", b"1.9")),
    "WHEEL with messages inside of messages": info(WHEEL=nested(2000)),
    "many files": many(3000),
}  # fmt: skip
"""Wheels that pip installs, whatever they look like."""


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        raise SystemExit("usage: python -m tests.corpus FOLDER")
    folder = Path(sys.argv[1])
    for name, make in {**{name: make for name, (make, _) in HOSTILE.items()}, **ODD}.items():
        place = folder / name.replace(" ", "-")
        place.mkdir(parents=True, exist_ok=True)
        (place / FILENAME).write_bytes(make())
    print(f"{len(HOSTILE)} that must be refused and {len(ODD)} that must not are in {folder}")


if __name__ == "__main__":
    main()
