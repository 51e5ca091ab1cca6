"""What things are called in statements: package URLs, and names without paths of this machine and without logins.

https://github.com/package-url/purl-spec
"""

import re
from urllib.parse import urlsplit, urlunsplit

from packageurl import PackageURL

from envbuild.attest.model import DEBIAN
from envbuild.capture.redact import scrub_line
from envbuild.lock.model import LockedWheel, SystemPackage
from envbuild.oci.digest import Digest
from envbuild.oci.reference import Reference

_FILE = re.compile(r"\bfile:\S+")


def wheel_purl(wheel: LockedWheel) -> PackageURL:
    """`pkg:pypi/numpy@1.26.4`."""
    return PackageURL("pypi", None, wheel.name, wheel.version)


def package_purl(package: SystemPackage) -> PackageURL:
    """`pkg:deb/debian/zlib1g@1%3A1.2.13.dfsg-1?arch=amd64`."""
    return PackageURL("deb", "debian", package.name, package.version, {"arch": package.architecture})


def image_purl(reference: Reference, digest: Digest) -> PackageURL:
    """`pkg:oci/churn@sha256%3A...?repository_url=registry/team/churn`."""
    name = reference.repository.rpartition("/")[2]
    return PackageURL("oci", None, name, str(digest), {"repository_url": reference.name})


def base_reference(name: str) -> Reference | None:
    """Where a base lies, if that is a registry; None for what may be a folder here, or no reference at all."""
    if name.startswith(("/", ".", "~", DEBIAN)):
        return None
    try:
        return Reference.parse(name)
    except ValueError:
        return None


def public_name(text: str) -> str:
    """A URI without login and query; of a path of this machine only its last part."""
    parts = urlsplit(text)
    if not parts.netloc:
        return text.rstrip("/").rpartition("/")[2]
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def public_text(text: str) -> str:
    """One line of what somebody typed, without what looks like a secret and without addresses of files here."""
    return _FILE.sub("file:...", scrub_line(text))
