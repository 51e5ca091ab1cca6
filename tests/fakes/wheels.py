"""Small wheels made by hand: valid ones, and every kind of invalid one that a test asks for by overriding a file."""

import base64
import hashlib
import io
import json
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Content = str | bytes

_TIME = (2020, 2, 2, 0, 0, 0)
_EXECUTABLE = 0o755
_REGULAR = 0o100000


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeWheel:
    """A wheel's file name and bytes."""

    filename: str
    data: bytes

    @property
    def sha256(self) -> str:
        """The hexadecimal digest of the bytes."""
        return hashlib.sha256(self.data).hexdigest()


def record_line(path: str, data: bytes) -> str:
    """One line of RECORD: path, urlsafe unpadded base64 of the sha256, length."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    quoted = '"' + path.replace('"', '""') + '"' if any(letter in path for letter in ',"\n') else path
    return f"{quoted},sha256={digest},{len(data)}"


def zip_bytes(members: Iterable[tuple[str, bytes, int]], *, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip of (path, content, permission bits), in this order and with fixed times."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for path, data, mode in members:
            info = zipfile.ZipInfo(path, _TIME)
            info.create_system = 3
            info.external_attr = (_REGULAR | mode) << 16
            info.compress_type = method
            archive.writestr(info, data)
    return buffer.getvalue()


def _encoded(files: Mapping[str, Content]) -> dict[str, bytes]:
    return {path: value.encode() if isinstance(value, str) else value for path, value in files.items()}


def _entry_points(groups: Mapping[str, Mapping[str, str]]) -> str:
    return "\n".join(
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entries.items())
        for group, entries in groups.items()
    )


def make_wheel(
    name: str,
    version: str,
    files: Mapping[str, Content] | None = None,
    *,
    tags: Iterable[str] = ("py3-none-any",),
    purelib: bool = True,
    requires: Iterable[str] = (),
    requires_python: str | None = None,
    scripts: Mapping[str, Content] | None = None,
    data: Mapping[str, Content] | None = None,
    headers: Mapping[str, Content] | None = None,
    platlib: Mapping[str, Content] | None = None,
    entry_points: Mapping[str, Mapping[str, str]] | None = None,
    executable: Iterable[str] = (),
    dist_info: Mapping[str, Content] | None = None,
    record: Content | None = None,
    extra: Iterable[tuple[str, bytes, int]] = (),
    method: int = zipfile.ZIP_DEFLATED,
    variant: tuple[str, Mapping[str, Mapping[str, Iterable[str]]]] | None = None,
) -> FakeWheel:
    """Build a wheel; equal arguments give equal bytes.

    `files` lie in site-packages (default: one module named after the distribution); `scripts`, `data`, `headers` and
    `platlib` go to the folders of that name under `.data`. `executable` are paths in the wheel that get mode 0755
    beside the scripts. `dist_info` adds or replaces files there by name, `record` replaces RECORD whole, `extra` members are
    written after RECORD and stand in no RECORD. `tags` are whole, `cp311-cp311-manylinux_2_17_x86_64`. `variant` has the
    label and properties of a wheel variant.
    """
    module, tags = name.replace("-", "_").replace(".", "_"), tuple(tags)
    info = f"{module}-{version}.dist-info"
    found = _encoded({f"{module}.py": f"VERSION = {version!r}\n"} if files is None else files)
    folders = (("scripts", scripts), ("data", data), ("headers", headers), ("platlib", platlib))
    for folder, content in folders:
        found |= _encoded(
            {f"{module}-{version}.data/{folder}/{path}": value for path, value in (content or {}).items()}
        )
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"]
    metadata += [f"Requires-Python: {requires_python}\n"] if requires_python else []
    metadata += [f"Requires-Dist: {requirement}\n" for requirement in requires]
    root = f"Root-Is-Purelib: {str(purelib).lower()}\n"
    described: dict[str, Content] = {
        "METADATA": "".join(metadata),
        "WHEEL": f"Wheel-Version: 1.0\nGenerator: fake\n{root}" + "".join(f"Tag: {tag}\n" for tag in tags),
    }
    described |= {"entry_points.txt": _entry_points(entry_points)} if entry_points else {}
    described |= {"variant.json": variants_json(dict([variant]))} if variant else {}
    found |= _encoded({f"{info}/{path}": value for path, value in (described | dict(dist_info or {})).items()})
    lines = [record_line(path, content) for path, content in found.items()] + [f"{info}/RECORD,,"]
    found |= _encoded({f"{info}/RECORD": "\n".join(lines) + "\n" if record is None else record})
    marked = {*executable, *(path for path in found if f"{module}-{version}.data/scripts/" in path)}
    members = [(path, content, _EXECUTABLE if path in marked else 0o644) for path, content in found.items()]
    filename = f"{module}-{version}-{_compressed(tags)}{f'-{variant[0]}' if variant else ''}.whl"
    return FakeWheel(filename=filename, data=zip_bytes([*members, *extra], method=method))


def variants_json(variants: Mapping[str, Mapping[str, Mapping[str, Iterable[str]]]]) -> str:
    """What stands in a wheel variant (`variant.json`), and beside several on an index (PEP 825, 10 August 2026)."""
    return json.dumps(
        {
            "$schema": "https://variants-schema.wheelnext.dev/peps/825/v0.1.1.json",
            "default-priorities": {"namespace": ["nvidia", "x86_64", "blas_lapack"]},
            "variants": variants,
        }
    )


def _compressed(tags: tuple[str, ...]) -> str:
    """The tag set of a file name: `py2.py3-none-any` for `py2-none-any` and `py3-none-any`."""
    columns = zip(*(tag.split("-") for tag in tags), strict=True)
    return "-".join(".".join(dict.fromkeys(column)) for column in columns)
