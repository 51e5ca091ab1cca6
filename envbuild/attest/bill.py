"""An image's bill of materials, CycloneDX 1.6 in JSON.

https://cyclonedx.org/docs/1.6/json. It depends neither on the time nor on the machine.
"""

import json
from collections.abc import Iterator
from importlib.metadata import version
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

from envbuild.attest.statement import Facts, base_reference, image_purl, package_purl, public_name, wheel_purl
from envbuild.oci.digest import Digest
from envbuild.oci.image import canonical_json


def bill_of_materials(facts: Facts) -> bytes:
    """The bill of an image; its serial number is derived from its content, so different bills differ in it."""
    digest = facts.reference.digest
    assert digest is not None, "a subject has a digest"
    image = Component(
        name=facts.reference.name,
        type=ComponentType.CONTAINER,
        version=str(digest),
        purl=image_purl(facts.reference, digest),
        bom_ref="image",
    )
    components = list(_components(facts))
    tool = Component(name="envbuild", type=ComponentType.APPLICATION, version=version("envbuild"))
    bom = Bom(metadata=BomMetaData(component=image, tools=ToolRepository(components=[tool])), components=components)
    bom.register_dependency(image, components)
    value = json.loads(make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string())
    # The library always sets a time and a random number; equal facts must give equal bytes.
    del value["metadata"]["timestamp"], value["serialNumber"]
    value["serialNumber"] = uuid5(NAMESPACE_URL, canonical_json(value).decode()).urn
    return canonical_json(value)


def _components(facts: Facts) -> Iterator[Component]:
    base, python = base_reference(facts.base_name), facts.locks[0].target.python
    yield Component(
        name=base.name if base else "base",
        type=ComponentType.CONTAINER,
        version=str(facts.base_digest),
        purl=image_purl(base, facts.base_digest) if base else None,
        bom_ref="base",
    )
    purl = PackageURL("generic", None, "python", python)
    yield Component(name="python", type=ComponentType.PLATFORM, version=python, purl=purl, bom_ref="python")
    for wheel in dict.fromkeys(it for lock in facts.locks for it in lock.wheels):
        yield _library(wheel.name, wheel.version, wheel_purl(wheel), wheel.sha256)
    for package in dict.fromkeys(it for lock in facts.locks for it in lock.packages):
        yield _library(package.name, package.version, package_purl(package), package.sha256)
    if facts.model:
        files = [
            Component(name=path, type=ComponentType.FILE, hashes=[_hash(digest)], bom_ref=f"model/{path}")
            for path, digest in facts.model_files
        ]
        kind = ComponentType.MACHINE_LEARNING_MODEL
        yield Component(name=public_name(facts.model), type=kind, bom_ref="model", components=files)


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
