"""The decision before any work: what an order leads to."""

from dataclasses import replace

from packaging.utils import canonicalize_name

from envbuild.base.resolve import refuse_base
from envbuild.build.order import Order, Plan
from envbuild.errors import ManifestError
from envbuild.files import data_folder
from envbuild.lock.faults import origin_fault
from envbuild.manifest import read_manifest
from envbuild.manifest.model import TrainingManifest
from envbuild.manifest.packages import name_of
from envbuild.match.match import match
from envbuild.match.profiles import FRAMEWORKS, Profiles, load_profiles
from envbuild.match.run import frameworks_of
from envbuild.match.stack import Decision


def make_plans(order: Order) -> tuple[Plan, ...]:
    """Read the manifest and decide the stack, once for each platform."""
    manifest = read_manifest(order.manifest, order.manifest_name)
    if not manifest.distributions:
        todo = "capture the run again, where its packages are installed"
        raise ManifestError("the manifest lists no distribution", where=order.manifest_name, todo=todo)
    profiles = load_profiles(data_folder("profiles"), FRAMEWORKS if order.overrides else frameworks_of(manifest))
    plans = tuple(_plan(order, manifest, profiles, machine) for machine in order.platforms or (None,))
    if order.builder == "cloudbuild":
        from envbuild.build.cloud import check_plan  # noqa: PLC0415 - Google's library is slow to import

        for plan in plans:
            check_plan(plan)
    return plans


def _plan(order: Order, manifest: TrainingManifest, profiles: Profiles, machine: str | None) -> Plan:
    stack = match(
        manifest,
        profiles,
        order.variant,
        cuda_source=order.cuda_source,
        overrides=order.overrides,
        machine=machine,
        exclude_newer=order.exclude_newer,
        drop=order.drop,
    )
    kept = {name_of(it) for it in stack.requirements}
    faults = [
        fault
        for it in manifest.distributions
        if canonicalize_name(it.name) in kept and (fault := origin_fault(it)) is not None
    ]
    if order.base:
        refuse_base(order.base, stack.machine, order.cache, stack.python, stack.glibc_minimum)
        asked = Decision(what="base", value=order.base, reason="it was asked for", source="--base")
        stack = replace(stack, decisions=(*(it for it in stack.decisions if it.what != "base"), asked))
    return Plan(
        manifest=manifest,
        profiles=profiles,
        stack=stack,
        base=order.base or stack.base,
        unserved=tuple(f"{it.requirement}: {it.why}" for it in faults),
    )
