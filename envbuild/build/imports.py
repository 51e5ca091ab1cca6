"""The import check of a build: the image imports what the run imported."""

from collections.abc import Collection
from contextlib import ExitStack

from packaging.utils import canonicalize_name

from envbuild.build.builder import Builder
from envbuild.errors import counted
from envbuild.image.layers.cache import LayerCache
from envbuild.lock.resolution import open_session
from envbuild.lock.run import LockResult
from envbuild.lock.settings import IndexSettings
from envbuild.manifest.model import TrainingManifest
from envbuild.match.pins import broken_profile_limits
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

_ASKED_FOR = frozenset({"requirements", "mlflow", "conda-environment"})
"""Formats of incomplete records that have what somebody asked for; the others list what was installed."""


def try_imports(
    builder: Builder, locked: LockResult, image: Image | None, settings: IndexSettings, place: Place | None = None
) -> Imports:
    """Import in the image what the run imported; VerifyError.

    What this machine tried before is not tried again, unless `--import-check always` asks for it.
    """
    wanted, manifest, stack = builder.request.import_check, builder.plan.manifest, builder.plan.stack
    names, cache = imported_distributions(stack, manifest, locked.required), LayerCache(builder.request.cache)
    key = Digest.of(canonical_json(["tried on this machine", str(builder.recipe.environment), sorted(names)]))
    if wanted == "auto" and (known := cache.local_note(key, Imports.from_dict)):
        builder.report.note(f"imported in {known.place} earlier: {counted(len(known.modules), 'module')}")
        _warn_untold(known, builder)
        return known
    builder.report.step("importing in the image what the run imported")
    with ExitStack() as resources:
        if place is None:
            assert image, "there is an image or a place that has it"
            place = resources.enter_context(place_for(image, stack.machine, builder.request.cache, builder.report))
        found = _import(builder, locked, names, settings, place)
    if found.modules:
        cache.store_note(key, found.to_dict(), share=False)
    return found


def imported_distributions(stack: Stack, manifest: TrainingManifest, required: frozenset[str]) -> frozenset[str]:
    """Normalised names of what a run imported, as far as its record tells: the framework, and what was asked for.

    Where the record only lists what was installed, it is what nothing else of that requires. Where the stack has only
    what the run imported, it is all of that.
    """
    if stack.not_imported:
        return frozenset(map(str, map(canonicalize_name, (stack.distribution, *manifest.imported)))) - {"pip"}
    lists = manifest.source.complete or manifest.source.format not in _ASKED_FOR
    asked = {str(canonicalize_name(it.name)) for it in manifest.distributions if it.requested or not lists}
    installed = {str(canonicalize_name(it.name)) for it in manifest.distributions}
    # Nobody runs pip in a training, and after it setuptools cannot be imported on Python before 3.12.
    return frozenset({str(canonicalize_name(stack.distribution)), *(asked or installed - required)}) - {"pip"}


def _import(
    builder: Builder, locked: LockResult, names: frozenset[str], settings: IndexSettings, place: Place
) -> Imports:
    if place.runner is None:
        check_metadata(locked, builder.plan.manifest, builder.request.cache)
        builder.report.warn(f"no module was imported, only metadata was looked at: {place.why}")
        return Imports(place="metadata")
    versions = {wheel.name.replace("-", "_"): wheel.version for wheel in locked.lock.wheels}
    modules: dict[str, str] = {}
    with open_session((), locked.lock.target, settings, builder.request.cache) as session:
        for wheel in (it for it in locked.lock.wheels if it.name in names):
            main = _main_module(wheel.name.replace("-", "_"), session.reader.files(wheel) or ())
            modules |= dict.fromkeys(main, wheel.version)
    first = [builder.plan.stack.framework] if builder.plan.stack.framework in modules else []
    pins = {wheel.name: wheel.version for wheel in locked.lock.wheels}
    known = broken_profile_limits(pins, builder.plan.profiles.limits)
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


def _main_module(own: str, files: Collection[str]) -> list[str]:
    """The module that a wheel is there for: the one of its name, else the largest; others may be plug-ins."""
    public = import_names(files)
    if own in public:
        return [own]
    starts = {it: (f"/{it.replace('.', '/')}/", f"/{it.replace('.', '/')}.") for it in public}
    sizes = {it: sum(f"/{file}".startswith(start) for file in files) for it, start in starts.items()}
    return sorted(public, key=lambda it: -sizes[it])[:1]


def _warn_untold(found: Imports, builder: Builder) -> None:
    for module, why in found.untold:
        builder.report.warn(f"whether {module} can be imported could not be tried: {why}")
