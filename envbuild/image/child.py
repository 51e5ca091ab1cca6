"""A child image: the layers of a parent, by digest, with more distributions and files on top.

Of the parent only the few bytes of its virtual environment's own files are read, and nothing is changed.
"""

import json
import posixpath
import tarfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from envbuild.check import LIST, PROGRAM
from envbuild.errors import BuildError
from envbuild.image.assembler import (
    Assembled,
    detect_overlaps,
    find_fingerprints,
    find_overlap_note,
    overlap_slots,
    overlaps_spec,
    wheels_spec,
)
from envbuild.image.bytecode.compiler import FORMAT, Compiling, Parcel, Source, Tally
from envbuild.image.bytecode.layers import MOST_LAYERS, Bytecode, BytecodeLayer, plan_bytecode, plan_library
from envbuild.image.config import (
    BASE_DIGEST,
    BASE_NAME,
    OURS,
    Slot,
    environment_files,
    extend_config,
    find_problem,
    inner_config,
    whole_config,
)
from envbuild.image.content import Content, ContentFile, HashedContent, hash_content
from envbuild.image.layers.cache import LayerCache
from envbuild.image.layers.maker import DEFAULTS, AssemblyOptions, LayerSpec, Maker, OpenWheels, Wheels
from envbuild.image.layers.plan import LayerPlan, Overlap, check_depth, plan_layers
from envbuild.image.layers.writer import LayerFile
from envbuild.image.rebase import BYTECODE_LINE, ENVIRONMENT_LINE, STDLIB_WORDS, annotations_of, named_base
from envbuild.lock.model import Lock, LockedWheel
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image, Layer, canonical_json, history_lines, manifest_bytes
from envbuild.oci.rootfs import Overlay, read_layer
from envbuild.recipe import LAYER_FORMAT, PREFIX, Base, Recipe
from envbuild.wheel.install import Fingerprint, InstalledFile, Scheme, fingerprint

_SMALL = 1 << 20
"""Bytes of the layer with a virtual environment's own files, compressed; it has some hundreds."""
_NAMED_CLASHES = 10
"""Clashes that a message names; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """The image that a child starts with."""

    image: Image
    lock: Lock
    """The lock that it was built from."""
    name: str = ""
    """Its reference without a digest, for the child's annotations; empty to leave that out."""
    python: str = ""
    """The path of its interpreter, all links followed; empty to read it from the image when needed."""

    @property
    def digest(self) -> Digest:
        """The digest in the registry."""
        return self.image.found_as or self.image.digest

    @property
    def base(self) -> Base:
        """The parent as the base of further layers."""
        return Base(name=self.name, image=self.image, target=self.lock.target, python_path=self.python)


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """What a child adds to its parent, besides the distributions."""

    prefix: str = PREFIX
    """Folder for the distributions: the parent's environment, or one of its own that sees the parent's too."""
    variables: tuple[tuple[str, str], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    entrypoint: tuple[str, ...] | None = None
    """None for the parent's; another one drops the parent's command, as in a Dockerfile."""
    cmd: tuple[str, ...] | None = None
    ports: tuple[int, ...] = ()
    user: str | None = None
    folder: str | None = None
    """The working directory."""
    contents: tuple[Content, ...] = ()
    """Files besides those of the distributions: a layer each, above all wheels, in this order."""

    @property
    def apart(self) -> bool:
        """Whether the distributions get a virtual environment of their own."""
        return self.prefix != PREFIX


def add_startup_check(addition: Addition, above: Lock, cmd: Sequence[str]) -> Addition:
    """Let the start-up check start a command, after a check of the added packages too.

    The list of added packages is a file beside the parent's list, which does not change.
    """
    packages = {"packages": {wheel.name: wheel.version for wheel in above.wheels}}
    path = f"{PREFIX}/{posixpath.dirname(LIST)}/added.json"
    own = [Content("start-up check of what is added", {path: canonical_json(packages)})] if above.wheels else []
    entrypoint = (f"{PREFIX}/{PROGRAM}", "--")
    return replace(addition, entrypoint=entrypoint, cmd=tuple(cmd), contents=(*own, *addition.contents))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildBytecode:
    """What gets bytecode, and the interpreter that compiles it.

    The parent's packages get the same layers as in a build of the parent with bytecode: their keys are equal.
    """

    compiling: Compiling
    below: Recipe
    """The parent's environment, on its own base; without wheels if the child has an environment of its own."""
    above: Recipe
    """What is added, with the parent as its base."""
    lines: Collection[str]
    """The history lines of the parent's layers, without the mark of envbuild's layers."""
    cache: LayerCache

    @property
    def most(self) -> int:
        """The largest number of layers, without those of contents."""
        return MOST_LAYERS + (0 if self._has_packages else MOST_LAYERS)

    def of_packages(self, before: Sequence[Overlap] = (), overlaps: Sequence[Overlap] = ()) -> Bytecode:
        """Plan the bytecode of packages; `before` are the overlaps of the parent's wheels, `overlaps` those above."""
        layers = list(plan_bytecode(self.above, self.compiling.identity, overlaps))
        if not self._has_packages:
            layers = [*plan_bytecode(self.below, self.compiling.identity, before), *layers]
        if not any(line.startswith(BYTECODE_LINE) and STDLIB_WORDS in line for line in self.lines):
            layers = [*plan_library(self.below, self.compiling), *layers]
        return Bytecode(layers=tuple(layers), compiling=self.compiling, cache=self.cache)

    def package_specs(self, overlaps: Sequence[Overlap], opened: OpenWheels) -> tuple[list[LayerSpec], Tally]:
        """Return the layers of bytecode that are not empty; compiles and raises as `Bytecode.specs`."""
        before = () if self._has_packages else detect_overlaps(self.below, self.cache, opened)
        return self.of_packages(before, overlaps).specs(opened)

    def package_slots(self, overlaps: Sequence[Overlap] | None) -> Iterator[Slot]:
        """Yield the layers that `package_specs` makes or may make; `overlaps` is None if they are unknown."""
        before = () if self._has_packages else find_overlap_note(self.below, self.cache)
        known = before is not None and overlaps is not None
        return self.of_packages(before or (), overlaps or ()).slots(known=known)

    def of_contents(self, contents: Sequence[HashedContent]) -> Bytecode:
        """Plan the bytecode of sources outside wheels; of a path that several contents have, the last one counts."""
        layers = [
            BytecodeLayer(
                label=f"{BYTECODE_LINE} of {it.line}",
                key=parcel.key,
                prefix=parcel.prefix,
                parcels=(parcel,),
                note="what is in the bytecode of content",
            )
            for it, parcel in _content_parcels(contents, self.compiling.identity)
        ]
        return Bytecode(layers=tuple(layers), compiling=self.compiling, cache=self.cache)

    @property
    def _has_packages(self) -> bool:
        return any(line.startswith(BYTECODE_LINE) and STDLIB_WORDS not in line for line in self.lines)


def _content_parcels(contents: Sequence[HashedContent], identity: str) -> Iterator[tuple[HashedContent, Parcel]]:
    last = {file.path: it for it in contents for file in it.files}
    for it in contents:
        yield from ((it, parcel) for parcel in _parcels([file for file in it.files if last[file.path] is it], identity))


def _parcels(files: Sequence[ContentFile], identity: str) -> Iterator[Parcel]:
    """Group the sources by the top folder of the root, as all files of a layer are below one folder."""
    tops: dict[str, list[tuple[str, ContentFile]]] = {}
    for file in files:
        top, slash, path = file.path.partition("/")
        # An import may look for the bytecode of such a path, and an archive of bytecode can hold it.
        name, plain = path.rpartition("/")[2], path.isprintable() and "\\" not in path and ":" not in path
        if slash and plain and name.endswith(".py") and name.removesuffix(".py").isidentifier():
            tops.setdefault(f"/{top}", []).append((path, file))
    for folder, sources in tops.items():
        rows = [[path, file.digest.hex] for path, file in sources]
        key = Digest.of(canonical_json(["bytecode of content", FORMAT, LAYER_FORMAT, identity, folder, rows]))
        yield Parcel(key, folder, partial(_list_sources, sources))


def _list_sources(files: Sequence[tuple[str, ContentFile]], _wheels: OpenWheels) -> list[Source]:
    return [Source(path, file.size, file.read) for path, file in files]


def assemble_child(
    parent: Parent,
    above: Lock,
    addition: Addition,
    wheels: Wheels,
    cache: LayerCache,
    options: AssemblyOptions = DEFAULTS,
    compiling: Compiling | None = None,
) -> Assembled:
    """Make the child with the wheels of a lock above the parent's; equal inputs give equal bytes.

    BuildError if the wheels would replace files of the parent, or its interpreter is unknown; WheelError if a wheel is
    not fit. To compare paths, the parent's wheels without a noted fingerprint are fetched. In an environment of its
    own, a file that hides one of the parent's is a remark, as far as fingerprints are noted. With `compiling`, all that
    is added gets bytecode, and so do the parent's packages and standard library if they have none.
    """
    recipe = _recipe(parent, above, addition)
    plans = plan_layers(recipe)
    own = [_environment_spec(recipe)] if addition.apart else []
    contents = [hash_content(it) for it in addition.contents]
    bytecode = _bytecode(parent, above, addition, compiling, cache) if compiling else None
    more = bytecode.most + len(contents) if bytecode else 0
    check_depth(len(plans) + len(own) + 1 + len(contents) + more, len(parent.image.layers))
    specs, last = [*map(wheels_spec, plans), *own], [it.spec for it in contents]
    cache.prefetch([it.key for it in (*specs, *last)])
    with Maker(recipe, cache, wheels, options) as maker:
        overlaps = detect_overlaps(recipe, cache, maker.opened)
        remarks = _check_clashes(parent, addition, plans, cache, maker.opened)
        shared = [overlaps_spec(recipe, overlaps)] if overlaps else []
        compiled, tally = bytecode.package_specs(overlaps, maker.opened) if bytecode else ([], None)
        on_top, more_tally = bytecode.of_contents(contents).specs(maker.opened) if bytecode else ([], None)
        layers = maker.layers([*specs, *shared, *compiled, *last, *on_top])
    return Assembled(
        image=_join(parent, addition, layers),
        overlaps=tuple(overlaps),
        results=maker.results,
        verified_members=maker.opened.verified_members(),
        bytecode=tally + more_tally if tally and more_tally else None,
        remarks=remarks,
    )


def _join(parent: Parent, addition: Addition, layers: Sequence[Layer]) -> Image:
    config = whole_config(parent.base, _inner(parent.base, addition), layers)
    everything = (*parent.image.layers, *layers)
    annotations = {key: text for key, text in annotations_of(parent.image).items() if key != BASE_NAME}
    annotations |= ({BASE_NAME: parent.name} if parent.name else {}) | {BASE_DIGEST: str(parent.digest)}
    return Image(manifest_bytes(config, everything, annotations), config, everything)


def find_child_difference(
    image: Image,
    parent: Parent,
    above: Lock,
    addition: Addition,
    cache: LayerCache,
    compiling: Compiling | None = None,
) -> str:
    """Describe how an existing child differs from the one that `assemble_child` makes of its layers; empty if equal."""
    slots = _slots(parent, above, addition, cache, compiling)
    return find_problem(image, parent.image, slots, cache, lambda layers: _join(parent, addition, layers))


def keys_of_child(
    parent: Parent, above: Lock, addition: Addition, cache: LayerCache, compiling: Compiling | None = None
) -> frozenset[Digest]:
    """Return the keys of the layers that `assemble_child` makes, as far as notes say which these are."""
    slots = _slots(parent, above, addition, cache, compiling)
    return frozenset(it.key for it in slots if it.key)


def content_keys(contents: Sequence[HashedContent], compiling: Compiling | None = None) -> frozenset[Digest]:
    """Return the keys of the layers of files, and of their bytecode."""
    parcels = _content_parcels(contents, compiling.identity) if compiling else ()
    return frozenset((*(it.key for it in contents), *(it.key for _, it in parcels)))


def _slots(
    parent: Parent, above: Lock, addition: Addition, cache: LayerCache, compiling: Compiling | None
) -> list[Slot]:
    """The layers of a child, lowest first."""
    recipe = _recipe(parent, above, addition)
    overlaps = find_overlap_note(recipe, cache)
    contents = [hash_content(it) for it in addition.contents]
    bytecode = _bytecode(parent, above, addition, compiling, cache) if compiling else None
    specs = [*map(wheels_spec, plan_layers(recipe)), *([_environment_spec(recipe)] if addition.apart else [])]
    return [
        *(Slot(label=it.label, key=it.key) for it in specs),
        *overlap_slots(recipe, overlaps),
        *(bytecode.package_slots(overlaps) if bytecode else ()),
        *(Slot(label=it.line, key=it.key) for it in contents),
        *(bytecode.of_contents(contents).slots() if bytecode else ()),
    ]


def wheels_of_child(
    parent: Parent, above: Lock, addition: Addition, cache: LayerCache, compiling: Compiling | None = None
) -> tuple[LockedWheel, ...]:
    """Return the wheels that `assemble_child` probably needs: those of layers that are not cached."""
    plans = plan_layers(_recipe(parent, above, addition))
    lacking = [wheel for plan in plans if not cache.knows(plan.key) for wheel in plan.wheels]
    sources = _bytecode(parent, above, addition, compiling, cache).of_packages().wheels_to_read() if compiling else ()
    return tuple(dict.fromkeys((*lacking, *sources)))


def _bytecode(
    parent: Parent, above: Lock, addition: Addition, compiling: Compiling, cache: LayerCache
) -> ChildBytecode:
    """Return the child's bytecode; for an environment of its own, without the parent's packages."""
    base_digest = named_base(parent.image)[1]
    below = replace(
        _below(parent),
        base_digest=Digest.parse(base_digest) if base_digest else parent.digest,
        python_path=parent.python or interpreter_of(parent.image),
    )
    return ChildBytecode(
        compiling=compiling,
        below=replace(below, wheels=()) if addition.apart else below,
        above=_recipe(parent, above, addition),
        lines=[layer.created_by.removeprefix(OURS) for layer in parent.image.layers],
        cache=cache,
    )


def base_of(parent: Parent) -> Base:
    """Return the parent's base: its layers below the first of envbuild's; BuildError if it has none of envbuild's.

    The identity of the interpreter stays empty.
    """
    config = json.loads(parent.image.config)
    lines = history_lines(config, len(parent.image.layers))
    count = next((at for at, line in enumerate(lines) if line.startswith(OURS)), 0)
    layers, (name, digest) = parent.image.layers[:count], named_base(parent.image)
    python = parent.python or interpreter_of(parent.image)
    value = config | {"rootfs": config["rootfs"] | {"diff_ids": [str(it.diff_id) for it in layers]}, "history": []}
    data = canonical_json(value)
    image = Image(manifest_bytes(data, layers, {}), data, layers, Digest.parse(digest) if digest else None)
    return Base(name=name or "the base", image=image, target=parent.lock.target, python_path=python)


def interpreter_of(image: Image) -> str:
    """Return the interpreter in an image's pyvenv.cfg (PEP 405), all links followed.

    Only the layer with the environment's own files is read. BuildError for an image without such a layer.
    """
    for layer in image.layers:
        if layer.created_by.removeprefix(OURS) == ENVIRONMENT_LINE and layer.descriptor.size <= _SMALL:
            texts: list[str] = []

            def keep_config(_layer: Overlay, path: str, member: tarfile.TarInfo, archive: tarfile.TarFile) -> None:
                if f"/{path}" == f"{PREFIX}/pyvenv.cfg" and (file := archive.extractfile(member)):
                    texts.append(file.read(_SMALL).decode())  # noqa: B023 - it is called in this round

            read_layer(layer, str(image.digest), keep_config)
            lines = "".join(texts).splitlines()
            pairs = (line.partition("=") for line in lines)
            return {key.strip(): text.strip() for key, _, text in pairs}.get("executable", "")
    what = "the image has no layer with a pyvenv.cfg, so its interpreter is unknown"
    todo = "use an image that envbuild assembled, or build it from the manifest"
    raise BuildError(what, where=str(image.digest), todo=todo)


def _recipe(parent: Parent, above: Lock, addition: Addition) -> Recipe:
    return Recipe(
        base_name=parent.name,
        base_digest=parent.digest,
        python_path=(parent.python or interpreter_of(parent.image)) if addition.apart else "",
        target=parent.lock.target,
        wheels=above.wheels,
        owners=above.owners,
        prefix=addition.prefix,
    )


def _environment_spec(recipe: Recipe) -> LayerSpec:
    """Return the files of an environment that sees its own packages first, and then the parent's."""
    files, links = environment_files(recipe)
    site = Scheme(prefix=PREFIX, python_minor=recipe.target.python_minor).site_packages
    # A plain path would be searched as well, but the .pth files in it would not be read (site.addpackage).
    line = f'import site; site.addsitedir("{PREFIX}/{site}")\n'
    files.append(LayerFile(InstalledFile(f"{site}/envbuild-parent.pth", executable=False, source=line.encode()), None))
    value = [recipe.layer_format, recipe.prefix, recipe.python_path, recipe.target.python, PREFIX]
    key = Digest.of(canonical_json(["environment above", value]))
    return LayerSpec(label=f"{ENVIRONMENT_LINE} {recipe.prefix}", key=key, files=lambda _: files, links=links)


def _check_clashes(
    parent: Parent, addition: Addition, plans: tuple[LayerPlan, ...], cache: LayerCache, opened: OpenWheels
) -> tuple[str, ...]:
    """Refuse wheels that would replace a file of the parent; return remarks on files that would hide one."""
    below = plan_layers(_below(parent))
    theirs = find_fingerprints(below, cache)
    if not addition.apart:
        theirs |= {wheel: opened.fingerprint(wheel) for wheel in parent.lock.wheels if wheel not in theirs}
    clashes = dict(_find_clashes(theirs, find_fingerprints(plans, cache), opened))
    if addition.apart:
        site = Scheme(prefix=addition.prefix, python_minor=parent.lock.target.python_minor).site_packages
        return tuple(f"{it}, and hides it" for it, path in clashes.items() if path.startswith(f"{site}/"))
    if clashes:
        more = [f"and {len(clashes) - _NAMED_CLASHES} more"] if len(clashes) > _NAMED_CLASHES else []
        lines = ["files of the environment would be replaced:", *list(clashes)[:_NAMED_CLASHES], *more]
        todo = "leave that distribution out, or take another release of it"
        raise BuildError("\n  - ".join(lines), where=parent.name, todo=todo)
    return ()


def _below(parent: Parent) -> Recipe:
    return _recipe(parent, parent.lock, Addition())


def _find_clashes(
    theirs: Mapping[LockedWheel, Fingerprint], ours: Mapping[LockedWheel, Fingerprint], opened: OpenWheels
) -> Iterator[tuple[str, str]]:
    """Yield a line for each path that the parent has with other content, and the path."""
    there = {path: (content, wheel.name) for wheel, rows in theirs.items() for path, content in rows.items()}

    def owner(rows: Fingerprint) -> str | None:
        found = (there[path][1] for path, content in rows.items() if path in there and there[path][0] != content)
        return next(found, None)

    for wheel in (wheel for wheel, rows in ours.items() if owner(rows)):
        for file in opened[wheel].files:
            if name := owner(fingerprint([file])):
                yield f"{file.path} of {wheel.name} {wheel.version} is in {name} too", file.path


def _inner(base: Base, addition: Addition) -> dict[str, Any]:
    """Return the parent's config with the addition (OCI image-spec, config.md)."""
    inner = extend_config(inner_config(base), dict(addition.variables), dict(addition.labels))
    if addition.entrypoint is not None:
        inner |= {"Entrypoint": list(addition.entrypoint), "Cmd": None}
    if addition.ports:
        inner["ExposedPorts"] = dict(inner.get("ExposedPorts") or {}) | {f"{it}/tcp": {} for it in addition.ports}
    changed = {"Cmd": addition.cmd and list(addition.cmd), "User": addition.user, "WorkingDir": addition.folder}
    inner |= {key: value for key, value in changed.items() if value is not None}
    return {key: value for key, value in inner.items() if value is not None}
