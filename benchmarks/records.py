"""Whether incomplete records get the versions that `uv pip compile --exclude-newer` gives for the same input and date.

    .venv/bin/python benchmarks/records.py [--only TEXT] [--keep DIR] [--records FILE] [--build [--gpu] [--pythons DIR]]

Each record of records.toml becomes a requirements.txt, is locked by `envbuild lock --exclude-newer DATE`, and compiled
by uv for the same Python and glibc, from wheels alone. Where the two differ, uv compiles what the plan made of the
record (the build for the CPU, wheels of CUDA, bounds that a framework needs): if that gives the lock, the difference is
explained by these changes. Where uv finds nothing on that date, it gets the date that the lock moved to.
`neither` is a record that uv cannot compile from wheels on any date either: what it needs was published as source only.

No wheel is fetched: uv reads metadata, and envbuild metadata and RECORD by ranges. Ten minutes on two cores; needs an
index that says when files were uploaded. Exit code 1 where a record cannot be locked that uv compiles, or a difference
is not explained.

With `--build` an image is built of each record instead, and what the record names is imported in it. The base is the
Debian release that has the record's Python. Where none has, `--pythons DIR` names a folder of installations, such as
pyenv's `versions`, and the base is Debian 12 with the one from there; else it is the next release that has wheels for
the pins, and the Python is then not the record's. Records with a GPU are built for the CPU; with `--gpu` they alone are
built, for their GPU, which includes the loader proof. Wheels are fetched: 20 GB and an hour on two cores.
Exit code 1 where an image does not import.

`--build --records benchmarks/freezes.toml` does that with what other tools wrote: each file is built on the
Debian release whose Python it has, and has to be refused for the two others.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from envbuild.base.debian import debian_base
from envbuild.files import cache_folder
from envbuild.lock.model import Target
from envbuild.lock.resolvers import uv_platforms
from envbuild.oci.digest import Digest
from envbuild.oci.image import LAYER_TAR, Descriptor, Image, Layer, canonical_json, manifest_bytes
from envbuild.oci.layout import write_layout
from envbuild.report import SILENT

HERE = Path(__file__).parent
UV = str(Path(sys.executable).with_name("uv"))
_GLIBC = "2.36"
"""Of Debian 12, which most images stand on."""
_PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[.*\])?==(\S+)", re.MULTILINE)

Versions = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """What envbuild made of a record."""

    versions: Versions
    target: Target
    stack: dict[str, Any]
    notes: list[str]

    @property
    def before(self) -> str:
        """The moment that the lock was completed as of."""
        moved = [it for note in self.notes for it in re.findall(r"from those before (\S+)", note)]
        return str(moved[0] if moved else self.stack["gaps"]["before"])


def run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def lock(record: dict[str, Any], folder: Path) -> Locked | str:
    """Lock a record; what was said where that fails."""
    (folder / "requirements.txt").write_text("".join(f"{it}\n" for it in record["requirements"]))
    options = ["requirements.txt", "--python", record["python"], "--gpu", record.get("gpu", "none"), "--json"]
    options += ["--ran-on", "linux/amd64", "--exclude-newer", str(record["date"])]
    glibc = ["--glibc", _GLIBC]
    planned = run([sys.executable, "-m", "envbuild", "from-manifest", *options, "--dry-run"], folder)
    locked = run([sys.executable, "-m", "envbuild", "lock", *options, *glibc, "--out", "lock"], folder)
    if planned.returncode or locked.returncode:
        return (locked.stderr if locked.returncode else planned.stderr).strip()
    result = json.loads(locked.stdout)
    text = (folder / "lock" / "requirements.txt").read_text()
    target = Target(**result["target"])
    return Locked(
        versions=versions_of(text),
        target=target,
        stack=json.loads(planned.stdout)["stack"],
        notes=[*result["warnings"], *result["notes"]],
    )


def compile_(
    requirements: Sequence[str], target: Target, before: str | None, folder: Path, gaps: dict[str, Any] | None = None
) -> Versions | None:
    """What uv gives; None where nothing fits."""
    constraints, overrides = folder / "constraints.txt", folder / "overrides.txt"
    constraints.write_text("".join(f"{it}\n" for it in (gaps or {}).get("versions", ())))
    # What another distribution stands in for is resolved as well, so that what requires it fits its version.
    replaced = versions_of("\n".join(before for before, _ in (gaps or {}).get("replaced", ())))
    excluded = [it for it in (gaps or {}).get("without", ()) if it not in replaced]
    overrides.write_text("".join(f"{it} ; python_version < '0'\n" for it in excluded))
    lines = [*requirements, *(f"{name}=={version}" for name, version in replaced.items())]
    (folder / "plain.txt").write_text("".join(f"{it}\n" for it in lines))
    options = ["--only-binary", ":all:", "--no-header", "--no-annotate", "--no-strip-extras", "--quiet"]
    options += ["--python-version", target.python, "--python-platform", uv_platforms(target)[0]]
    options += ["-c", "constraints.txt", "--override", "overrides.txt"]
    options += ["--exclude-newer", before] if before else []
    options += [option for name in replaced for option in ("--no-emit-package", name)]
    # What the plan adds, as wheels of CUDA, may be younger than the record.
    pinned = list(versions_of("\n".join(lines))) if gaps else []
    options += [option for name in pinned for option in ("--exclude-newer-package", f"{name}=false")]
    done = run([UV, "pip", "compile", "plain.txt", *options], folder)
    return versions_of(done.stdout) if done.returncode == 0 else None


def versions_of(text: str) -> Versions:
    return {canonicalize_name(name): version for name, version in _PIN.findall(text)}


def compare(record: dict[str, Any], locked: Locked, folder: Path) -> tuple[str, list[str]]:
    """`same`, `explained` or `differs`, and why."""
    asked = f"{record['date'] + timedelta(days=1)}T00:00:00Z"
    plain = compile_(record["requirements"], locked.target, asked, folder)
    why = []
    if plain is None:
        plain = compile_(record["requirements"], locked.target, locked.before, folder)
        why.append(f"uv finds no wheels that fit on that date; both are as of {locked.before}")
    if plain == locked.versions:
        return "explained" if why else "same", why
    stack = locked.stack
    planned = compile_(stack["requirements"], locked.target, locked.before, folder, stack["gaps"])
    kept = {canonicalize_name(re.split(r"[=\[]", it)[0]) for it in record["requirements"]}
    why += [f"{it['before'] or '-'} -> {it['after'] or '-'}: {it['reason']}" for it in stack["changes"][:3]]
    why += [f"and {len(stack['changes']) - 3} more changes"] * (len(stack["changes"]) > 3)
    why += [f"bound: {it}" for it in stack["gaps"]["versions"]]
    others = differing(plain or {}, locked.versions)
    if planned == locked.versions:
        return "explained", [*why, f"uv without these: {', '.join(others)}"]
    left = differing(planned or {}, locked.versions)
    why += [f"not explained, uv against the lock: {', '.join(left)}", f"the record names {', '.join(sorted(kept))}"]
    return "differs", [*why, *locked.notes]


def differing(one: Versions, other: Versions) -> list[str]:
    names = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
    shown = [f"{name} {one.get(name, '-')} / {other.get(name, '-')}" for name in names]
    return shown[:12] + [f"and {len(shown) - 12} more"] * (len(shown) > 12)


def judge(record: dict[str, Any], folder: Path) -> tuple[str, list[str], int]:
    """The outcome, why, and how many distributions were locked."""
    locked = lock(record, folder)
    if isinstance(locked, Locked):
        return *compare(record, locked, folder), len(locked.versions)
    target = Target(python=record["python"], machine="x86_64", glibc=_GLIBC)
    compiled = compile_(record["requirements"], target, None, folder)
    cause = re.findall(r"error: (?s:.*)", locked)
    return "no lock" if compiled else "neither", cause or [locked], 0


_DEBIAN = {
    "3.9": ("debian:bullseye", "3.9.2"),
    "3.11": ("debian:bookworm", "3.11.2"),
    "3.13": ("debian:trixie", "3.13.5"),
}
"""Bases that envbuild makes itself from Debian's packages, and their Python, by its minor version."""


def bases_of(record: dict[str, Any], pythons: Path | None, folder: Path) -> list[tuple[str, str]]:
    """The bases to try for a record, and the Python of each: the record's, where a base has its minor version."""
    minor = record["python"].rpartition(".")[0]
    if minor in _DEBIAN and "file" in record:
        return [(_DEBIAN[minor][0], record["python"])]
    if minor not in _DEBIAN and pythons and (found := sorted(pythons.glob(f"{minor}.*"))):
        base_with(found[-1], folder / "base", cache_folder())
        return [(str(folder / "base"), record["python"])]
    return [base for it, base in _DEBIAN.items() if int(it[2:]) >= int(minor[2:])]


def base_with(installation: Path, folder: Path, cache: Path) -> None:
    """Write Debian 12 with another Python below /usr/local, as an OCI layout."""
    debian = debian_base("bookworm", "x86_64", cache, SILENT)
    blob = folder.with_suffix(".tar")
    with tarfile.open(blob, "w") as tar:
        for name in ("bin", "lib"):
            tar.add(installation / name, f"usr/local/{name}", filter=_plain)
        for library in installation.glob("lib/libpython3.*.so.*"):  # the loader looks here without its cache
            tar.add(library, f"usr/lib/x86_64-linux-gnu/{library.name}", filter=_plain)
    with blob.open("rb") as file:
        digest, size = Digest.of_file(file)
    layer = Layer(Descriptor(LAYER_TAR, digest, size), digest, lambda: blob.open("rb"), "another Python")
    config = json.loads(debian.config)
    config["rootfs"]["diff_ids"].append(str(digest))
    config["history"].append({"created_by": layer.created_by})
    data, layers = canonical_json(config), (*debian.layers, layer)
    write_layout(Image(manifest_bytes(data, layers, {}), data, layers), folder)


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out tests, bytecode and what was installed; root owns the rest."""
    if re.search(r"/(site-packages/.*|test|__pycache__|[^/]*\.a)$", entry.name):
        return None
    entry.uid, entry.gid, entry.uname, entry.gname, entry.mtime = 0, 0, "", "", 0
    return entry


def build(record: dict[str, Any], folder: Path, pythons: Path | None, gpu: str) -> tuple[str, list[str], int]:
    """Whether the image of a record imports what the record names; why not, and how many modules were imported."""
    if "file" in record and (taken := refuse(record, folder, gpu)):
        return "fails", taken, 0
    said = ["no Debian release has a Python that is as new"]
    for base, python in bases_of(record, pythons, folder):
        done = from_manifest(record, folder, base, python, gpu)
        if done.returncode == 0:
            imports, proof = json.loads(done.stdout)["imports"], re.findall(r"all \d+ CUDA libraries .*", done.stderr)
            return "imports", [f"on {base} with Python {python}: {imports}", *proof], len(imports["modules"])
        cause = [f"on {base}:", *re.findall(r"error: (?s:.*)", done.stderr)]
        if "the image cannot import" in done.stderr:
            return "fails", cause, 0
        said = cause if said[0].startswith("no Debian") else said
    return "no lock", said, 0


def refuse(record: dict[str, Any], folder: Path, gpu: str) -> list[str]:
    """Hold a record against the releases that have another Python: those that do not refuse it, and what was said."""
    fits, _ = _DEBIAN[record["python"].rpartition(".")[0]]
    others = [base for base, _ in _DEBIAN.values() if base != fits]
    done = {base: from_manifest(record, folder, base, record["python"], gpu) for base in others}
    return [f"{base} is not refused: {it.stderr}" for base, it in done.items() if it.returncode != 13]


def from_manifest(
    record: dict[str, Any], folder: Path, base: str, python: str, gpu: str
) -> subprocess.CompletedProcess[str]:
    """Build the image of a record; it is not kept."""
    path = HERE / record["file"] if "file" in record else folder / "requirements.txt"
    options = [path, "--python", python, "--gpu", gpu, "--base", base, *record.get("options", ())]
    options += ["--ran-on", "linux/amd64", "--import-check", "always"]
    if "file" not in record:
        path.write_text("".join(f"{it}\n" for it in record["requirements"]))
        options += ["--from", "requirements", "--exclude-newer", str(record["date"])]
    if "imported" in record:
        facts = [path, "--python", python, "--gpu", gpu, "--ran-on", "linux/amd64"]
        manifest = json.loads(run([sys.executable, "-m", "envbuild", "convert", *facts], folder).stdout)
        options[0] = folder / "manifest.json"
        options[0].write_text(json.dumps(manifest | {"imported": record["imported"]}))
    done = run([sys.executable, "-m", "envbuild", "from-manifest", *options, "--out", "image", "--json"], folder)
    shutil.rmtree(folder / "image", ignore_errors=True)
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare locks of incomplete records with uv's own.")
    parser.add_argument("--only", default="", help="records one of whose requirements, or whose file, has this text")
    parser.add_argument("--records", type=Path, default=HERE / "records.toml")
    parser.add_argument("--keep", type=Path, help="keep each record with its lock in this folder")
    parser.add_argument("--build", action="store_true", help="build images, and import in them what the records name")
    parser.add_argument("--gpu", action="store_true", help="with --build: only records with a GPU, for that GPU")
    parser.add_argument("--pythons", type=Path, help="with --build: installations of Python that no Debian release has")
    options = parser.parse_args()
    records = [{"requirements": [], "date": ""} | it for it in tomllib.loads(options.records.read_text())["record"]]
    counts = dict.fromkeys(("same", "explained", "neither", "differs", "no lock", "imports", "fails"), 0)
    with tempfile.TemporaryDirectory(prefix="envbuild-records-") as name:
        for number, record in enumerate(records):
            texts = [*record["requirements"], record.get("file", "")]
            if not any(options.only in text for text in texts) or (options.gpu and "gpu" not in record):
                continue
            folder = (options.keep or Path(name)).absolute() / f"{number + 1:02}"
            folder.mkdir(parents=True, exist_ok=True)
            start = time.monotonic()
            if options.build:
                found, why, count = build(record, folder, options.pythons, record["gpu"] if options.gpu else "none")
            else:
                found, why, count = judge(record, folder)
            counts[found] += 1
            print(
                f"{found:<9} {count:>3} {time.monotonic() - start:>4.0f} s  {record['date']} {' '.join(texts)}",
                flush=True,
            )
            for line in why:
                print(f"{'':<11}{line}", flush=True)
    print(", ".join(f"{count} {found}" for found, count in counts.items()))
    sys.exit(bool(counts["differs"] + counts["no lock"] + counts["fails"]))


if __name__ == "__main__":
    main()
