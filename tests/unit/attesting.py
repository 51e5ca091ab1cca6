"""Images in a registry, what is known of them, and keys, for the tests of what is attached to images."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from envbuild.attest.statement import Facts
from envbuild.lock.model import Lock, LockedWheel, SystemPackage, Target
from envbuild.oci.digest import Digest
from envbuild.oci.reference import Reference
from envbuild.registry.push import push
from tests.fakes.images import image_of

STARTED = datetime(2026, 11, 22, 8, 30, tzinfo=UTC)

# What readers say of a stamp or its signature; each is quoted here alone.
NO_RECORD = "this is not a record of a stamp"
NO_STAMP = "has no stamp"
REPLACED = "was replaced after it was stamped"
NOT_SIGNED = "the stamp is not signed"
ANOTHER_KEY = "it is by another key"
ANOTHER_RECORD = "it was signed for another record"


def wheel(name: str, version: str, url: str = "") -> LockedWheel:
    filename = f"{name}-{version}-py3-none-any.whl"
    digest = Digest.of(filename.encode())
    return LockedWheel(name=name, version=version, filename=filename, sha256=digest, size=10, url=url)


def lock_of(*wheels: LockedWheel) -> Lock:
    zlib = SystemPackage(
        name="zlib1g",
        version="1:1.2.13.dfsg-1",
        architecture="amd64",
        filename="pool/main/z/zlib/zlib1g_1.2.13.dfsg-1_amd64.deb",
        sha256=Digest.of(b"zlib"),
        size=20,
    )
    return Lock(target=Target(python="3.11.2", machine="x86_64", glibc="2.36"), wheels=wheels, packages=(zlib,))


def facts_of(host: str, **changes) -> Facts:
    """Push a small image there; what is known of it."""
    image = image_of()
    pushed = push(image, Reference(host, "team/app", "v1"))
    known: dict[str, Any] = {
        "reference": pushed.reference,
        "image": image,
        "locks": (lock_of(wheel("numpy", "1.26.4"), wheel("requests", "2.32.0")), lock_of()),
        "lock_digests": (Digest.of(b"pylock"),),
        "role": "serve",
        "variant": "cpu",
        "platform": "linux/amd64",
        "environment": Digest.of(b"environment"),
        "base_name": "docker.io/library/python:3.11-slim",
        "base_digest": Digest.of(b"base"),
        "manifest": Digest.of(b"manifest"),
        "model": "gs://bucket/models/churn",
        "model_files": (("saved_model.pb", Digest.of(b"model")),),
        "parent": Reference("registry.example.com", "team/train", None, Digest.of(b"parent")),
        "parameters": (("builder", "assemble"), ("set cuda", "12.2")),
        "started": STARTED,
        "finished": STARTED,
    }
    return Facts(**(known | changes))


def key_pair(folder: Path, name: str = "key", password: str = "", curve: ec.EllipticCurve | None = None):
    """Make a private key; return its file and that of its public key."""
    key = ec.generate_private_key(curve or ec.SECP256R1())
    sealed = BestAvailableEncryption(password.encode()) if password else NoEncryption()
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, sealed))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public
