"""A Sigstore instance of one process: Fulcio, its CT log, Rekor (API version 1), and GitHub's endpoint for CI tokens."""

import base64
import hashlib
import json
import struct
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from tests.fakes.web import WebHandler, WebServer

ISSUER = "https://token.actions.githubusercontent.com"
WORKFLOW = "acme/ml/.github/workflows/train.yml@refs/heads/main"
IDENTITY = f"https://github.com/{WORKFLOW}"
SIGNED = f"keyless:{ISSUER}={IDENTITY}"
_SCT = ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
_ORIGIN = "rekor.example"
_SINCE = {"start": "2020-01-01T00:00:00Z"}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


class _Key:
    def __init__(self) -> None:
        self.private = ec.generate_private_key(ec.SECP256R1())
        self.der = self.private.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        self.id = hashlib.sha256(self.der).digest()

    def sign(self, data: bytes) -> bytes:
        return self.private.sign(data, ec.ECDSA(SHA256()))

    def as_log(self, url: str) -> dict[str, Any]:
        public = {"rawBytes": _text(self.der), "keyDetails": "PKIX_ECDSA_P256_SHA_256", "validFor": _SINCE}
        return {"baseUrl": url, "hashAlgorithm": "SHA2_256", "publicKey": public, "logId": {"keyId": _text(self.id)}}


class FakeSigstore(WebServer):
    """Certifies whoever shows a token, and logs whatever it is sent; what it was asked is kept."""

    def __init__(self) -> None:
        self._fulcio, self._certificates, self._rekor = _Key(), _Key(), _Key()
        self.asked: list[str] = []
        self.bodies: dict[str, bytes] = {}
        """The last request, by path."""
        self.silent = threading.Event()
        """While it is clear nothing is answered."""
        self.silent.set()
        self.refuse: dict[str, tuple[int, str]] = {}
        """The answers to give instead, by path."""
        self.delay = timedelta()
        """By how much the log's clock is ahead."""
        self.extension = "1.3.6.1.4.1.57264.1.1"
        """Where a certificate names the token's issuer."""
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fulcio.example")])
        public = self._fulcio.private.public_key()
        usage = {it: it in ("key_cert_sign", "crl_sign") for it in _USAGES}
        self._root = (
            self._lasting(x509.CertificateBuilder(), timedelta(days=30), datetime.now(UTC) - timedelta(days=20))
            .subject_name(name)
            .issuer_name(name)
            .public_key(public)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.KeyUsage(**usage), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(self._fulcio.private, SHA256())
        )
        self.listen(_Handler, fake=self)

    def trust_config(self, folder: Path) -> Path:
        """The file that makes a client trust this instance alone."""
        service = [{"url": self.url, "majorApiVersion": 1, "validFor": _SINCE, "operator": "example"}]
        root = {"rawBytes": _text(self._root.public_bytes(Encoding.DER))}
        authority = {
            "subject": {"organization": "example", "commonName": "fulcio.example"},
            "uri": self.url,
            "validFor": _SINCE,
        }
        media_type = "application/vnd.dev.sigstore"
        value = {
            "mediaType": f"{media_type}.clienttrustconfig.v0.1+json",
            "trustedRoot": {
                "mediaType": f"{media_type}.trustedroot+json;version=0.1",
                "tlogs": [self._rekor.as_log(self.url)],
                "certificateAuthorities": [authority | {"certChain": {"certificates": [root]}}],
                "ctlogs": [self._certificates.as_log(self.url)],
                "timestampAuthorities": [],
            },
            "signingConfig": {
                "mediaType": f"{media_type}.signingconfig.v0.2+json",
                "caUrls": service,
                "oidcUrls": service,
                "rekorTlogUrls": service,
                "rekorTlogConfig": {"selector": "ANY"},
            },
        }
        path = folder / f"sigstore-{self._server.server_port}.json"
        path.write_text(json.dumps(value))
        return path

    def token(self, workflow: str = WORKFLOW, issuer: str = ISSUER, seconds: int = 300) -> str:
        """What GitHub gives a job; who signed it is checked by the real Fulcio alone."""
        now = int(time.time())
        claims = {
            "iss": issuer,
            "aud": "sigstore",
            "iat": now - 600,
            "exp": now + seconds,
            "job_workflow_ref": workflow,
        }
        return jwt.encode(claims | {"sub": "repo:acme/ml:ref:refs/heads/main"}, "k" * 32, "HS256")

    def certify(self, request: dict[str, Any], token: str) -> dict[str, Any]:
        """Fulcio's answer: a certificate for the key of the request, with the CT log's promise in it."""
        claims = jwt.decode(token, options={"verify_signature": False})
        wanted = x509.load_pem_x509_csr(base64.b64decode(request["certificateSigningRequest"]))
        usage = {it: it == "digital_signature" for it in _USAGES}
        identity = x509.UniformResourceIdentifier(f"https://github.com/{claims['job_workflow_ref']}")
        issuer = x509.UnrecognizedExtension(ObjectIdentifier(self.extension), claims["iss"].encode())
        builder = (
            self._lasting(x509.CertificateBuilder(), timedelta(minutes=10), datetime.now(UTC))
            .subject_name(x509.Name([]))
            .issuer_name(self._root.subject)
            .public_key(wanted.public_key())
            .add_extension(x509.KeyUsage(**usage), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._fulcio.private.public_key()), critical=False
            )
            .add_extension(x509.SubjectAlternativeName([identity]), critical=True)
            .add_extension(issuer, critical=False)
        )
        promise = self._promise(builder.sign(self._fulcio.private, SHA256()).tbs_certificate_bytes)
        leaf = builder.add_extension(promise, critical=False).sign(self._fulcio.private, SHA256())
        chain = [it.public_bytes(Encoding.PEM).decode() for it in (leaf, self._root)]
        return {"signedCertificateEmbeddedSct": {"chain": {"certificates": chain}}}

    def log(self, request: dict[str, Any]) -> dict[str, Any]:
        """Rekor's answer: the entry, in a log that has no other."""
        proposed = request["spec"]["proposedContent"]
        envelope = json.loads(proposed["envelope"])
        [verifier], [signature] = proposed["verifiers"], envelope["signatures"]
        hashes = {
            name: {"algorithm": "sha256", "value": hashlib.sha256(data).hexdigest()}
            for name, data in (
                ("envelopeHash", proposed["envelope"].encode()),
                ("payloadHash", base64.b64decode(envelope["payload"])),
            )
        }
        spec = hashes | {"signatures": [{"signature": signature["sig"], "verifier": verifier}]}
        body = json.dumps({"apiVersion": "0.0.1", "kind": "dsse", "spec": spec}).encode()
        moment = int(time.time() + self.delay.total_seconds())
        entry = {"body": _text(body), "integratedTime": moment, "logID": self._rekor.id.hex(), "logIndex": 0}
        canonical = json.dumps(entry, sort_keys=True, separators=(",", ":")).encode()
        root = hashlib.sha256(b"\0" + body).digest()
        note = f"{_ORIGIN}\n1\n{_text(root)}\n"
        signed = _text(self._rekor.id[:4] + self._rekor.sign(note.encode()))
        proof = {"hashes": [], "logIndex": 0, "rootHash": root.hex(), "treeSize": 1}
        verification = {
            "inclusionProof": proof | {"checkpoint": f"{note}\n\u2014 {_ORIGIN} {signed}\n"},
            "signedEntryTimestamp": _text(self._rekor.sign(canonical)),
        }
        return {"00": entry | {"verification": verification}}

    def _lasting(self, builder: x509.CertificateBuilder, span: timedelta, start: datetime) -> x509.CertificateBuilder:
        numbered = builder.serial_number(x509.random_serial_number())
        return numbered.not_valid_before(start).not_valid_after(start + span)

    def _promise(self, certificate: bytes) -> x509.UnrecognizedExtension:
        """An SCT list (RFC 6962, section 3.3) of one SCT for what becomes the certificate."""
        moment = int(time.time() * 1000)
        length = len(certificate).to_bytes(3, "big")
        entry = struct.pack("!H32s", 1, self._fulcio.id) + length + certificate
        signature = self._certificates.sign(struct.pack("!BBQ", 0, 0, moment) + entry + b"\0\0")
        sct = struct.pack("!B32sQHBBH", 0, self._certificates.id, moment, 0, 4, 3, len(signature)) + signature
        listed = struct.pack("!HH", len(sct) + 2, len(sct)) + sct
        assert len(listed) < 128
        return x509.UnrecognizedExtension(_SCT, bytes([4, len(listed)]) + listed)


_USAGES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


class _Handler(WebHandler):
    fake: FakeSigstore

    def do_GET(self) -> None:
        self._answer(lambda: {"value": self.fake.token()})

    def do_POST(self) -> None:
        self.fake.bodies[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        body = json.loads(self.fake.bodies[self.path])
        token = (self.headers["Authorization"] or "").removeprefix("Bearer ")
        certifies = self.path == "/api/v2/signingCert"
        self._answer(lambda: self.fake.certify(body, token) if certifies else self.fake.log(body))

    def _answer(self, content: Any) -> None:
        path = self.path.partition("?")[0]
        self.fake.asked.append(path)
        self.fake.silent.wait()
        status, text = self.fake.refuse.get(path) or (201, json.dumps(content()))
        status = 200 if self.command == "GET" and status == 201 else status
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())
