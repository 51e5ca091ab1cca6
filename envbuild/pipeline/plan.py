"""The decision before any work: what an order leads to."""

from packaging.utils import canonicalize_name

from envbuild.files import data_folder
from envbuild.lock import (
    origin_fault,
)
from envbuild.manifest import read_manifest
from envbuild.match import load_profiles, match, name_of
from envbuild.pipeline.order import Order, Plan


def make_plan(order: Order) -> Plan:
    """Read the manifest and decide the stack."""
    manifest = read_manifest(order.manifest, order.manifest_name)
    profiles = load_profiles(data_folder("profiles"))
    stack = match(
        manifest,
        profiles,
        order.variant,
        cuda_source=order.cuda_source,
        overrides=order.overrides,
        machine=order.platform,
    )
    kept = {name_of(it) for it in stack.requirements}
    faults = [
        fault
        for it in manifest.distributions
        if canonicalize_name(it.name) in kept and (fault := origin_fault(it)) is not None
    ]
    return Plan(
        manifest=manifest,
        profiles=profiles,
        stack=stack,
        base=order.base or stack.base,
        unserved=tuple(f"{it.requirement}: {it.why}" for it in faults),
    )
