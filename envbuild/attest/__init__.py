"""What is said of a pushed image beside it: a bill of materials, where it comes from, and signatures."""

from envbuild.attest.model import Facts, Teller, Wanted
from envbuild.errors import RegistryError
from envbuild.oci.digest import Digest
from envbuild.oci.reference import Reference

__all__ = ["Facts", "Wanted", "attest", "check_wanted", "sign"]


def attest(facts: Facts, wanted: Wanted, report: Teller) -> tuple[Digest, ...]:
    """Attach what is wanted to an image that was pushed, and return the digests of what is new.

    What is there of an earlier run stays, and nothing is attached twice. Where the registry takes none of it that is
    told, and is RegistryError only where a signature is wanted. UsageError for a key that cannot be used.
    """
    if not wanted.statements and not wanted.key:
        return ()
    from envbuild.attest.attaching import attach_statements  # noqa: PLC0415 - its libraries are slow to import

    try:
        return attach_statements(facts, wanted, report)
    except RegistryError as error:
        if wanted.key:
            raise
        report.warn(f"the registry has no bill of materials and no provenance of the image: {error.what}")
        return ()


def sign(reference: Reference, wanted: Wanted, report: Teller) -> tuple[Digest, ...]:
    """Sign what a registry has by digest, such as an index of images; nothing without a key. Errors as `attest`."""
    if not wanted.key:
        return ()
    from envbuild.attest.signing import attach_signature  # noqa: PLC0415 - its libraries are slow to import

    return attach_signature(reference, wanted.key, report)


def check_wanted(wanted: Wanted) -> None:
    """Fail before the long work where the key cannot sign: UsageError, MissingComponentError, RegistryError."""
    if wanted.key:
        from envbuild.attest.keys import signer_of  # noqa: PLC0415 - its libraries are slow to import

        signer_of(wanted.key)
