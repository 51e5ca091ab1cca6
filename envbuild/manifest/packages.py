"""What is installed: distributions, where each came from, what conda has; and how requirements name them."""

import re
from dataclasses import dataclass
from typing import Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion
from packaging.version import Version as PackageVersion

from envbuild.manifest.fields import Address, AnyText, Count, Line, Name, Pairs, Sha256, VariantLabel, Version

OriginKind = Literal["index", "vcs", "archive", "editable", "conda", "unknown"]
"""`editable` is any folder of sources (PEP 610 dir_info), installed in place or copied: no index has it either way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a distribution came from (PEP 610 for all but index and conda)."""

    kind: OriginKind
    """What sort of place.

    index: by name and version. vcs: a commit. archive: one file. editable: a folder of sources, in place or copied.
    conda: a conda package. unknown: nothing says.
    """
    url: Address | None = None
    """Without user name or password. Of index, its address if the record names it."""
    commit: Line | None = None
    """The commit that was installed; of an editable in place, the one checked out."""
    requested_revision: Line | None = None
    """The branch or tag asked for."""
    subdirectory: Line | None = None
    """Where the project lies in the repository or archive."""
    sha256: Sha256 | None = None
    """Digest of the archive or conda package."""
    hashes: tuple[Sha256, ...] = ()
    """Of index, the digests that the record allows, one of which was installed."""
    remote: Address | None = None
    """Of an editable, where its repository is fetched from."""
    dirty: bool | None = None
    """Of an editable, whether tracked files differ from the commit."""
    untracked: Count | None = None
    """Of an editable, how many files or folders git neither tracks nor ignores: no commit or patch holds them."""
    diff_sha256: Sha256 | None = None
    """Of a dirty editable, the digest of `git diff HEAD --binary --full-index -- .` in its folder."""
    patch: AnyText | None = None
    """That difference, if asked for; secrets are cut out."""
    channel: Line | None = None
    """Of a conda package: `conda-forge`."""
    build: Line | None = None
    """Of a conda package: `py311h64a7726_0`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelVariant:
    """A wheel variant (PEP 825, a draft)."""

    label: VariantLabel
    """`cu128`."""
    properties: tuple[Line, ...] | None = None
    """What it needs: `x86_64 :: level :: v3`; absent where unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """One installed distribution."""

    name: Name
    """As its metadata spells it."""
    version: Version | None = None
    """With its local label; absent where another tool's record names only a commit or folder."""
    origin: Origin
    """Where it came from."""
    installer: Line | None = None
    """The INSTALLER file: `pip`, `uv`, `conda`."""
    requested: bool = False
    """Whether it was asked for by name (REQUESTED)."""
    record_sha256: Sha256 | None = None
    """Digest of its RECORD as installed."""
    content_sha256: Sha256 | None = None
    """Digest of the wheel's paths and hashes in RECORD, the same for every installer."""
    modified: tuple[Line, ...] = ()
    """Files that differ from RECORD or conda-meta, at most 50; bytecode does not count."""
    missing: tuple[Line, ...] = ()
    """Files of RECORD or conda-meta that are absent, at most 50; bytecode does not count."""
    changed_files: Count = 0
    """How many files are modified or missing."""
    overwritten: Pairs = ()
    """Files replaced by another distribution, with its name; at most 1,000."""
    shadowed: tuple[Line, ...] = ()
    """Versions later on sys.path, or that an upgrade left behind; imports do not see them."""
    wheel_variant: WheelVariant | None = None
    """The wheel variant that it came from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pth:
    """A .pth file, which changes sys.path or runs code at start (`site`)."""

    name: Line
    """`distutils-precedence.pth`."""
    sha256: Sha256
    """Digest of its content."""
    code: bool
    """Whether it runs code."""
    owner: Name | None = None
    """The distribution that lists it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """What lies beside and between the distributions."""

    method: Literal["size and time", "sha256"] | None = None
    """How files were compared; `size and time` hashes only those that may have changed."""
    files: Count | None = None
    """How many files the distributions list with a digest."""
    unchecked: Count = 0
    """How many of them were not compared, as unreadable or for want of time."""
    unreadable: tuple[Line, ...] = ()
    """Metadata folders without valid name and version, at most 50; what they installed is not recorded."""
    pth: tuple[Pth, ...] = ()
    """The .pth files of the site folders."""
    unowned: tuple[Line, ...] = ()
    """Modules and packages in site folders that no distribution lists, at most 50."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CondaPackage:
    """One package of a conda environment, Python or not."""

    name: Line
    """`cudatoolkit`."""
    version: Line
    """`11.8.0`."""
    build: Line | None = None
    """`h4ba93d1_13`."""
    channel: Line | None = None
    """`conda-forge`."""
    subdir: Line | None = None
    """`linux-64`, `noarch`."""
    sha256: Sha256 | None = None
    """Digest of the package file."""
    url: Address | None = None
    """Where it was fetched from, without a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conda:
    """A conda environment."""

    packages: tuple[CondaPackage, ...]
    """Every package of conda-meta, sorted by name."""
    name: Line | None = None
    """The environment's name."""
    channels: tuple[Line, ...] = ()
    """The channels that commands named, in the order of conda's history."""


def name_of(requirement: str) -> str:
    """Return the normalised name; a version of the run need not be one that PEP 440 allows, so only this is parsed."""
    return canonicalize_name(re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0])


def is_pep440(text: str) -> bool:
    """Whether a text is a version as PEP 440 has it."""
    try:
        return bool(PackageVersion(text).release)
    except InvalidVersion:
        return False


def exact_version(requirement: Requirement) -> str | None:
    """Return the one version that a requirement allows, as it is spelled; None where it allows several."""
    exact = [it.version for it in requirement.specifier if it.operator in {"==", "==="}]
    return exact[0] if len(exact) == 1 and is_pep440(exact[0]) else None
