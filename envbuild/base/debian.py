"""A Debian base, bootstrapped here with mmdebstrap: for machines without a registry to pull from.

The bytes depend on the suite's packages in the mirror, and on nothing of this machine: neither its name, clock, umask,
locale nor the mirror's address. So the image has no sources; to install more packages on top, write them first.
"""

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fcntl import LOCK_EX, LOCK_NB, flock
from functools import partial
from hashlib import sha256
from pathlib import Path
from subprocess import PIPE
from typing import IO, BinaryIO

from envbuild.base import apt
from envbuild.cache import remove
from envbuild.errors import BaseError, MissingComponentError
from envbuild.files import is_no_file
from envbuild.oci import tar
from envbuild.oci.blobs import is_damaged, open_file
from envbuild.oci.digest import Digest
from envbuild.oci.image import LAYER_GZIP, Descriptor, Image, Layer, canonical_json, manifest_bytes
from envbuild.oci.layout import ARCHITECTURES, blob_path, read_layout, write_layout
from envbuild.process import running
from envbuild.report import Reporter

FORMAT = 2
"""Raised whenever the same suite would give other bytes."""
PACKAGES = ("ca-certificates", "python3", "python3-venv")
_EPOCH = str(tar.MTIME)
_CREATED = "1980-01-01T00:00:00Z"
# With it a suite whose packages are merged already needs no program for that, and no 50 MB of perl to run it.
_MERGED_USR = Path("/usr/share/mmdebstrap/hooks/maybe-merged-usr")
_INSTALL = "apt-get install mmdebstrap debian-archive-keyring"
_CHUNK = 1 << 20
# Remove traces of the host, the mirror and the clock, and files that no program reads; copyrights stay.
_CLEAN = r"""set -e; cd "$1"
rm -rf etc/apt/sources.list etc/apt/sources.list.d/* etc/resolv.conf etc/hostname
rm -rf var/cache/ldconfig/aux-cache var/cache/debconf/*-old var/lib/dpkg/*-old tmp/* root/.cache
find var/log var/cache/apt var/lib/apt/lists -type f -delete
find usr/share/doc -type f ! -name copyright -delete
find usr/share/man usr/share/info usr/share/locale ! -type d -delete
"""


def debian_base(suite: str, machine: str, cache: Path, report: Reporter) -> Image:
    """Return the base for a suite that `registry_reference` knows, from the cache or bootstrapped.

    MissingComponentError if mmdebstrap is absent, BaseError if bootstrapping fails.
    """
    folder = _folder(suite, machine, cache)
    with _locked(folder, report):
        return _read_cached(folder, machine, report) or _bootstrap(folder, suite, machine, report)


def _folder(suite: str, machine: str, cache: Path) -> Path:
    key = Digest.of(canonical_json([FORMAT, suite, machine, PACKAGES]))
    return cache / "bases" / f"debian-{suite}-{machine}-{key.short}"


def kept_bases(cache: Path) -> Iterator[tuple[str, str, Path]]:
    """Yield suite, machine and layout of each cached base."""
    for folder in sorted((cache / "bases").glob("debian-*")):
        suite, _, machine = folder.name.removeprefix("debian-").rpartition("-")[0].partition("-")
        if folder == _folder(suite, machine, cache) and folder.is_dir():
            yield suite, machine, folder


@contextmanager
def _locked(folder: Path, report: Reporter) -> Iterator[None]:
    """Let one run bootstrap while others wait; remove what a killed run left behind.

    Without write access to the cache, the cached base is used as it is.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.exists() and not os.access(folder.parent, os.W_OK):
        yield
        return
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        try:
            flock(lock, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            report.note("waiting for another run that bootstraps the same base")
            flock(lock, LOCK_EX)
        for leftover in folder.parent.glob(f".new-{folder.name}-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        yield


def _read_cached(folder: Path, machine: str, report: Reporter) -> Image | None:
    if not folder.exists():
        return None
    try:
        image = read_layout(folder, machine=machine)
    except BaseError as error:
        if isinstance(error.__cause__, OSError) and not is_no_file(error.__cause__):
            raise
        report.note(f"the cached base is damaged and is made again: {error.what}")
        remove(folder)
        return None
    report.note(f"cached by an earlier run; delete {folder} to bootstrap it from the mirror again")
    layers = (replace(it, open=partial(_open_checked, folder, it)) for it in image.layers)
    return replace(image, layers=tuple(layers))


def _open_checked(folder: Path, layer: Layer) -> BinaryIO:
    """Open a layer of a cached base after its bytes were checked; BaseError if damaged, and the base is removed."""
    try:
        damaged = is_damaged(blob_path(folder, layer.descriptor.digest), layer.descriptor)
    except OSError as error:
        what, todo = f"the cached base cannot be read: {error.strerror}", f"run again, or remove {folder}"
        raise BaseError(what, where=str(folder), todo=todo) from error
    if damaged:
        remove(folder)
        todo = "run again to bootstrap it again"
        raise BaseError("the cached base was damaged and was removed", where=str(folder), todo=todo)
    return layer.open()


def _bootstrap(folder: Path, suite: str, machine: str, report: Reporter) -> Image:
    program = shutil.which("mmdebstrap", path=_path())
    keyrings = [path for path in apt.KEYRINGS["debian"] if Path(path).exists()]
    if program is None or not keyrings:
        what = f"{'mmdebstrap' if program is None else 'debian-archive-keyring'} is needed to bootstrap a Debian base"
        raise MissingComponentError(what, where=f"debian:{suite}", todo=f"run `{_INSTALL}`, or give another --base")
    report.note(f"bootstrapping Debian {suite} with mmdebstrap (about half a minute)")
    try:
        with tempfile.TemporaryDirectory(prefix=f".new-{folder.name}-", dir=folder.parent) as name:
            scratch = Path(name)
            image = _run_mmdebstrap(program, keyrings[0], suite, machine, scratch, report)
            write_layout(image, scratch / "layout", name=f"debian-{suite}")
            (scratch / "layout").rename(folder)
    except OSError as error:
        todo = "check that there is room, and that gzip and tar are installed"
        what = f"bootstrapping failed: {error.strerror}"
        raise BaseError(what, where=str(error.filename or folder), todo=todo) from error
    return read_layout(folder, machine=machine)


def _run_mmdebstrap(program: str, keyring: str, suite: str, machine: str, scratch: Path, report: Reporter) -> Image:
    """Bootstrap; without updates and security archive, if the mirror no longer has them for an old suite."""
    mirror = apt.find_mirror(apt.SOURCES)
    lines = apt.source_lines(suite, mirror)
    command = [
        *_namespace(), program, "--variant=minbase", f"--include={','.join(PACKAGES)}",
        f"--architectures={ARCHITECTURES[machine]}", "--format=tar", "--skip=output/dev",
        *(f"--keyring={path}" for path in (keyring, *mirror.keyrings) if Path(path).exists()),
        *([f"--hook-dir={_MERGED_USR}"] if _MERGED_USR.is_dir() else []),
        f"--customize-hook={_CLEAN}", suite, "-",
    ]  # fmt: skip
    while True:
        blob = scratch / "layer.tar.gz"
        diff_id, messages = _run(command, list(lines.values()), scratch, blob)
        if diff_id is not None:
            return _image(suite, machine, blob, diff_id)
        missing = apt.lost_archives(messages) & (lines.keys() - {suite})
        if not missing:
            raise _failed(suite, machine, messages)
        report.note(f"the mirror no longer has {' and '.join(sorted(missing))}: bootstrapping without")
        lines = {name: line for name, line in lines.items() if name not in missing}


def _run(command: Sequence[str], lines: Sequence[str], scratch: Path, blob: Path) -> tuple[Digest | None, str]:
    """Run mmdebstrap and pack its tar; return the tar's digest, or None and the program's messages."""
    # a file, as an address may hold a password and anyone can read a command line
    sources, log = scratch / "sources.list", scratch / "log"
    sources.write_text("\n".join([*lines, ""]))
    with log.open("wb") as messages:
        process = running([*command, str(sources)], _environment(scratch), stdout=PIPE, stderr=messages)
        with process as bootstrap:
            assert bootstrap.stdout is not None
            diff_id = _pack(_with_dev(bootstrap.stdout), blob)
            failed = bootstrap.wait() != 0
    return None if failed else diff_id, log.read_text(errors="replace")


def _namespace() -> list[str]:
    """Return the words that put root's mounts into a namespace, so that they end with the processes."""
    prefix = ["unshare", "--mount"]
    if os.geteuid() or not shutil.which("unshare", path=_path()):
        return []
    with running([*prefix, "true"], _environment(None), stdout=PIPE, stderr=PIPE) as probe:
        probe.communicate()
    return [] if probe.returncode else prefix


def _path() -> str:
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def _environment(scratch: Path | None) -> dict[str, str]:
    """Return an environment without the user's settings; the fixed epoch also decides Python's bytecode."""
    fixed = {"LC_ALL": "C.UTF-8", "TZ": "UTC", "HOME": "/root", "PYTHONHASHSEED": "0", "SOURCE_DATE_EPOCH": _EPOCH}
    # another user's mmdebstrap works as yet another user, who may not look into the cache
    temporary = {"TMPDIR": str(scratch)} if scratch and os.geteuid() == 0 else {}
    return apt.network_variables() | fixed | temporary | {"PATH": _path()}


def _with_dev(source: IO[bytes]) -> Iterator[bytes]:
    """Add an empty /dev: mmdebstrap's nodes would need privileges to unpack, and every runtime brings its own."""
    first = source.read(_CHUNK)
    if first:
        yield tar.header(tar.Entry("./dev", "directory", 0o755))
    while first:
        yield first
        first = source.read(_CHUNK)


def _pack(chunks: Iterator[bytes], blob: Path) -> Digest:
    """Compress as it comes, and return the digest of what was compressed.

    GNU gzip has a deflate of its own, so the bytes do not depend on which zlib is here.
    """
    hasher = sha256()
    with blob.open("wb") as target, running(["gzip", "-n", "-6"], _environment(None), PIPE, target) as gzip:
        assert gzip.stdin is not None
        for chunk in chunks:
            hasher.update(chunk)
            gzip.stdin.write(chunk)
        gzip.stdin.close()
        if gzip.wait() != 0:
            raise OSError(0, "gzip failed, is the disk full?", str(blob))
    return Digest(hasher.hexdigest())


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
    layers = (Layer(Descriptor(LAYER_GZIP, digest, size), diff_id, partial(open_file, blob), created_by),)
    return Image(manifest_bytes(config, layers, {}), config, layers)


def _failed(suite: str, machine: str, messages: str) -> BaseError:
    lines = [line for line in messages.splitlines() if line.startswith(("E:", "W:", "Err:"))] or messages.splitlines()
    last = [apt.hide_password(line) for line in lines[-4:]]
    todo = "check the suite's name and that apt's own mirror serves it (apt-get update), and that this user is root"
    if "No space left" in messages:
        todo = "free some space in the cache (ENVBUILD_CACHE) and the temporary folder (TMPDIR)"
    elif machine != platform.machine():
        todo = (
            "a base for another machine is bootstrapped by emulation: `apt-get install arch-test qemu-user-static` and "
            "see that `arch-test` names the machine; or give a base from a registry, which needs none"
        )
    return BaseError("bootstrapping failed: " + "; ".join(last), where=f"debian:{suite}", todo=todo)
