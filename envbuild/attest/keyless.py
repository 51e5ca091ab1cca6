"""Signatures by the identity of a CI job instead of a key, as sigstore makes them.

Fulcio issues a certificate for ten minutes for the job's OIDC token, and Rekor's public log keeps each signature with
its time. https://docs.sigstore.dev/about/security/
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from cryptography.x509 import Certificate, ObjectIdentifier, SubjectAlternativeName, load_der_x509_certificate

from envbuild.capture.redact import scrub_line
from envbuild.errors import EnvbuildError, MissingComponentError, RegistryError, UsageError, VerifyError
from envbuild.retry import within

if TYPE_CHECKING:
    from sigstore.models import ClientTrustConfig
    from sigstore.sign import Signer
    from sigstore.verify.policy import VerificationPolicy

T = TypeVar("T")

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

        root = _trust_config().trusted_root
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
    signer: "Signer"
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
            signer = SigstoreSigner(token, SigningContext.from_trust_config(_trust_config()))
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
def _config_of(path: str) -> "ClientTrustConfig":
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


def _trust_config() -> "ClientTrustConfig":
    """Return the trust config: which Sigstore instance is trusted, and its addresses; read once."""
    return _config_of(os.environ.get(TRUST_CONFIG, ""))


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
