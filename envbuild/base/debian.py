"""A Debian base, bootstrapped here: for places without a registry to pull from."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fcntl import LOCK_EX, flock
from functools import partial
from pathlib import Path
from typing import BinaryIO

from envbuild.errors import BaseError, MissingComponentError
from envbuild.oci.digest import Digest
from envbuild.oci.image import LAYER_GZIP, Descriptor, Image, Layer, canonical_json, manifest_bytes
from envbuild.oci.layout import ARCHITECTURES, read_layout, write_layout

FORMAT = 1
"""Raised whenever the same suite would give other bytes."""
PACKAGES = ("ca-certificates", "python3", "python3-venv")
_EPOCH = "315532800"  # 1980-01-01, as in the environment's own layers
_CREATED = "1980-01-01T00:00:00Z"
_SUITE = re.compile(r"[a-z][a-z0-9.-]{0,39}\Z")
_SOURCES = Path("/etc/apt")
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# What the host, the clock or the order of events would leave behind.
_CLEAN = (
    'rm -rf "$1"/var/cache/apt "$1"/var/lib/apt/lists/* "$1"/var/log/* "$1"/var/cache/ldconfig/aux-cache'
    ' "$1"/var/cache/debconf/*-old "$1"/var/lib/dpkg/*-old "$1"/usr/share/doc/* "$1"/usr/share/man/* "$1"/tmp/*'
    ' && : > "$1"/etc/machine-id && : > "$1"/etc/resolv.conf && echo localhost > "$1"/etc/hostname'
    ' && find "$1" -xdev -name __pycache__ -prune -exec rm -rf {} +'
    # the mirror is this machine's own, and may hold a password
    ' && rm -f "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/*'
)


@dataclass(frozen=True, slots=True)
class Mirror:
    """Where this machine gets its Debian packages from."""

    archive: str
    security: str | None


def debian_base(suite: str, machine: str, cache: Path, report: Callable[[str], None]) -> Image:
    """Return the base for a suite such as `bookworm`: from the cache, else bootstrapped with mmdebstrap.

    MissingComponentError where mmdebstrap is absent, BaseError when bootstrapping fails.
    """
    if not _SUITE.match(suite):
        raise BaseError(f"{suite!r} is no Debian suite", where="--base", todo="use debian:bookworm, for instance")
    key = Digest.of(canonical_json([FORMAT, suite, machine, PACKAGES]))
    folder = cache / "bases" / f"debian-{suite}-{machine}-{key.short}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        flock(lock, LOCK_EX)  # of two runs, one bootstraps and the other waits for it
        if (folder / "index.json").exists():
            report(f"kept from an earlier run; delete {folder} to bootstrap anew")
        else:
            _bootstrap_into(folder, suite, machine, report)
    return read_layout(folder, machine=machine)


def _bootstrap_into(folder: Path, suite: str, machine: str, report: Callable[[str], None]) -> None:
    program = shutil.which("mmdebstrap")
    if program is None:
        todo = "run `apt-get install mmdebstrap debian-archive-keyring`, or give --base an image of a registry"
        raise MissingComponentError("mmdebstrap is needed to bootstrap a Debian base", where="PATH", todo=todo)
    report(f"bootstrapping Debian {suite} with mmdebstrap (about half a minute)")
    with tempfile.TemporaryDirectory(prefix="envbuild-base-") as scratch:
        tar, blob = Path(scratch) / "base.tar", Path(scratch) / "base.tar.gz"
        _bootstrap(program, suite, machine, tar)
        with tar.open("rb") as file:
            diff_id, _ = Digest.of_file(file)
        # GNU gzip has a deflate of its own: the bytes do not depend on which zlib is here.
        with blob.open("wb") as target:
            subprocess.run(["gzip", "-n", "-6", "-c", str(tar)], stdout=target, check=True)
        write_layout(_image(suite, machine, blob, diff_id), folder, name=f"debian-{suite}", machine=machine)


def _image(suite: str, machine: str, blob: Path, diff_id: Digest) -> Image:
    with blob.open("rb") as file:
        digest, size = Digest.of_file(file)
    created_by = f"mmdebstrap --variant=minbase --include={','.join(PACKAGES)} {suite}"
    config = canonical_json({
        "architecture": ARCHITECTURES[machine],
        "os": "linux",
        "created": _CREATED,
        "config": {
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"],
            "Cmd": ["bash"],
        },
        "rootfs": {"type": "layers", "diff_ids": [str(diff_id)]},
        "history": [{"created": _CREATED, "created_by": created_by}],
    })  # fmt: skip
    layers = (Layer(Descriptor(LAYER_GZIP, digest, size), diff_id, partial(_open, blob), created_by),)
    return Image(manifest_bytes(config, layers, {}), config, layers)


def _open(path: Path) -> BinaryIO:
    return path.open("rb")


def _bootstrap(program: str, suite: str, machine: str, tar: Path) -> None:
    mirror = find_mirror(_SOURCES)
    command = [
        program, "--variant=minbase", f"--include={','.join(PACKAGES)}", f"--architectures={ARCHITECTURES[machine]}",
        "--mode=auto", "--format=tar", "--quiet", f"--customize-hook={_CLEAN}",
        *([f"--keyring={_KEYRING}"] if _KEYRING.exists() else []),
        suite, str(tar), *source_lines(suite, mirror),
    ]  # fmt: skip
    kept = {
        name: value for name, value in os.environ.items() if name.lower().endswith("_proxy") or name.startswith("SSL_")
    }
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    environment = kept | {"PATH": path, "LC_ALL": "C.UTF-8", "TZ": "UTC", "SOURCE_DATE_EPOCH": _EPOCH, "HOME": "/root"}
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        start_new_session=True, umask=0o022, cwd="/", text=True, errors="replace",
    )  # fmt: skip
    try:
        _, messages = process.communicate()
    except BaseException:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
        raise
    if process.returncode != 0:
        raise _failed(suite, messages)


def _failed(suite: str, messages: str) -> BaseError:
    last = [re.sub(r"//[^/@\s]*@", "//", line) for line in messages.strip().splitlines()[-5:]]
    todo = "check the suite's name and that apt's own mirror serves it (apt-get update), and that this user is root"
    return BaseError("bootstrapping failed: " + "; ".join(last), where=f"debian:{suite}", todo=todo)


def source_lines(suite: str, mirror: Mirror) -> Sequence[str]:
    """Write the apt lines for a suite, with its security archive; point releases fall into the suite itself."""
    lines = [f"deb {mirror.archive} {suite} main"]
    if mirror.security and suite not in ("sid", "unstable", "experimental"):
        lines.append(f"deb {mirror.security} {suite}-security main")
    return lines


def find_mirror(folder: Path) -> Mirror:
    """Read the machine's own mirror from apt's settings (sources.list(5)); BaseError where there is none."""
    addresses: list[tuple[str, str]] = []
    for path in (folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))):
        if path.suffix in (".list", ".sources") and path.is_file():
            text = path.read_text(errors="replace")
            addresses += _one_line(text) if path.suffix == ".list" else _deb822(text)
    archive = next(
        (url for url, suites in addresses if re.search(r"/debian/?\Z", url) and "security" not in suites), None
    )
    security = next((url for url, suites in addresses if "-security" in suites), None)
    if archive is None:
        todo = "on another system than Debian give --base an image of a registry or an OCI layout"
        raise BaseError("apt names no Debian mirror", where=str(folder), todo=todo)
    return Mirror(archive, security)


def _one_line(text: str) -> list[tuple[str, str]]:
    return re.findall(r"(?m)^deb\s+(?:\[[^\]]*\]\s+)?(\S+)\s+(\S+)", text)


def _deb822(text: str) -> list[tuple[str, str]]:
    found = []
    for stanza in re.split(r"\n\s*\n", text):
        fields = {name.lower(): value.strip() for name, value in re.findall(r"(?m)^([A-Za-z-]+):(.*)$", stanza)}
        if "deb" in fields.get("types", "").split() and fields.get("enabled", "yes") != "no":
            found += [(url, fields.get("suites", "")) for url in fields.get("uris", "").split()]
    return found
