"""Signatures of stamp records: statements in bundles, by the same keys and the same code as those of images."""

from collections.abc import Sequence
from dataclasses import dataclass

from securesystemslib.signer import Signer, SSlibKey

from envbuild.attest.bundle import judge, sign_statement
from envbuild.attest.keyless import Identity, KeylessSigner
from envbuild.attest.keys import public_key_of, signer_of
from envbuild.attest.statement import statement
from envbuild.oci.digest import Digest

RECORD = "https://envbuild.dev/stamp-record/v1"
"""The predicate of a record's signature; a signature of an image has another, so that neither stands for the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordKeys:
    """Public keys, one of which has to have signed a record."""

    keys: tuple[SSlibKey | Identity, ...]

    def fault(self, bundle: bytes, record: Digest) -> str:
        """What is wrong with a signature of a record; empty if one of the keys signed this record."""
        says = "there is no key"
        for key in self.keys:
            judged = judge(bundle, record, key)
            if judged.standing == "holds" and judged.kind == RECORD:
                return ""
            says = f"it is a statement about something else: {judged.kind:.200}" if not judged.says else judged.says
            says = "it was signed for another record" if judged.standing == "other-image" else says
        return says


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSigner(RecordKeys):
    """A private key that signs records."""

    signer: Signer | KeylessSigner
    where: str
    minimum: int = 0
    """The lowest counter of a record that it continues; 0 where it may write the first one."""

    def sign(self, record: Digest) -> bytes:
        """Sign a record; RegistryError where Cloud KMS does not sign."""
        return sign_statement(statement(record, RECORD, {}), self.signer, self.where)


def record_keys(keys: Sequence[str]) -> RecordKeys:
    """The public keys that are named; errors as `public_key_of`."""
    return RecordKeys(keys=tuple(public_key_of(it) for it in keys))


def record_signer(key: str, trusted: Sequence[str] = (), minimum: int = 0) -> RecordSigner:
    """What signs with a key, and continues records of this key and of those that are trusted; errors as `signer_of`.

    It refuses to continue a record with a counter below `minimum`.
    """
    signer = signer_of(key)
    public = signer.public_key
    assert isinstance(public, SSlibKey | Identity)
    keys = (public, *(public_key_of(it) for it in trusted))
    return RecordSigner(keys=keys, signer=signer, where=f"--sign {key}", minimum=minimum)
