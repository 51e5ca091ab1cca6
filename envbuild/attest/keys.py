"""Private and public keys of signatures: ECDSA on P-256 with SHA-256 only, as cosign's.

A private key is in a PEM file or a variable, with or without a password, also in cosign's encrypted form, or in
Google's Cloud KMS.
"""

import base64
import binascii
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_private_key,
    load_pem_private_key,
    load_pem_public_key,
)
from securesystemslib.exceptions import UnsupportedAlgorithmError, UnsupportedLibraryError
from securesystemslib.signer import CryptoSigner, GCPSigner, Signer, SSlibKey

from envbuild.attest.keyless import KEYLESS, Identity, KeylessSigner
from envbuild.errors import MissingComponentError, RegistryError, UsageError

PASSWORDS: Final = ("ENVBUILD_SIGN_PASSWORD", "COSIGN_PASSWORD")
"""The variables that a private key's password is read from, the first that is set."""
KMS: Final = "gcpkms://"
VARIABLE: Final = "env://"
"""Before the name of a variable that holds the key itself, as CI systems give their secrets (cosign's form)."""
_VERSION = re.compile(
    r"gcpkms://(projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+)/(?:cryptoKeyVersions|versions)/([^/]+)"
)
_COSIGN = re.compile(
    r"-----BEGIN ENCRYPTED (?:SIGSTORE|COSIGN) PRIVATE KEY-----\s+([A-Za-z0-9+/=\s]+?)-----END ENCRYPTED "
)
_SCRYPT_MEMORY = 256 << 20
"""Bytes; cosign's parameters take 64 MiB."""
_LARGEST = 1 << 20
_MAKE = "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out key.pem"


def signer_of(key: str) -> Signer | KeylessSigner:
    """The signer for a key: a file, `env://VARIABLE`, `gcpkms://projects/...`, or `keyless`.

    UsageError for a key that cannot be used, MissingComponentError where a library for its kind is not installed,
    RegistryError where Cloud KMS does not give its public key, or Fulcio no certificate.
    """
    if key == KEYLESS:
        return KeylessSigner.from_ci()
    if key.startswith(KMS):
        return _kms(key)
    if "PRIVATE KEY" in key:  # which must not get into a message
        todo = f"give the key's file, or {VARIABLE}NAME for the variable that holds it"
        raise UsageError("--sign takes the place of a key, not the key itself", where="--sign", todo=todo)
    where = f"--sign {key}"
    data = _read(key, where)
    if b"-----BEGIN PUBLIC KEY-----" in data:
        raise UsageError("a public key cannot sign", where=where, todo="give the private key of the pair")
    if sealed := _COSIGN.search(data.decode("ascii", "replace")):
        private = _unsealed(sealed[1], where)
    else:
        private = _from_pem(data, where)
    if not isinstance(private, EllipticCurvePrivateKey) or not isinstance(private.curve, SECP256R1):
        raise UsageError("not an ECDSA P-256 key", where=where, todo=f"make one: {_MAKE}")
    return CryptoSigner(private)


def public_key_of(key: str) -> SSlibKey | Identity:
    """The public key of a file, of Cloud KMS, or in PEM; or the identity of `keyless:...`.

    Errors as `signer_of`.
    """
    if key.startswith(KEYLESS + ":"):
        return Identity.parse(key)
    if key.startswith(KMS):
        kept = _kms(key).public_key
        assert isinstance(kept, SSlibKey)
        return kept
    shown = "a text in PEM" if key.startswith("-----") else key
    where = f"--signed {shown}"
    data = key.encode() if shown != key else _read(key, where)
    todo = "give the public key in PEM: openssl pkey -in key.pem -pubout, or cosign's cosign.pub"
    try:
        found = load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError("not a public key in PEM", where=where, todo=todo) from error
    if not isinstance(found, EllipticCurvePublicKey) or not isinstance(found.curve, SECP256R1):
        raise UsageError("not an ECDSA P-256 key", where=where, todo=todo)
    return SSlibKey.from_crypto(found)


def hint_of(key: SSlibKey) -> str:
    """Cosign's name of a public key: the digest of its DER, in base64 (cosign, internal/key)."""
    loaded = load_pem_public_key(key.keyval["public"].encode())
    der = loaded.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(hashlib.sha256(der).digest()).decode()


def _read(key: str, where: str) -> bytes:
    if key.startswith(VARIABLE):
        name = key.removeprefix(VARIABLE)
        if not os.environ.get(name):
            raise UsageError("the variable is not set, or empty", where=where, todo="set it to the key")
        return os.environ[name].encode()
    try:
        with Path(key).open("rb") as file:
            return file.read(_LARGEST)
    except OSError as error:
        raise UsageError(f"the key cannot be read: {error.strerror}", where=where, todo="give a PEM file") from error


def _password() -> bytes | None:
    found = next((text for name in PASSWORDS if (text := os.environ.get(name)) is not None), None)
    return found.encode() if found is not None else None


def _from_pem(data: bytes, where: str) -> object:
    password = _password() or None
    try:
        try:
            return load_pem_private_key(data, password)
        except TypeError as error:
            if password is None:
                todo = f"set {PASSWORDS[0]} to it"
                raise UsageError("the key has a password, which is not given", where=where, todo=todo) from error
            return load_pem_private_key(data, None)  # the password is for another key
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _wrong(where, given=password is not None) from error


def _unsealed(text: str, where: str) -> object:
    """Decrypt cosign's form of a private key: scrypt, and NaCl's secret box (go-securesystemslib, `encrypted`)."""
    try:
        from nacl.exceptions import CryptoError  # noqa: PLC0415 - not everybody has it
        from nacl.secret import SecretBox  # noqa: PLC0415
    except ImportError as error:
        raise _missing("PyNaCl opens keys that cosign made", where) from error
    try:
        value = json.loads(base64.b64decode(text))
        kdf, cipher = value["kdf"]["params"], value["cipher"]
        key = hashlib.scrypt(
            _password() or b"",
            salt=base64.b64decode(value["kdf"]["salt"]),
            n=kdf["N"],
            r=kdf["r"],
            p=kdf["p"],
            maxmem=_SCRYPT_MEMORY,
            dklen=SecretBox.KEY_SIZE,
        )
        opened = SecretBox(key).decrypt(base64.b64decode(value["ciphertext"]), base64.b64decode(cipher["nonce"]))
        return load_der_private_key(opened, None)
    except (ValueError, KeyError, TypeError, binascii.Error, CryptoError, UnsupportedAlgorithm) as error:
        raise _wrong(where, given=_password() is not None) from error


def _wrong(where: str, *, given: bool) -> UsageError:
    what = "the key cannot be read, or its password is wrong" if given else "not a private key in PEM"
    return UsageError(what, where=where, todo=f"see {PASSWORDS[0]}; or make a key: {_MAKE}")


def _kms(key: str) -> Signer:
    """The signer of a key in Cloud KMS; it needs roles cloudkms.publicKeyViewer and cloudkms.signer."""
    where = f"--sign {key}"
    named = _VERSION.fullmatch(key)
    if named is None:
        todo = f"give {KMS}projects/P/locations/L/keyRings/R/cryptoKeys/K/cryptoKeyVersions/1"
        raise UsageError("not a version of a key in Cloud KMS", where=where, todo=todo)
    name = f"{named[1]}/cryptoKeyVersions/{named[2]}"
    try:
        _, public = GCPSigner.import_(name)
        signer = GCPSigner(name, public)
    except UnsupportedLibraryError as error:
        raise _missing("Google's library talks to Cloud KMS", where) from error
    except UnsupportedAlgorithmError as error:
        raise UsageError("not an ECDSA P-256 key", where=where, todo="make one: EC_SIGN_P256_SHA256") from error
    except Exception as error:
        raise kms_refusal(error, where) from error
    if public.scheme != "ecdsa-sha2-nistp256":
        raise UsageError("not an ECDSA P-256 key", where=where, todo="make one: EC_SIGN_P256_SHA256")
    return signer


def kms_refusal(error: Exception, where: str) -> RegistryError:
    """The error when Cloud KMS fails; its library has no common class of errors."""
    what = f"Cloud KMS does not sign with this key: {type(error).__name__}: {str(error)[:300]}"
    todo = "check the key's name, the login, and the roles cloudkms.publicKeyViewer and cloudkms.signer"
    return RegistryError(what, where=where, todo=todo)


def _missing(what: str, where: str) -> MissingComponentError:
    return MissingComponentError(f"{what}, and it is not installed", where=where, todo="pip install 'envbuild[sign]'")
