"""One image against its lock, its base and, where it is given, its run."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, Self, cast

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
from envbuild.image.layers.maker import Wheels
from envbuild.image.layers.plan import plan_layers
from envbuild.image.rebase import ENVIRONMENT_LINE, derive_recipe, named_base, named_environment
from envbuild.lock.download import Arrivals
from envbuild.lock.model import Lock, Target
from envbuild.lock.settings import IndexSettings
from envbuild.manifest import read_manifest
from envbuild.match.match import match
from envbuild.match.profiles import FRAMEWORKS, Profiles, load_profiles
from envbuild.match.run import frameworks_of
from envbuild.match.stack import CudaChoice, Stack, VariantChoice
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image, Layer, canonical_json, history_lines, manifest_bytes
from envbuild.recipe import USER, Base, Recipe, make_recipe
from envbuild.verify.cuda.loader import prove_loading
from envbuild.verify.findings import Finding, compared

_NAMED = 5
"""Layers of others that are shown; the first is what one looks for."""
_VARIANT = "dev.envbuild.variant"
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An image, and what it is said to be: a lock on a base."""

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

    def recipe(self) -> Recipe:
        """What it was built from if the lock is its own; BuildError where nothing can be."""
        return derive_recipe(self.image, self.base, self.lock_there)


def standing(subject: Subject, recipe: Recipe) -> Iterator[Finding]:
    """Hold everything that the image says of itself against what the lock on this base gives."""
    yield environment_finding(subject, recipe)
    yield _layers(subject, recipe)
    config = config_bytes(recipe, subject.base, _without_prefix(subject.own))
    yield _config(subject.image, config, recipe)
    wanted = Digest.of(manifest_bytes(config, subject.image.layers, annotations(recipe)))
    yield compared(
        "manifest",
        wanted=str(wanted),
        found=str(subject.image.digest),
        ok="it says nothing but what lock, base and layers give",
        differs=f"lock, base and layers give another one, {wanted}",
    )


def base_finding(subject: Subject) -> Finding:
    """Whether the image begins with the layers of the base that it names, and the lock fits that base."""
    base = subject.base
    found, wanted = named_base(subject.image)[1], str(base.digest)
    wrong = _wrong_base(subject)
    stands = f"the image stands on {base.name}, and begins with its layers ({len(base.image.layers)})"
    return Finding(about="base", agrees=not wrong, says=wrong or stands, wanted=wanted, found=found)


def environment_finding(subject: Subject, recipe: Recipe) -> Finding:
    """Whether the image's environment id is that of the lock on its base: the digest over all wheels and settings."""
    wanted, found = str(recipe.environment), named_environment(subject.image)
    return compared(
        "environment",
        wanted=wanted,
        found=found,
        ok=f"{recipe.environment.short} is the lock's {len(recipe.wheels)} wheels on that base",
        differs=f"the image says {found or 'none'}, and the lock on that base gives {wanted}",
    )


def _wrong_base(subject: Subject) -> str:
    """Why the image does not stand on the base; empty where it does."""
    image, base = subject.image, subject.base
    said = named_base(image)[1]
    if said not in (str(base.digest), str(base.image.digest)):
        return f"the image says that it stands on {said or 'no base'}, which is not {base.name} ({base.digest})"
    pairs = [[(it.descriptor.digest, it.diff_id) for it in one.layers] for one in (image, base.image)]
    if pairs[0][: len(pairs[1])] != pairs[1]:
        return f"the image's first {len(pairs[1])} layers are not those of {base.name}"
    return _wrong_target(subject.lock.target, base.target)


def _wrong_target(locked: Target, base: Target) -> str:
    """Why the lock's wheels cannot be meant for the base; another patch release of Python is no reason."""
    minors = (locked.python_minor, locked.machine), (base.python_minor, base.machine)
    if minors[0] != minors[1]:
        there, here = (f"Python {python} on {machine}" for python, machine in minors)
        return f"the lock is for {there}, and the base has {here}"
    if Version(base.glibc) < Version(locked.glibc):
        return f"the lock is for glibc {locked.glibc}, and the base has {base.glibc}"
    return ""


def _layers(subject: Subject, recipe: Recipe) -> Finding:
    """Whether all layers on the base are of envbuild, and those that the lock gives are there by name."""
    own = _without_prefix(subject.own)
    plans = plan_layers(recipe)
    lines = {it.created_by for it in own}
    lacking = [plan for plan in plans if plan.label not in lines]
    foreign = [it.created_by or "(no history)" for it in subject.own if not it.created_by.startswith(OURS)]
    faults = [f"it lacks that of {plan.label}" for plan in lacking]
    if recipe.packages and (line := packages_line(recipe.packages)) not in lines:
        faults.append(f"it lacks that of {line}")
    faults += [f"it lacks that of the {line}" for line in (ENVIRONMENT_LINE, CHECK_LINE) if line not in lines]
    faults += [f"this one is not of envbuild: {line[:200]}" for line in foreign[:_NAMED]]
    total, below = len(subject.image.layers), len(subject.base.image.layers)
    return Finding(
        about="layers",
        agrees=not faults,
        says="; ".join(faults) or f"{total} layers and diff ids: {below} of the base, {total - below} of the lock",
        packages=tuple(f"{wheel.name} {wheel.version}" for plan in lacking for wheel in plan.wheels),
    )


def _config(image: Image, expected: bytes, recipe: Recipe) -> Finding:
    wanted = Digest.of(expected)
    changed = ", ".join(_changed(json.loads(expected), json.loads(image.config)))
    finding = compared(
        "config",
        wanted=str(wanted),
        found=str(image.config_digest),
        ok="it is what base, variables and layers give, byte for byte",
        differs=f"it is not what base, variables and layers give: {changed or 'the same values in other bytes'}",
    )
    if recipe.user == USER:
        return finding
    says = f"the image runs as user {recipe.user or 'root'}, and envbuild's run as {USER}"
    return Finding(about="config", agrees=False, says=says, wanted=USER, found=recipe.user)


def _changed(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """The keys whose values are others; below `config`, where most can be set, the keys there."""
    for key in sorted(wanted.keys() | found.keys()):
        one, other = wanted.get(key), found.get(key)
        if key == "config" and isinstance(one, dict) and isinstance(other, dict):
            yield from _changed(one, other)
        elif one != other:
            yield key


def _with_history(image: Image) -> Image:
    """The image whose layers have the whole lines of its history, as one that was made here has them without a prefix.

    BuildError where its own words cannot be read, or written again.
    """
    try:
        config = json.loads(image.config)
        canonical_json([config, json.loads(image.manifest)])  # half a surrogate pair can be parsed, but not written
        lines = history_lines(config, len(image.layers))
    except (ValueError, TypeError, AttributeError) as error:
        raise BuildError("the image's config or manifest is not valid JSON", where=str(image.digest)) from error
    layers = tuple(replace(it, created_by=line) for it, line in zip(image.layers, lines, strict=True))
    return replace(image, layers=layers)


def _without_prefix(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    return tuple(replace(it, created_by=it.created_by.removeprefix(OURS)) for it in layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A training run's manifest, and what was said besides it when its image was built."""

    manifest: bytes
    name: str
    """Where the manifest came from, for messages."""
    cuda_source: CudaChoice = "auto"
    overrides: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """The decision for a run."""

    stack: Stack
    profiles: Profiles


def match_run(run: Run, recipe: Recipe) -> Matched:
    """Decide again what building decided, for the image's own variant and machine; ManifestError, MatchError."""
    manifest = read_manifest(run.manifest, run.name)
    profiles = load_profiles(data_folder("profiles"), FRAMEWORKS if run.overrides else frameworks_of(manifest))
    said = dict(recipe.labels).get(_VARIANT)
    variant = cast("VariantChoice", said if said in ("gpu", "cpu") else "auto")
    stack = match(
        manifest,
        profiles,
        variant,
        cuda_source=run.cuda_source,
        overrides=run.overrides,
        machine=recipe.target.machine,
    )
    return Matched(stack=stack, profiles=profiles)


def stack_finding(subject: Subject, recipe: Recipe, stack: Stack) -> Finding:
    """Whether framework, variables and labels are those of the run's stack, whatever the image says of itself."""
    wanted = make_recipe(stack, subject.lock_there, subject.base, recipe.bytecode).to_dict()
    found = recipe.to_dict()
    changed = [
        line for key in ("variables", "labels", "user") for line in _changed_values(key, wanted[key], found[key])
    ]
    same = f"{stack.title}, {stack.variant}, is what the run asks for, and so are all variables"
    return Finding(about="stack", agrees=not changed, says="; ".join(changed) or same)


def _changed_values(key: str, wanted: Any, found: Any) -> Iterator[str]:
    """Each value that is another, one by one where there are several."""
    if isinstance(wanted, dict):
        for name in sorted(wanted.keys() | found.keys()):
            yield from _changed_values(name, wanted.get(name, ""), found.get(name, ""))
    elif wanted != found:
        yield f"{key} is {found or 'absent'}, and the run's stack has {wanted or 'none'}"


def loader_findings(
    matched: Matched,
    recipe: Recipe,
    base: Base,
    wheels: Mapping[Digest, Path],
    facts: Path,
    note: Callable[[str], None],
) -> Iterator[Finding]:
    """Do what the loader would do in the image: its summary, then each library that is missing or does not fit."""
    proof = prove_loading(matched.stack, recipe, base, wheels, matched.profiles, facts)
    yield Finding(about="loader", agrees=not proof.faults, says=proof.summary)
    for it in proof.faults:
        yield Finding(about="loader", agrees=False, says=f"{it}{f'; {it.todo}' if it.todo else ''}", found=it.path)
    for it in proof.notes:
        note(str(it))


def read_anew(base: Base, folder: Path) -> Base:
    """Read the base's layers again, as what the cache knows of them may be what a registry said; BaseError."""
    machine = base.target.machine
    facts = inspect(base.image, base.name, machine, known_facts(folder))
    return replace(base, target=facts.target(machine), python_path=facts.python_path, interpreter=facts.interpreter)


def make_anew(
    recipe: Recipe, base: Base, wheels: Wheels, folder: Path, report: Callable[[str, int, int], None], cache: Path
) -> Image:
    """Assemble the image with an empty cache in `folder`; BuildError as `assemble`, and where bytecode cannot be made.

    Debian packages come from `cache` or the mirror, held to the lock as wheels are: LockError where it has one no more.
    Layers leave the disk as soon as their digests are known, so it holds only those that are at work.
    """
    todo = "verify on a machine that can run the base, or without --deep"
    compiling = compiling_on(base, folder, todo) if recipe.bytecode else None
    system = unpacker(recipe.packages, base, cache, folder)
    return assemble(recipe, base, wheels, LayerCache(folder), report, _forget, compiling, system=system).image


def deep_findings(subject: Subject, recipe: Recipe, anew: Image) -> Iterator[Finding]:
    """Hold each layer above the base, and the manifest over them all, against the image that was made anew."""
    wanted = {it.created_by: it for it in anew.layers[len(subject.base.image.layers) :]}
    found = {it.created_by.removeprefix(OURS): it for it in subject.own}
    packages = {
        plan.label: tuple(f"{wheel.name} {wheel.version}" for wheel in plan.wheels) for plan in plan_layers(recipe)
    }
    packages[packages_line(recipe.packages)] = tuple(f"{it.name} {it.version}" for it in recipe.packages)
    faults = [it for line in wanted if (it := _layer(line, wanted[line], found, packages.get(line, ())))]
    faults += [
        Finding(
            about="layer", agrees=False, says=f"the lock gives none of {line or '(no history)'}", found=_both(layer)
        )
        for line, layer in found.items()
        if line not in wanted
    ]
    same = f"{len(wanted)} layers, made anew from {len(recipe.wheels)} wheels, are the image's byte for byte"
    yield from faults or [Finding(about="layers made anew", agrees=True, says=same)]
    yield compared(
        "manifest made anew",
        wanted=str(anew.digest),
        found=str(subject.image.digest),
        ok=f"{anew.digest} is the image's",
        differs=f"{anew.digest} is not the image's {subject.image.digest}",
    )


def blob_findings(image: Image) -> Iterator[Finding]:
    """Read the layers that lie on this machine to their last byte; those of a registry are checked by whoever pulls."""
    here = [layer for layer in image.layers if not layer.origin]
    faults = [it for layer in here if (it := _unlike(layer))]
    same = f"the bytes of {len(here)} layers in the layout are those of their digests"
    yield from faults or ([Finding(about="blobs", agrees=True, says=same)] if here else [])


def _unlike(layer: Layer) -> Finding | None:
    """What is wrong with the bytes of a layer, if anything is."""
    try:
        with layer.open() as blob:
            while blob.read(_CHUNK):
                pass
    except BaseError as error:
        says = f"{error.what}: {layer.created_by.removeprefix(OURS) or layer.diff_id}"
        return Finding(about="blobs", agrees=False, says=says, wanted=str(layer.descriptor.digest), found=error.where)
    return None


def _layer(line: str, made: Layer, found: Mapping[str, Layer], packages: tuple[str, ...]) -> Finding | None:
    """What differs in the layer of this line, if anything does."""
    layer = found.get(line)
    if layer and _both(layer) == _both(made):
        return None
    digest, diff_id = made.descriptor.digest, made.diff_id
    if layer is None:
        says = f"the image has none of {line}"
    elif layer.descriptor.digest != digest:
        says = f"{line} is {digest}, and the image has {layer.descriptor.digest}"
    else:
        says = f"{line} has the diff id {diff_id}, and the image says {layer.diff_id}"
    return Finding(
        about="layer",
        agrees=False,
        says=says,
        wanted=_both(made),
        found=_both(layer) if layer else "",
        packages=packages,
    )


def _both(layer: Layer) -> str:
    """The blob's digest and size, and the diff id."""
    return f"{layer.descriptor.digest} of {layer.descriptor.size} bytes, diff id {layer.diff_id}"


def _forget(layer: Layer) -> None:
    if layer.path:
        layer.path.unlink(missing_ok=True)


class Teller(Protocol):
    """Where it is told what goes on."""

    def step(self, text: str) -> None:
        """Announce a stage."""

    def note(self, text: str) -> None:
        """Say a detail."""

    def progress(self, label: str, done: int, total: int | None) -> None:
        """Show how many bytes are done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry:
    """What is to be verified, and how far."""

    image: Image
    base: Base
    lock: Lock
    run: Run | None = None
    """What was trained; then the stack and the loader are looked at too."""
    deep: bool = False
    """Whether all layers are made anew, with nothing that anybody kept."""
    cache: Path
    """Verified wheels lie there; with `deep` nothing else in it is believed."""
    settings: IndexSettings


def verify_image(inquiry: Inquiry, teller: Teller) -> tuple[Finding, ...]:
    """Everything that has to agree, in the order of what it rests on; nothing more is asked of a wrong base.

    LockError for a wheel that cannot be had, MatchError and ManifestError for the run, BuildError where the image
    cannot be made anew.
    """
    with ExitStack() as stack:
        folder, base = inquiry.cache, inquiry.base
        if inquiry.deep:
            folder = stack.enter_context(workplace(inquiry.cache))
            teller.step("reading the base anew")
            base = read_anew(base, folder)
        subject = Subject.of(inquiry.image, base, inquiry.lock)
        return tuple(_Verification(inquiry, subject, folder, teller).findings())


@dataclass(frozen=True, slots=True)
class _Verification:
    inquiry: Inquiry
    subject: Subject
    folder: Path
    """Where what is made or remembered goes."""
    teller: Teller

    def findings(self) -> Iterator[Finding]:
        first = base_finding(self.subject)
        yield first
        if not first.agrees:
            self.teller.note("nothing else is looked at: all of it rests on the base")
            return
        try:
            recipe = self.subject.recipe()
        except BuildError as error:
            yield Finding(about="environment", agrees=False, says=error.what)
            return
        yield from standing(self.subject, recipe)
        matched = match_run(self.inquiry.run, recipe) if self.inquiry.run else None
        if matched:
            yield stack_finding(self.subject, recipe, matched.stack)
        yield from self._by_wheels(recipe, matched)

    def _by_wheels(self, recipe: Recipe, matched: Matched | None) -> Iterator[Finding]:
        """What can only be told with the wheels at hand."""
        proving = matched is not None and matched.stack.cuda is not None
        if not (self.inquiry.deep or proving):
            return
        with Arrivals(self.inquiry.cache, report=self._fetched, settings=self.inquiry.settings) as arrivals:
            self.teller.step(f"fetching {len(recipe.wheels)} wheels, each held to its sha256 in the lock")
            arrivals.start(recipe.wheels)
            if self.inquiry.deep:
                self.teller.step("assembling all layers anew")
                base, cache = self.subject.base, self.inquiry.cache
                anew = make_anew(recipe, base, arrivals, self.folder, self.teller.progress, cache)
                yield from deep_findings(self.subject, recipe, anew)
                yield from blob_findings(self.inquiry.image)
            if matched and proving:
                self.teller.step("looking for CUDA's libraries as the loader does")
                wheels = {wheel.sha256: arrivals.path(wheel) for wheel in recipe.wheels}
                facts = self.folder / "loading"
                yield from loader_findings(matched, recipe, self.subject.base, wheels, facts, self.teller.note)

    def _fetched(self, done: int, total: int, _name: str) -> None:
        self.teller.progress("fetching", done, total)
