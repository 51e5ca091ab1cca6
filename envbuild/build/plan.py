"""The decision before any work: what an order leads to."""

import os
from dataclasses import replace
from pathlib import Path

from packaging.utils import canonicalize_name

from envbuild.base.resolve import refuse_base
from envbuild.build.order import Order, Plan
from envbuild.build.outputs import LAYOUT_NAME
from envbuild.errors import ManifestError, UsageError
from envbuild.files import UNFINISHED, check_stageable, data_folder
from envbuild.image.context import check_templates
from envbuild.lock.faults import origin_fault
from envbuild.lock.index import check_bundle
from envbuild.manifest import read_manifest
from envbuild.manifest.model import TrainingManifest
from envbuild.manifest.packages import name_of
from envbuild.match.match import match
from envbuild.match.profiles import FRAMEWORKS, Profiles, load_profiles
from envbuild.match.run import frameworks_of
from envbuild.match.stack import Decision
from envbuild.oci.layout import check_archive, is_free

_OURS = {"oci-layout", "index.json", "blobs", "context"}
"""What envbuild writes into a folder."""
_FIRST = b"oci-layout\0"
"""How an archive begins: with the name of its first member."""


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


def check_order(order: Order) -> None:
    """Refuse what shows without asking anybody, so before plans are made and in dry runs, too.

    UsageError for options that do not go together and places that cannot be written, BuildError for a broken template.
    """
    check_outputs(order)
    if order.templates:
        check_templates(order.templates)
    if order.ca_bundle:
        check_bundle(order.ca_bundle)
    if order.builder == "cloudbuild":
        from envbuild.build.cloud import check_options  # noqa: PLC0415 - Google's library is slow to import

        check_options(order)


def check_outputs(order: Order, *, context: bool = True) -> None:
    """Refuse places that cannot be written; UsageError.

    Where no build context is written, `--out` is for a layout alone.
    """
    layout = not (order.push or order.archive or order.load)
    if layout or context:
        _check_folder(order.out)
    if layout and not is_free(order.out, LAYOUT_NAME):
        todo = "give --out another folder, or remove this one: nothing would name its images any more"
        raise UsageError("the folder is an OCI layout that envbuild did not write", where=str(order.out), todo=todo)
    if order.archive:
        _check_archive(order.archive)
    if order.archive and context and _is_at(order.archive, order.out / "context"):
        where = f"--archive {order.archive}, --out {order.out}"
        raise UsageError("the archive would lie where the build context goes", where=where, todo="give another file")


def _is_at(file: Path, folder: Path) -> bool:
    """Whether a folder cannot be made as there is a file in its place, or in that of one above it."""
    place = Path(os.path.realpath(folder))
    return Path(os.path.realpath(file)) in (place, *place.parents)


def check_builder(order: Order) -> None:
    """Refuse what the builder cannot do, and see that what it needs is there; UsageError, MissingComponentError."""
    if order.builder_name and order.builder != "docker":
        todo = "add --builder docker"
        raise UsageError("only --builder docker has builders", where=f"--builder-name {order.builder_name}", todo=todo)
    if order.builder == "docker":
        from envbuild.build.docker import check_docker  # noqa: PLC0415 - Docker's library is slow to import

        check_docker(order)
    if order.builder == "cloudbuild":
        from envbuild.build.cloud import check_cloud  # noqa: PLC0415 - Google's library is slow to import

        check_cloud(order)


def check_engine(order: Order) -> None:
    """See that an engine answers, before the long work; MissingComponentError."""
    if order.load:
        from envbuild.engine.client import connected  # noqa: PLC0415 - Docker's library is slow to import
        from envbuild.engine.load import INSTEAD  # noqa: PLC0415

        with connected(INSTEAD):
            pass


def _check_archive(path: Path) -> None:
    check_archive(path)
    if _is_foreign(path):
        todo = "remove it, or give --archive another file"
        raise UsageError("the file exists, and is not an archive of envbuild", where=str(path), todo=todo)


def _check_folder(folder: Path) -> None:
    """Refuse what no folder can be made of, and one of somebody else's files, which the image would lie between."""
    check_stageable(folder, "--out")
    try:
        found = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    except OSError as error:
        todo = "give --out a folder that this user may read, or that can be made"
        what = f"what the folder holds cannot be seen: {error.strerror}"
        raise UsageError(what, where=f"--out {folder}", todo=todo) from error
    if others := sorted(it for it in found - _OURS if not it.startswith(UNFINISHED)):
        todo = "give --out a folder of its own; it is made when it is missing"
        raise UsageError(f"the folder holds other files, such as {others[0]}", where=str(folder), todo=todo)


def _is_foreign(path: Path) -> bool:
    """Whether a file is there that no archive of ours is."""
    try:
        with path.open("rb") as file:
            head = file.read(len(_FIRST))
    except OSError:
        return False  # there is none, or writing will say what is wrong
    return path.is_file() and head not in (b"", _FIRST)
