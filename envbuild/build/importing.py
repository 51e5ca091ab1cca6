"""The environment is tried before its image has a name, where nothing proves that it is the run's."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from envbuild.errors import counted
from envbuild.image.layers.cache import LayerCache
from envbuild.lock.resolution import open_question
from envbuild.lock.run import LockedRun
from envbuild.lock.settings import IndexSettings
from envbuild.manifest.model import TrainingManifest
from envbuild.match.pins import broken_hand_limits
from envbuild.match.stack import Stack
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image, canonical_json
from envbuild.verify.imports import (
    ImportRequest,
    Imports,
    Place,
    check_imports,
    check_metadata,
    import_names,
    place_for,
)

if TYPE_CHECKING:
    from envbuild.build.builder import Builder

_ASKED_FOR = frozenset({"requirements", "mlflow", "conda-environment"})
"""Formats of incomplete records that have what somebody asked for; the others list what was installed."""


def try_imports(
    builder: "Builder", run: LockedRun, image: Image | None, settings: IndexSettings, place: Place | None
) -> Imports:
    """Import in the image what the run imported; VerifyError.

    What this machine tried before is not tried again, unless `--import-check always` asks for it.
    """
    order, manifest, stack = builder.order, builder.plan.manifest, builder.plan.stack
    names, cache = imported_distributions(stack, manifest, run.required), LayerCache(order.cache)
    key = Digest.of(canonical_json(["tried on this machine", str(builder.recipe.environment), sorted(names)]))
    if order.import_check == "auto" and (known := cache.noted(key, Imports.from_dict)):
        builder.report.note(f"imported in {known.place} earlier: {counted(len(known.modules), 'module')}")
        _warn_untold(known, builder)
        return known
    builder.report.step("importing in the image what the run imported")
    if place:
        found = _tried(builder, run, names, settings, place)
    else:
        assert image, "there is an image or a place that has it"
        with place_for(image, stack.machine, builder.report) as found_place:
            found = _tried(builder, run, names, settings, found_place)
    if found.modules:
        cache.note(key, found.to_dict(), share=False)
    return found


def imported_distributions(stack: Stack, manifest: TrainingManifest, required: frozenset[str]) -> frozenset[str]:
    """Normalised names of what a run imported, as far as its record tells: the framework, and what was asked for.

    Where the record only lists what was installed, it is what nothing else of that requires.
    """
    lists = manifest.source.complete or manifest.source.format not in _ASKED_FOR
    asked = {str(canonicalize_name(it.name)) for it in manifest.distributions if it.requested or not lists}
    installed = {str(canonicalize_name(it.name)) for it in manifest.distributions}
    # Nobody runs pip in a training, and after it setuptools cannot be imported on Python before 3.12.
    return frozenset({str(canonicalize_name(stack.distribution)), *(asked or installed - required)}) - {"pip"}


def _tried(builder: "Builder", run: LockedRun, names: frozenset[str], settings: IndexSettings, place: Place) -> Imports:
    if place.runner is None:
        check_metadata(run, builder.plan.manifest, builder.order.cache)
        builder.report.warn(f"no module was imported, only metadata was looked at: {place.why}")
        return Imports(place="metadata")
    versions = {wheel.name.replace("-", "_"): wheel.version for wheel in run.lock.wheels}
    modules: dict[str, str] = {}
    with open_question((), run.lock.target, settings, builder.order.cache) as question:
        for wheel in run.lock.wheels:
            if wheel.name in names:
                files, own = question.reader.files(wheel) or (), wheel.name.replace("-", "_")
                public = import_names(files)
                # Of several packages the largest is the project's own: others are plug-ins of what need not be there.
                main = [own] if own in public else sorted(public, key=lambda it: -_size(it, files))[:1]
                modules |= dict.fromkeys(main, wheel.version)
    first = [builder.plan.stack.framework] if builder.plan.stack.framework in modules else []
    pins = {wheel.name: wheel.version for wheel in run.lock.wheels}
    known = broken_hand_limits(pins, builder.plan.profiles.limits)
    asked = ImportRequest(
        modules=tuple(dict.fromkeys((*first, *sorted(modules)))),
        versions=versions | {module: version for module, version in modules.items() if "." not in module},
        known=tuple(f"{it.pin} needs {it.limit.requirement}, as {it.limit.reason}" for it in known if it.limit.breaks),
        gpu=builder.plan.stack.variant == "gpu",
    )
    found = check_imports(place, asked)
    if modules:
        many = f"{len(found.modules)} of {counted(len(modules), 'module')}"
        builder.report.note(f"imported in {place.name}: {many}")
    else:
        builder.report.note("nothing was imported: the record does not say what the run asked for by name")
    _warn_untold(found, builder)
    return found


def _size(module: str, files: Iterable[str]) -> int:
    """How many of a wheel's files are of a module."""
    folder = module.replace(".", "/")
    return sum(f"/{it}".startswith((f"/{folder}/", f"/{folder}.")) for it in files)


def _warn_untold(found: Imports, builder: "Builder") -> None:
    for module, why in found.untold:
        builder.report.warn(f"whether {module} can be imported could not be tried: {why}")
