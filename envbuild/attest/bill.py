"""An image's bill of materials, CycloneDX 1.6 in JSON.

https://cyclonedx.org/docs/1.6/json. It depends neither on the time nor on the machine.
"""

import json
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.lifecycle import LifecyclePhase, PredefinedLifecycle
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion

from envbuild.attest.components import Node, added_nodes, base_nodes
from envbuild.attest.parts import Parts
from envbuild.attest.statement import Facts, image_purl, public_name, wheel_purl
from envbuild.manifest.model import TrainingManifest
from envbuild.oci.image import canonical_json


def bill_of_materials(facts: Facts) -> bytes:
    """The bill of an image; its serial number is derived from its content, so different bills differ in it."""
    digest = facts.reference.digest
    assert digest is not None, "a subject has a digest"
    parts = facts.read_parts()
    below, above = list(base_nodes(facts, parts)), list(added_nodes(facts, parts))
    image = Component(
        name=facts.reference.name,
        type=ComponentType.CONTAINER,
        version=str(digest),
        purl=image_purl(facts.reference, digest),
        bom_ref="image",
    )
    tool = Component(name="envbuild", type=ComponentType.APPLICATION, version=version("envbuild"))
    metadata = BomMetaData(
        component=image,
        tools=ToolRepository(components=[tool]),
        lifecycles=[PredefinedLifecycle(phase=LifecyclePhase.BUILD)],
    )
    bom = Bom(metadata=metadata, components=[it.component for it in (*below, *above)])
    _connect(bom, [Node(component=image, requires=tuple(it.reference for it in (below[0], *above))), *below, *above])
    value = json.loads(make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string())
    # The library always sets a time and a random number; equal facts must give equal bytes.
    del value["metadata"]["timestamp"], value["serialNumber"]
    for component in value["components"]:
        if component["bom-ref"] == "model" and facts.run and (card := _model_card(facts.run)):
            component["modelCard"] = card
    value["compositions"] = list(_compositions(facts, parts, above))
    value["serialNumber"] = uuid5(NAMESPACE_URL, canonical_json(value).decode()).urn
    return canonical_json(value)


def _connect(bom: Bom, nodes: Sequence[Node]) -> None:
    """Register what each component requires, those inside others too."""
    components = [one for it in nodes for one in (it.component, *it.component.components)]
    known = {str(it.bom_ref.value): it for it in components}
    for it in nodes:
        bom.register_dependency(it.component, [known[one] for one in it.requires])


def _model_card(run: TrainingManifest) -> dict[str, Any]:
    """The data that the run read, and the types of what its model takes and gives."""
    data = run.contract.data if run.contract else ()
    names = dict.fromkeys(public_name(it.uri) for it in data)
    found: dict[str, Any] = {
        # Readers ask for the classification, and no run knows it.
        "datasets": [{"type": "dataset", "name": it, "classification": "unknown"} for it in names],
        "inputs": [{"format": it.dtype} for it in (run.golden.inputs if run.golden else ())],
        "outputs": [{"format": it.dtype} for it in (run.golden.outputs if run.golden else ())],
    }
    found = {key: value for key, value in found.items() if value}
    return {"modelParameters": found} if found else {}


def _compositions(facts: Facts, parts: Parts, above: Sequence[Node]) -> Iterator[dict[str, Any]]:
    """Say what is all of it, and where nobody looked: into native libraries, the model, files of no package, and
    wheels of which only an index tells.
    """
    wheels = dict.fromkeys(it for lock in facts.locks for it in lock.wheels)
    known = parts.wheels.keys() - parts.claimed
    read = list(dict.fromkeys(str(wheel_purl(it)) for it in wheels if it.sha256 in known))
    others = [it.reference for it in above if it.reference not in read]
    yield {"aggregate": "incomplete", "assemblies": ["image"], "dependencies": ["image"]}
    base = "incomplete" if parts.base.packages else "unknown"
    yield {"aggregate": base, "assemblies": ["base"], "dependencies": ["base"]}
    if read:
        yield {"aggregate": "complete", "dependencies": read}
    yield {"aggregate": "unknown", "assemblies": [*read, *others], "dependencies": others}
