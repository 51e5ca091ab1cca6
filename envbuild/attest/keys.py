"""Keys and identities of signatures: ECDSA on P-256 with SHA-256 as cosign's, or the identity of a CI job.

A private key is in a PEM file or a variable, with or without a password, also in cosign's encrypted form, or in
Google's Cloud KMS. Instead of a key, sigstore takes the job's OIDC token: Fulcio issues a certificate for ten minutes,
and Rekor's public log keeps each signature with its time. https://docs.sigstore.dev/about/security/
"""

import base64
import hashlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_private_key,
    load_pem_private_key,
    load_pem_public_key,
)
from cryptography.x509 import Certificate, ObjectIdentifier, SubjectAlternativeName, load_der_x509_certificate
from securesystemslib.exceptions import UnsupportedAlgorithmError, UnsupportedLibraryError
from securesystemslib.signer import CryptoSigner, GCPSigner, Signer, SSlibKey

from envbuild.capture.redact import scrub_line
from envbuild.errors import EnvbuildError, MissingComponentError, RegistryError, UsageError, VerifyError
from envbuild.retry import within

if TYPE_CHECKING:
    from sigstore.models import ClientTrustConfig
    from sigstore.sign import Signer as SigstoreSigner
    from sigstore.verify.policy import VerificationPolicy

T = TypeVar("T")
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
_NOT_P256 = "not an ECDSA P-256 key"
_INSTALL = "pip install 'envbuild[sign]'"
KEYLESS: Final = "keyless"
"""What `--sign` takes; `--signed` takes `keyless:ISSUER=IDENTITY`."""
TRUST_CONFIG: Final = "ENVBUILD_SIGSTORE_TRUST_CONFIG"
"""The variable with the path of a Sigstore instance's client trust config; without it the public instance counts."""
TOKEN: Final = "SIGSTORE_ID_TOKEN"  # noqa: S105 - the variable's name
SECONDS: Final = 60
"""For each step. Sigstore's requests to Fulcio and Rekor have no timeout of their own; Rekor may take 20 seconds."""
_ISSUER: Final = ObjectIdentifier("1.3.6.1.4.1.57264.1.1")
"""The certificate's extension that names the token's issuer (fulcio, docs/oid-info.md)."""
_EXAMPLE: Final = (
    "keyless:https://token.actions.githubusercontent.com="
    "https://github.com/ORG/REPO/.github/workflows/FILE.yml@refs/heads/main"
)
_SETUP: Final = (
    f"on GitHub give the job `permissions: id-token: write`, on GitLab `id_tokens: {TOKEN}: aud: sigstore`; "
    f"elsewhere set {TOKEN} to an OIDC token for the audience sigstore"
)
_CHECK: Final = f"check the network, the clock, and how long the token is valid; {TRUST_CONFIG} names another Sigstore"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The identity that a certificate must name, with its OIDC issuer."""

    issuer: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `keyless:ISSUER=IDENTITY`; UsageError, or MissingComponentError without sigstore."""
        issuer, _, name = text.removeprefix(f"{KEYLESS}:").partition("=")
        if not issuer or not name:
            raise UsageError("not an identity", where=f"--signed {text}", todo=f"give {_EXAMPLE}")
        _check_installed(f"--signed {text}")
        return cls(issuer=issuer, name=name)

    @classmethod
    def of(cls, certificate: Certificate) -> Self:
        """Read the identity that Fulcio certified."""
        issuer: Any = certificate.extensions.get_extension_for_oid(_ISSUER).value
        [name] = certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
        return cls(issuer=issuer.value.decode(), name=str(name.value))

    def difference(self, certificate: bytes) -> str:
        """How a certificate in DER, of any issuer, names another identity; empty if it names this one."""
        try:
            self._policy().verify(load_der_x509_certificate(certificate))
        except Exception as error:  # noqa: BLE001 - the bytes are anybody's, and there is no one class of errors
            return _text(error)
        return ""

    def verify(self, bundle: bytes) -> tuple[bytes, str]:
        """Return payload and payload type if certificate, log entry, time and signature hold; VerifyError otherwise.

        RegistryError if the public trust root cannot be fetched, UsageError for a trust config that cannot be used.
        """
        from sigstore.models import Bundle  # noqa: PLC0415 - slow to import
        from sigstore.verify import Verifier  # noqa: PLC0415

        root = _trust_config(os.environ.get(TRUST_CONFIG, "")).trusted_root
        try:
            kind, payload = Verifier(trusted_root=root).verify_dsse(Bundle.from_json(bundle), self._policy())
        except Exception as error:
            raise VerifyError(_text(error)) from error
        return payload, kind

    def _policy(self) -> "VerificationPolicy":
        from sigstore.verify.policy import Identity as Policy  # noqa: PLC0415 - slow to import

        return Policy(identity=self.name, issuer=self.issuer)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeylessSigner:
    """Signs with a key that only this process has, and that Fulcio certified for its CI job."""

    public_key: Identity
    """The identity in the certificate."""
    signer: "SigstoreSigner"
    expires: datetime

    @classmethod
    def from_ci(cls) -> "KeylessSigner":
        """Get a certificate for the CI job that this process runs in; it is reused until two minutes before its end.

        UsageError without a CI identity, MissingComponentError without sigstore, RegistryError where the
        identity, the trust root or the certificate is refused.
        """
        where = f"--sign {KEYLESS}"
        _check_installed(where)
        key = (os.environ.get(TRUST_CONFIG, ""), os.environ.get(TOKEN, ""))
        if (known := CERTIFIED.get(key)) and known.expires - datetime.now(UTC) > timedelta(minutes=2):
            return known
        from sigstore.oidc import IdentityToken  # noqa: PLC0415 - slow to import
        from sigstore.sign import Signer as SigstoreSigner  # noqa: PLC0415
        from sigstore.sign import SigningContext  # noqa: PLC0415

        def certified() -> KeylessSigner:
            token = IdentityToken(_token(where))
            signer = SigstoreSigner(token, SigningContext.from_trust_config(_trust_config(key[0])))
            # Only the certificate says what the identity is, and the library has no public way to it before signing.
            certificate = signer._signing_cert()  # noqa: SLF001
            expires = certificate.not_valid_after_utc
            return cls(public_key=Identity.of(certificate), signer=signer, expires=expires)

        CERTIFIED[key] = _step(certified, "cannot get a signing certificate", where)
        return CERTIFIED[key]

    def sign(self, payload: bytes, where: str) -> bytes:
        """Return a bundle with a signed time that anybody can verify; RegistryError."""
        from sigstore.dsse import Statement  # noqa: PLC0415 - slow to import

        def signed() -> bytes:
            bundle = self.signer.sign_dsse(Statement(payload)).to_json().encode()
            self.public_key.verify(bundle)  # the library makes a bundle without a time if a timestamp is refused
            return bundle

        return _step(signed, "cannot sign", where)


CERTIFIED: Final[dict[tuple[str, str], KeylessSigner]] = {}
"""The last certificate, by trust config and token: one command signs several times, and each request may fail."""


def _check_installed(where: str) -> None:
    if find_spec("sigstore") is None:
        todo = "pip install 'envbuild[keyless]'"
        raise MissingComponentError("keyless signatures need sigstore, which is not installed", where=where, todo=todo)


@cache
def _trust_config(path: str) -> "ClientTrustConfig":
    """Return the trust config: which Sigstore instance is trusted, and its addresses; read once."""
    from sigstore.models import ClientTrustConfig  # noqa: PLC0415 - slow to import

    if not path:
        return _step(ClientTrustConfig.production, "cannot get Sigstore's trust root", "tuf-repo-cdn.sigstore.dev")
    try:
        config = ClientTrustConfig.from_json(Path(path).read_text())
        _ = config.trusted_root
    except Exception as error:
        what = f"the trust config cannot be used: {_text(error)}"
        todo = "give a client trust config: JSON with trustedRoot and signingConfig"
        raise UsageError(what, where=f"{TRUST_CONFIG}={path}", todo=todo) from error
    return config


def _token(where: str) -> str:
    """Return the CI job's OIDC token, a secret: its owner can sign as this job while it is valid."""
    from id import GitHubOidcPermissionCredentialError  # noqa: PLC0415 - a part of sigstore
    from sigstore.oidc import IdentityError, detect_credential  # noqa: PLC0415

    try:
        token = os.environ.get(TOKEN, "").strip() or detect_credential()
    except IdentityError as error:
        if not isinstance(error.__cause__, GitHubOidcPermissionCredentialError):
            raise
        token = None
    if not token:
        raise UsageError("there is no CI identity to sign with", where=where, todo=_SETUP)
    return token


def _step(work: Callable[[], T], what: str, where: str) -> T:
    """Run a step that sends requests; RegistryError for any error of the library, and after 60 seconds."""
    try:
        return within(SECONDS, work)
    except VerifyError as error:
        raise RegistryError(f"{what}: the new bundle does not hold: {error.what}", where=where, todo=_CHECK) from error
    except EnvbuildError:
        raise
    except TimeoutError as error:
        raise RegistryError(f"{what}: no answer within {SECONDS} seconds", where=where, todo=_CHECK) from error
    except Exception as error:
        raise RegistryError(f"{what}: {_text(error)}", where=where, todo=_CHECK) from error


def _text(error: Exception) -> str:
    """An error of the library, with its cause and the service's answer, in one line without tokens."""
    cause = error.__cause__
    answer = getattr(getattr(cause, "response", None), "text", "")
    said = [type(error).__name__, str(error), type(cause).__name__ if cause else "", str(cause or ""), answer]
    text = " ".join("".join(c if c.isprintable() else " " for c in ": ".join(filter(None, said))).split())
    return scrub_line(text)[:400]


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
    sealed = _COSIGN.search(data.decode("ascii", "replace"))
    try:
        private = _unsealed(sealed[1], where) if sealed else _from_pem(data, where)
    except (ValueError, KeyError, TypeError, UnsupportedAlgorithm) as error:
        is_given = _password() is not None if sealed else bool(_password())
        what = "the key cannot be read, or its password is wrong" if is_given else "not a private key in PEM"
        raise UsageError(what, where=where, todo=f"see {PASSWORDS[0]}; or make a key: {_MAKE}") from error
    if not isinstance(private, EllipticCurvePrivateKey) or not isinstance(private.curve, SECP256R1):
        raise UsageError(_NOT_P256, where=where, todo=f"make one: {_MAKE}")
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
        raise UsageError(_NOT_P256, where=where, todo=todo)
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
    return next((text.encode() for name in PASSWORDS if (text := os.environ.get(name)) is not None), None)


def _from_pem(data: bytes, where: str) -> object:
    password = _password() or None
    try:
        return load_pem_private_key(data, password)
    except TypeError as error:
        if password is None:
            todo = f"set {PASSWORDS[0]} to it"
            raise UsageError("the key has a password, which is not given", where=where, todo=todo) from error
        return load_pem_private_key(data, None)  # the password is for another key


def _unsealed(text: str, where: str) -> object:
    """Decrypt cosign's form of a private key: scrypt, and NaCl's secret box (go-securesystemslib, `encrypted`)."""
    try:
        from nacl.exceptions import CryptoError  # noqa: PLC0415 - not everybody has it
        from nacl.secret import SecretBox  # noqa: PLC0415
    except ImportError as error:
        what = "PyNaCl is not installed, which opens keys that cosign made"
        raise MissingComponentError(what, where=where, todo=_INSTALL) from error
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
    except CryptoError as error:
        raise ValueError(str(error)) from error
    return load_der_private_key(opened, None)


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
        what = "Google's library for Cloud KMS is not installed"
        raise MissingComponentError(what, where=where, todo=_INSTALL) from error
    except UnsupportedAlgorithmError as error:
        raise UsageError(_NOT_P256, where=where, todo="make one: EC_SIGN_P256_SHA256") from error
    except Exception as error:
        raise kms_refusal(error, where) from error
    if public.scheme != "ecdsa-sha2-nistp256":
        raise UsageError(_NOT_P256, where=where, todo="make one: EC_SIGN_P256_SHA256")
    return signer


def kms_refusal(error: Exception, where: str) -> RegistryError:
    """The error when Cloud KMS fails; its library has no common class of errors."""
    what = f"Cloud KMS does not sign with this key: {type(error).__name__}: {str(error)[:300]}"
    todo = "check the key's name, the login, and the roles cloudkms.publicKeyViewer and cloudkms.signer"
    return RegistryError(what, where=where, todo=todo)
