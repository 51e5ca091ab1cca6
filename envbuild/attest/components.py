"""The components of a bill of materials, and which of them require which.

Licences, people and requirements are what each distribution and package says about itself.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.contact import OrganizationalContact, OrganizationalEntity
from cyclonedx.model.license import License
from cyclonedx.spdx import fixup_id, is_supported_id
from packageurl import PackageURL
from packaging.utils import canonicalize_name

from envbuild.attest.parts import Parts
from envbuild.attest.statement import DEBIAN, Facts, base_reference, image_purl, package_purl, public_name, wheel_purl
from envbuild.base.contents import BaseContents, InstalledPackage
from envbuild.lock.dependencies import find_edges, marker_environment
from envbuild.lock.metadata import Description, Metadata
from envbuild.lock.model import LockedWheel
from envbuild.oci.digest import Digest
from envbuild.recipe import PREFIX

_GNU = re.compile(r"(A?GPL|LGPL|GFDL)-(\d)(?:\.(\d))?(\+)?")
"""Debian's names of GNU licences: `LGPL-2.1+`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A component of the graph, and the references of those that it requires."""

    component: Component
    requires: tuple[str, ...] = ()

    @property
    def reference(self) -> str:
        """What names the component in the bill."""
        return str(self.component.bom_ref.value)


def base_nodes(facts: Facts, parts: Parts) -> Iterator[Node]:
    """Yield the base, and what it has: its distribution, its packages, and its distributions of Python."""
    contents, locked = parts.base, {it.name: it for lock in facts.locks for it in lock.packages}
    added = {name: str(_in_distribution(package_purl(it), contents.release)) for name, it in locked.items()}
    packages = _installed(contents.packages, contents.release, added)
    inside = [*_system(contents), *packages, *_base_distributions(contents.distributions)]
    reference = base_reference(facts.base_name)
    bootstrapped = facts.base_name if facts.base_name.startswith(DEBIAN) else "base"
    base = Component(
        name=reference.name if reference else bootstrapped,
        type=ComponentType.CONTAINER,
        version=str(facts.base_digest),
        purl=image_purl(reference, facts.base_digest) if reference else None,
        bom_ref="base",
    )
    yield Node(component=base, requires=tuple(it.reference for it in inside))
    yield from inside


def added_nodes(facts: Facts, parts: Parts) -> Iterator[Node]:
    """Yield Python, the wheels and packages of the locks, and the model."""
    target, release = facts.locks[0].target, parts.base.release
    python = Component(
        name="python",
        type=ComponentType.PLATFORM,
        version=target.python,
        purl=PackageURL("generic", None, "python", target.python),
        supplier=OrganizationalEntity(name="Python Software Foundation"),
        licenses=_licenses(["Python-2.0"]),
        bom_ref="python",
    )
    yield Node(component=python)
    wheels = list({_reference(it): it for lock in facts.locks for it in lock.wheels}.values())
    declared = {it.name: found.metadata.requires for it in wheels if (found := parts.wheels.get(it.sha256))}
    declared = dict.fromkeys((it.name for it in wheels), ()) | declared
    edges, references = find_edges(declared, marker_environment(target)), {it.name: _reference(it) for it in wheels}
    for wheel in wheels:
        component = _wheel(wheel, parts.wheels.get(wheel.sha256), target.python_minor)
        required = [references[it] for it in sorted(edges[wheel.name])]
        vendored = [str(it.bom_ref.value) for it in component.components]
        yield Node(component=component, requires=(*required, *vendored))
    packages = {_in_distribution(package_purl(it), release): it for lock in facts.locks for it in lock.packages}
    for purl, package in packages.items():
        yield Node(component=_library(package.name, package.version, purl, package.sha256))
    if facts.model:
        files = [
            Component(name=path, type=ComponentType.FILE, hashes=[_hash(digest)], bom_ref=f"model/{path}")
            for path, digest in facts.model_files
        ]
        kind = ComponentType.MACHINE_LEARNING_MODEL
        yield Node(component=Component(name=public_name(facts.model), type=kind, bom_ref="model", components=files))


def _reference(wheel: LockedWheel) -> str:
    return str(wheel_purl(wheel))


def _wheel(wheel: LockedWheel, description: Description | None, python_minor: str) -> Component:
    component = _library(wheel.name, wheel.version, wheel_purl(wheel), wheel.sha256)
    if description:
        _describe(component, description.metadata)
        site = f"{PREFIX[1:]}/lib/python{python_minor}/site-packages"
        component.components = (
            _distribution(it, f"{component.bom_ref.value}#{it.path}") for it in description.vendored
        )
        component.external_references = (
            ExternalReference(
                type=ExternalReferenceType.BOM,
                url=XsUri(quote(f"{site}/{it.path}")),
                comment="in the image (PEP 770)",
                hashes=[_hash(Digest(it.sha256))],
            )
            for it in description.documents
        )
    return component


def _base_distributions(distributions: Iterable[Metadata]) -> Iterator[Node]:
    for it in distributions:
        yield Node(component=_distribution(it, f"base#{it.path}"))


def _distribution(metadata: Metadata, reference: str) -> Component:
    """A distribution that no lock has: a vendored one, or one of the base."""
    name = str(canonicalize_name(metadata.name))
    component = Component(
        name=name,
        type=ComponentType.LIBRARY,
        version=metadata.version,
        purl=PackageURL("pypi", None, name, metadata.version),
        bom_ref=reference,
    )
    _describe(component, metadata)
    return component


def _describe(component: Component, metadata: Metadata) -> None:
    component.licenses = _licenses(metadata.licenses)
    component.authors = [OrganizationalContact(name=it.name or None, email=it.email or None) for it in metadata.authors]
    component.supplier = OrganizationalEntity(name=metadata.supplier) if metadata.supplier else None


def _system(contents: BaseContents) -> Iterator[Node]:
    release = contents.release
    if release.get("ID"):
        kind = ComponentType.OPERATING_SYSTEM
        system = Component(name=release["ID"], version=release.get("VERSION_ID"), type=kind, bom_ref="os")
        system.description = release.get("PRETTY_NAME")
        yield Node(component=system)


def _installed(
    packages: Sequence[InstalledPackage], release: Mapping[str, str], added: Mapping[str, str]
) -> Iterator[Node]:
    """Yield the packages of a base that the lock's `added` ones, by name, do not replace."""
    found = {_in_distribution(_debian_purl(it), release): it for it in packages if it.name not in added}
    purls = {it: purl for purl, it in found.items()}  # dpkg's records can be joined, and have one twice
    by_name = {name: [reference] for name, reference in added.items()}
    for it, purl in purls.items():
        by_name.setdefault(it.name, []).append(str(purl))
    for it, purl in purls.items():
        component = Component(
            name=it.name,
            type=ComponentType.LIBRARY,
            version=it.version,
            purl=purl,
            licenses=_licenses(it.licenses),
            supplier=OrganizationalEntity(name=it.supplier) if it.supplier else None,
            bom_ref=str(purl),
        )
        yield Node(component=component, requires=tuple(one for name in it.requires for one in by_name.get(name, ())))


def _debian_purl(package: InstalledPackage) -> PackageURL:
    qualifiers = {"arch": package.architecture, "upstream": package.source}
    return PackageURL("deb", "debian", package.name, package.version, qualifiers)


def _in_distribution(purl: PackageURL, release: Mapping[str, str]) -> PackageURL:
    """`pkg:deb/debian/zlib1g@...?arch=amd64&distro=debian-12`: scanners look for vulnerabilities by distribution."""
    if not release.get("ID"):
        return purl
    distro = "-".join(filter(None, (release["ID"], release.get("VERSION_ID", ""))))
    return purl._replace(namespace=release["ID"], qualifiers={**dict(purl.qualifiers), "distro": distro})


def spdx_name(name: str) -> str:
    """The SPDX id of a licence as Debian and others name it, `GPL-2.0-or-later` of `GPL-2+`; else the name itself."""
    candidates = [name, f"{name}.0", name.replace(" ", "-")]
    if found := _GNU.fullmatch(name):
        family, major, minor, later = found.groups()
        candidates.insert(0, f"{family}-{major}.{minor or 0}-{'or-later' if later else 'only'}")
    return next(filter(None, map(fixup_id, candidates)), "MIT" if name == "Expat" else name)


def _licenses(names: Iterable[str]) -> list[License]:
    """One expression (PEP 639), else each licence by its SPDX id, or by name where SPDX has none."""
    factory, names = LicenseFactory(), tuple(dict.fromkeys(map(spdx_name, names)))
    if len(names) == 1:
        return [factory.make_from_string(names[0])]
    known = {it: is_supported_id(it) for it in names}
    return [factory.make_with_id(it) if known[it] else factory.make_with_name(it) for it in names]


def _library(name: str, version: str, purl: PackageURL, digest: Digest) -> Component:
    return Component(
        name=name,
        type=ComponentType.LIBRARY,
        version=version,
        purl=purl,
        hashes=[_hash(digest)],
        scope=ComponentScope.REQUIRED,
        bom_ref=str(purl),
    )


def _hash(digest: Digest) -> HashType:
    return HashType(alg=HashAlgorithm.SHA_256, content=digest.hex)
