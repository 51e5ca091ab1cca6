"""Which certificates are believed: those of a bundle that was asked for and no others, else this machine's."""

import os
import ssl
from functools import lru_cache
from pathlib import Path

from envbuild.errors import LockError, UsageError
from envbuild.lock.settings import IndexSettings
from envbuild.network import trusted_certificates

_IN_PEM = "give a file of certificates in PEM"


def check_bundle(path: Path) -> None:
    """See that a bundle that was asked for holds a certificate, before any work; UsageError."""
    where = f"--ca-bundle {path}"
    if not path.is_file():
        raise UsageError("there is no such file of certificates", where=where, todo=_IN_PEM)
    try:
        _only(str(path))
    except OSError as error:
        raise UsageError(f"the CA bundle cannot be read: {error}", where=where, todo=_IN_PEM) from error


def trusted(settings: IndexSettings) -> ssl.SSLContext:
    """The bundle that was asked for alone, as with pip's `--cert`; else this machine's (OpenSSL reads SSL_CERT_FILE and
    SSL_CERT_DIR itself) with pip's bundle or with certifi's; LockError when a bundle cannot be read.
    """
    if settings.ca_bundle:
        return _asked(settings.ca_bundle)
    try:
        return trusted_certificates(settings.certificates)
    except OSError as error:
        todo = "correct SSL_CERT_FILE, or cert in pip's settings"
        where = os.environ.get("SSL_CERT_FILE") or settings.certificates or ""
        raise LockError(f"the CA bundle cannot be read: {error}", where=where, todo=todo) from error


def _asked(bundle: str) -> ssl.SSLContext:
    try:
        return _only(bundle)
    except OSError as error:
        what = f"the CA bundle cannot be read: {error}"
        raise LockError(what, where=f"--ca-bundle {bundle}", todo=_IN_PEM) from error


@lru_cache(maxsize=4)
def _only(bundle: str) -> ssl.SSLContext:
    """A context with these authorities alone, read once; OSError, of which ssl.SSLError is one, when there are none."""
    context = ssl.create_default_context(cafile=bundle)
    if not context.cert_store_stats()["x509"]:
        raise ssl.SSLError("no certificate found")
    return context
