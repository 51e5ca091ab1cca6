"""Assemble the wheels of a folder in every way there is, and print the digest of each: `assembling.py WHEELS`.

A program of its own, as it runs under other Pythons too, where there are no tests' tools.
"""

import hashlib
import json
import sys
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from zlib_ng import zlib_ng

from envbuild.image.assembler import assemble
from envbuild.image.layers import maker
from envbuild.image.layers.cache import LayerCache
from envbuild.lock.model import LockedWheel, Target
from envbuild.oci import deflate
from envbuild.oci.digest import Digest
from envbuild.oci.image import LAYER_GZIP, Descriptor, Image, Layer, canonical_json, manifest_bytes
from envbuild.recipe import Base, Recipe


@dataclass(frozen=True, slots=True)
class WheelFiles:
    """Wheels that are all on this machine, by their sha256."""

    paths: dict[Digest, Path]

    def path(self, wheel: LockedWheel) -> Path:
        """Return the file of a wheel."""
        return self.paths[wheel.sha256]

    def stop(self) -> None:
        """Do nothing, as nothing waits."""


TARGET = Target(python="3.11.2", machine="x86_64", glibc="2.36")


def base() -> Base:
    """A base of one made-up layer, as no byte of ours depends on it."""
    layer = Layer(Descriptor(LAYER_GZIP, Digest.of(b"x"), 1), Digest.of(b"tar"), lambda: BytesIO(b"x"))
    config = canonical_json({"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {}})
    image = Image(manifest_bytes(config, [layer], {}), config, (layer,))
    return Base(name="made-up", image=image, target=TARGET, python_path="/usr/bin/python3.11")


def recipe(paths: list[Path]) -> tuple[Recipe, WheelFiles]:
    """The recipe of all wheels in a folder, and where they are."""
    wheels = []
    for path in paths:
        name, version = path.name.split("-")[:2]
        digest = Digest(hashlib.sha256(path.read_bytes()).hexdigest())
        wheels.append(
            LockedWheel(
                name=name.lower(),
                version=version,
                filename=path.name,
                sha256=digest,
                size=path.stat().st_size,
                url=f"file://{path}",
            )
        )
    made = Recipe(
        base_name="made-up",
        base_digest=base().digest,
        python_path="/usr/bin/python3.11",
        target=TARGET,
        wheels=tuple(wheels),
        variables=(),
        labels=(),
    )
    return made, WheelFiles({wheel.sha256: path for wheel, path in zip(wheels, paths, strict=True)})


def digests(folder: Path) -> Iterator[str]:
    """The image's digest with each library and each number of cores, from an empty cache and from a full one."""
    wanted, wheels = recipe(sorted(folder.glob("*.whl")))
    for library, cores in ((zlib, 1), (zlib, 2), (zlib, 8), (zlib_ng, 2), (zlib_ng, 8)):
        deflate._library = library
        maker._CORES = maker._AT_ONCE = cores
        with tempfile.TemporaryDirectory() as cache:
            for _ in range(2):
                done = assemble(wanted, base(), wheels, LayerCache(Path(cache)))
                yield str(done.image.digest)


if __name__ == "__main__":
    found = list(digests(Path(sys.argv[1])))
    print(json.dumps({"python": sys.version.split()[0], "runs": len(found), "digests": sorted(set(found))}))
