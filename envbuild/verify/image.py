"""One image against its lock, its base and, where it is given, its run."""

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, cast

from packaging.version import Version

from envbuild.base.interpreter import compiling_on
from envbuild.base.resolve import inspect, known_facts
from envbuild.base.system import unpacker
from envbuild.cache import workplace
from envbuild.errors import BaseError, BuildError
from envbuild.files import data_folder
from envbuild.image.assembler import assemble
from envbuild.image.config import CHECK_LINE, OURS, annotations, config_bytes
from envbuild.image.debian.layer import packages_line
from envbuild.image.layers.cache import LayerCache
from envbuild.image.layers.maker import AssemblyOptions, Wheels
from envbuild.image.layers.plan import plan_layers
from envbuild.image.rebase import ENVIRONMENT_LINE, derive_recipe, named_base, named_compression, named_environment
from envbuild.lock.download import Downloads
from envbuild.lock.model import Lock, Target
from envbuild.lock.settings import IndexSettings
from envbuild.manifest.model import TrainingManifest
from envbuild.match.match import match
from envbuild.match.openers import may_open_cuda
from envbuild.match.profiles import FRAMEWORKS, Profiles, load_profiles
from envbuild.match.run import frameworks_of
from envbuild.match.stack import CudaChoice, Stack, VariantChoice
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image, Layer, canonical_json, history_lines, manifest_bytes
from envbuild.recipe import USER, Base, Recipe, make_recipe
from envbuild.report import Reporter
from envbuild.verify.cuda.loader import LoaderProof, prove_loading
from envbuild.verify.findings import Finding, Severity, compare_values

_SHOWN = 5
"""Layers of others that are shown."""
_VARIANT = "dev.envbuild.variant"
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A training run's manifest, and the options that its image was built with."""

    manifest: TrainingManifest
    cuda_source: CudaChoice = "auto"
    overrides: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry:
    """What is verified, and how far."""

    image: Image
    base: Base
    lock: Lock
    run: Run | None = None
    """What was trained; then the stack and the loader are verified too."""
    deep: bool = False
    """Whether all layers are made again, without anything from the cache but wheels."""
    cache: Path
    """Verified wheels lie there; with `deep` nothing else in it is used."""
    settings: IndexSettings


def verify_image(inquiry: Inquiry, report: Reporter) -> tuple[Finding, ...]:
    """Every comparison, in the order in which one rests on another; nothing more is compared with a wrong base.

    LockError for a wheel that cannot be fetched, MatchError and ManifestError for the run, BuildError where the image
    cannot be made again.
    """
    with ExitStack() as stack:
        folder, base = inquiry.cache, inquiry.base
        if inquiry.deep:
            folder = stack.enter_context(workplace(inquiry.cache))
            report.step("reading the base again")
            base = read_base_again(base, folder)
        return tuple(_findings(inquiry, Subject.of(inquiry.image, base, inquiry.lock), folder, report))


def read_base_again(base: Base, folder: Path) -> Base:
    """Read the base's layers, as what the cache knows of them may be what a registry said; BaseError."""
    machine = base.target.machine
    facts = inspect(base.image, base.name, machine, known_facts(folder))
    return replace(base, target=facts.target(machine), python_path=facts.python_path, interpreter=facts.interpreter)


def _findings(inquiry: Inquiry, subject: "Subject", folder: Path, report: Reporter) -> Iterator[Finding]:
    """`folder` is where what is made or remembered goes."""
    try:
        first = base_finding(subject)
    except BuildError as error:
        yield Finding(about="environment", agrees=False, says=error.what)
        return
    yield first
    if not first.agrees:
        report.note("nothing else is compared, as everything rests on the base")
        return
    try:
        recipe = derive_recipe(subject.image, subject.base, subject.lock_there)
    except BuildError as error:
        yield Finding(about="environment", agrees=False, says=error.what)
        return
    yield from _config_findings(subject, recipe)
    stack, profiles = match_run(inquiry.run, recipe, inquiry.lock.drops) if inquiry.run else (None, None)
    proving = False
    if stack and profiles:
        yield _stack_finding(subject, recipe, stack)
        proving = may_open_cuda(stack, ((it.name, it.version) for it in recipe.wheels), profiles)
    if not (inquiry.deep or proving):
        return

    with Downloads(inquiry.cache, reporter=report, settings=inquiry.settings) as downloads:
        report.step(f"fetching {len(recipe.wheels)} wheels, each verified by its sha256 in the lock")
        downloads.start(recipe.wheels)
        if inquiry.deep:
            report.step("assembling all layers again")
            again = _assemble_again(recipe, subject.base, downloads, folder, report, inquiry.cache)
            yield from _layer_findings(subject, recipe, again)
            yield from _blob_findings(inquiry.image)
        if inquiry.run and stack and profiles and proving:
            report.step("looking for CUDA's libraries as the loader does")
            paths = {wheel.sha256: downloads.path(wheel) for wheel in recipe.wheels}
            native = inquiry.run.manifest.native
            proof = prove_loading(stack, recipe, subject.base, paths, profiles, folder / "loading", native)
            yield from _loader_findings(proof, report)


def _loader_findings(proof: LoaderProof, report: Reporter) -> Iterator[Finding]:
    yield Finding(about="loader", agrees=not proof.faults, says=proof.summary)
    for it in (*proof.faults, *proof.warnings):
        severity: Severity = "warning" if it.kind == "warning" else "error"
        yield Finding(about="loader", agrees=False, severity=severity, says=it.advice, found=it.path)
    for it in proof.notes:
        report.note(str(it))


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An image, and the lock and base that it has to be built of."""

    image: Image
    base: Base
    lock: Lock

    @classmethod
    def of(cls, image: Image, base: Base, lock: Lock) -> Self:
        """Give the base the name that the image has it by, as it may come from a mirror; BuildError for bad JSON."""
        named = replace(base, asked=named_base(image)[0])
        return cls(image=_with_history(image), base=named, lock=lock)

    @property
    def own(self) -> tuple[Layer, ...]:
        """The layers above the base, each with the line that the image's history has for it."""
        return self.image.layers[len(self.base.image.layers) :]

    @property
    def lock_there(self) -> Lock:
        """The lock on the base: it stays an image's own when the base is replaced by a patched one."""
        return replace(self.lock, target=self.base.target)


def _with_history(image: Image) -> Image:
    """The image whose layers have the lines of its history, as one that was assembled here has them without a prefix.

    BuildError where config or manifest cannot be read, or written again.
    """
    try:
        config = json.loads(image.config)
        canonical_json([config, json.loads(image.manifest)])  # half a surrogate pair can be parsed, but not written
        lines = history_lines(config, len(image.layers))
    except (ValueError, TypeError, AttributeError) as error:
        raise BuildError("the image's config or manifest is not valid JSON", where=str(image.digest)) from error
    layers = tuple(replace(it, created_by=line) for it, line in zip(image.layers, lines, strict=True))
    return replace(image, layers=layers)


def base_finding(subject: Subject) -> Finding:
    """Whether the image begins with the layers of the base that it names, and the lock fits that base."""
    image, base = subject.image, subject.base
    wanted, found = str(base.digest), named_base(image)[1]
    compression, count = named_compression(image), len(base.image.layers)

    def is_same(layer: Layer, own: Layer) -> bool:
        types = [it.descriptor.media_type for it in (layer, own)]
        recompressed = compression.replaces(types[1]) and types[0] == compression.media_type
        return layer.diff_id == own.diff_id and (recompressed or layer.descriptor.digest == own.descriptor.digest)

    if found not in (wanted, str(base.image.digest)):
        wrong = f"the image names {found or 'no base'} as its base, which is not {base.name} ({base.digest})"
    elif len(image.layers) < count or not all(map(is_same, image.layers, base.image.layers)):
        wrong = f"the image's first {count} layers are not those of {base.name}"
    else:
        wrong = _wrong_target(subject.lock.target, base.target)
    says = f"the image is built on {base.name}, and begins with its layers ({count})"
    says += ", recompressed" if compression.base else ""
    return Finding(about="base", agrees=not wrong, says=wrong or says, wanted=wanted, found=found)


def _wrong_target(locked: Target, base: Target) -> str:
    """Why the lock's wheels do not fit the base; another patch release of Python fits."""
    minors = (locked.python_minor, locked.machine), (base.python_minor, base.machine)
    if minors[0] != minors[1]:
        there, here = (f"Python {python} on {machine}" for python, machine in minors)
        return f"the lock is for {there}, and the base has {here}"
    if Version(base.glibc) < Version(locked.glibc):
        return f"the lock is for glibc {locked.glibc}, and the base has {base.glibc}"
    return ""


def _config_findings(subject: Subject, recipe: Recipe) -> Iterator[Finding]:
    """Compare everything that manifest and config say with what the lock on this base gives; no layer is read."""
    wanted, found = str(recipe.environment), named_environment(subject.image)
    ok = f"{recipe.environment.short} is the lock's {len(recipe.wheels)} wheels on that base"
    differs = f"the image says {found or 'none'}, and the lock on that base gives {wanted}"
    yield compare_values("environment", wanted=wanted, found=found, ok=ok, differs=differs)
    own = tuple(replace(it, created_by=it.created_by.removeprefix(OURS)) for it in subject.own)
    yield _names_finding(subject, recipe, {it.created_by for it in own})
    config = config_bytes(recipe, subject.base, own)
    changed = ", ".join(_changed_keys(json.loads(config), json.loads(subject.image.config)))
    if recipe.user == USER:
        ok = "it is what base, variables and layers give, byte for byte"
        differs = f"it is not what base, variables and layers give: {changed or 'the same values in other bytes'}"
        wanted, found = str(Digest.of(config)), str(subject.image.config_digest)
        yield compare_values("config", wanted=wanted, found=found, ok=ok, differs=differs)
    else:
        says = f"the image runs as user {recipe.user or 'root'}, and envbuild's run as {USER}"
        yield Finding(about="config", agrees=False, says=says, wanted=USER, found=recipe.user)
    manifest = Digest.of(manifest_bytes(config, subject.image.layers, annotations(recipe)))
    ok, differs = "it says nothing but what lock, base and layers give", f"lock, base and layers give {manifest}"
    found = str(subject.image.digest)
    yield compare_values("manifest", wanted=str(manifest), found=found, ok=ok, differs=differs)


def _names_finding(subject: Subject, recipe: Recipe, lines: set[str]) -> Finding:
    """Whether all layers on the base are of envbuild, and those that the lock gives are there by name."""
    lacking = [plan for plan in plan_layers(recipe) if plan.label not in lines]
    foreign = [it.created_by or "(no history)" for it in subject.own if not it.created_by.startswith(OURS)]
    faults = [f"it lacks that of {plan.label}" for plan in lacking]
    if recipe.packages and (line := packages_line(recipe.packages)) not in lines:
        faults.append(f"it lacks that of {line}")
    faults += [f"it lacks that of the {line}" for line in (ENVIRONMENT_LINE, CHECK_LINE) if line not in lines]
    faults += [f"this one is not of envbuild: {line[:200]}" for line in foreign[:_SHOWN]]
    total, below = len(subject.image.layers), len(subject.base.image.layers)
    return Finding(
        about="layers",
        agrees=not faults,
        says="; ".join(faults) or f"{total} layers and diff ids: {below} of the base, {total - below} of the lock",
        packages=tuple(f"{wheel.name} {wheel.version}" for plan in lacking for wheel in plan.wheels),
    )


def _changed_keys(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """The keys whose values differ; below `config`, where most can be set, the keys there."""
    for key in sorted(wanted.keys() | found.keys()):
        one, other = wanted.get(key), found.get(key)
        if key == "config" and isinstance(one, dict) and isinstance(other, dict):
            yield from _changed_keys(one, other)
        elif one != other:
            yield key


def match_run(run: Run, recipe: Recipe, drop: Collection[str] = ()) -> tuple[Stack, Profiles]:
    """Decide again what building decided, for the image's own variant and machine; ManifestError, MatchError."""
    manifest = run.manifest
    profiles = load_profiles(data_folder("profiles"), FRAMEWORKS if run.overrides else frameworks_of(manifest))
    label, machine = dict(recipe.labels).get(_VARIANT), recipe.target.machine
    variant = cast("VariantChoice", label if label in ("gpu", "cpu") else "auto")
    source, overrides = run.cuda_source, run.overrides
    stack = match(manifest, profiles, variant, cuda_source=source, overrides=overrides, machine=machine, drop=drop)
    return stack, profiles


def _stack_finding(subject: Subject, recipe: Recipe, stack: Stack) -> Finding:
    """Whether framework, variables and labels are those of the run's stack, whatever the image's labels say."""
    wanted = make_recipe(stack, subject.lock_there, subject.base, recipe.bytecode).to_dict()
    found, keys = recipe.to_dict(), ("variables", "labels", "user")
    changed = [it for key in keys for it in _changed_values(key, wanted[key], found[key])]
    same = f"{stack.title}, {stack.variant}, is the run's stack, and so are all variables"
    return Finding(about="stack", agrees=not changed, says="; ".join(changed) or same)


def _changed_values(key: str, wanted: Any, found: Any) -> Iterator[str]:
    """Each value that differs, one by one where there are several."""
    if isinstance(wanted, dict):
        for name in sorted(wanted.keys() | found.keys()):
            yield from _changed_values(name, wanted.get(name, ""), found.get(name, ""))
    elif wanted != found:
        yield f"{key} is {found or 'absent'}, and the run's stack has {wanted or 'none'}"


def _assemble_again(recipe: Recipe, base: Base, wheels: Wheels, folder: Path, report: Reporter, cache: Path) -> Image:
    """Assemble the image with an empty cache in `folder`; BuildError as `assemble`, and where bytecode cannot be made.

    Debian packages come from `cache` or the mirror, verified by the lock as wheels are: LockError where the mirror does
    not have one. Layers leave the disk when their digests are known, so it holds only those in progress.
    """

    def remove(layer: Layer) -> None:
        if layer.path:
            layer.path.unlink(missing_ok=True)

    todo = "verify on a machine that can run the base, or without --deep"
    compiling = compiling_on(base, folder, todo) if recipe.bytecode else None
    system = unpacker(recipe.packages, base, cache, folder)
    options = AssemblyOptions(reporter=report, on_layer=remove)
    layers = LayerCache(folder, compression=recipe.compression)
    return assemble(recipe, base, wheels, layers, options, compiling, system).image


def _layer_findings(subject: Subject, recipe: Recipe, again: Image) -> Iterator[Finding]:
    """Compare each layer above the base, and the manifest over them all, with the image that was made again."""
    wanted = {it.created_by: it for it in again.layers[len(subject.base.image.layers) :]}
    found = {it.created_by.removeprefix(OURS): it for it in subject.own}
    packages = {
        plan.label: tuple(f"{wheel.name} {wheel.version}" for wheel in plan.wheels) for plan in plan_layers(recipe)
    }
    packages[packages_line(recipe.packages)] = tuple(f"{it.name} {it.version}" for it in recipe.packages)
    faults = [it for line in wanted if (it := _layer_fault(line, wanted[line], found, packages.get(line, ())))]
    for line, layer in found.items():
        if line not in wanted:
            says = f"the lock gives none of {line or '(no history)'}"
            faults.append(Finding(about="layer", agrees=False, says=says, found=_identity(layer)))
    same = f"{len(wanted)} layers, made again from {len(recipe.wheels)} wheels, are the image's byte for byte"
    yield from faults or [Finding(about="layers made anew", agrees=True, says=same)]
    wanted_digest, digest = str(again.digest), str(subject.image.digest)
    ok, differs = f"{wanted_digest} is the image's", f"{wanted_digest} is not the image's {digest}"
    yield compare_values("manifest made anew", wanted=wanted_digest, found=digest, ok=ok, differs=differs)


def _layer_fault(line: str, again: Layer, found: Mapping[str, Layer], packages: tuple[str, ...]) -> Finding | None:
    """What differs in the layer of this line, if anything does."""
    layer, digest = found.get(line), again.descriptor.digest
    if layer and _identity(layer) == _identity(again):
        return None
    if layer is None:
        says = f"the image has none of {line}"
    elif layer.descriptor.digest != digest:
        says = f"{line} is {digest}, and the image has {layer.descriptor.digest}"
    else:
        says = f"{line} has the diff id {again.diff_id}, and the image says {layer.diff_id}"
    there = _identity(layer) if layer else ""
    return Finding(about="layer", agrees=False, says=says, wanted=_identity(again), found=there, packages=packages)


def _identity(layer: Layer) -> str:
    """The blob's digest and size, and the diff id."""
    return f"{layer.descriptor.digest} of {layer.descriptor.size} bytes, diff id {layer.diff_id}"


def _blob_findings(image: Image) -> Iterator[Finding]:
    """Read the layers that lie on this machine to their last byte; those of a registry are verified by each pull."""
    here = [layer for layer in image.layers if not layer.origin]
    faults = []
    for layer in here:
        try:
            with layer.open() as blob:
                while blob.read(_CHUNK):
                    pass
        except BaseError as error:
            says = f"{error.what}: {layer.created_by.removeprefix(OURS) or layer.diff_id}"
            wanted = str(layer.descriptor.digest)
            faults.append(Finding(about="blobs", agrees=False, says=says, wanted=wanted, found=error.where))
    same = f"the bytes of {len(here)} layers in the layout are those of their digests"
    yield from faults or ([Finding(about="blobs", agrees=True, says=same)] if here else [])
