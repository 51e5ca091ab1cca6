"""Whether a serving image has the environment of the training image: by its layers, else by what both have."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from envbuild.diff.layers import read_layer
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image, Layer, history_lines
from envbuild.oci.rootfs import Overlay
from envbuild.verify.environment import (
    INSTALLERS,
    Environment,
    PackageChange,
    changed_interpreter,
    changed_libc,
    changed_packages,
    changed_site_files,
    gpu_changes,
    is_outside,
    list_paths,
    slim_changes,
    slim_finding,
)
from envbuild.verify.findings import Finding
from envbuild.verify.precedence import ImagePair, Settings, precedence_findings

_SHOWN = 5
_WHY = "serving computes with other code than the model was trained with, and predictions can differ"
_TODO = "build serving on the training image (FROM it by digest), or both from one lock"
_CPU_WHY = "kernels for the CPU round otherwise than those for the GPU, so the last digits differ"
_CPU_TODO = "run the model's golden sample in the CPU image, or serve with the GPU image"
_SYSTEM_WHY = "another C library can change numbers, and programs may not start with an older one"
_SYSTEM_TODO = "build both images on one base by digest"


def prove_sharing(train: Image, serve: Image, report: Callable[[str, int, int | None], None]) -> tuple[Finding, ...]:
    """Whether serving has all of training's environment, and what it adds.

    Where serving begins with training's layers, only the layers on top are read; all layers are read only if one of
    these, or a variable, can change what training's Python finds. BuildError for a layer that cannot be read,
    RegistryError for one that cannot be fetched.
    """
    images, settings = _Images(train, serve), (Settings.of(train), Settings.of(serve))
    same = images.begins and settings[0].deciding == settings[1].deciding
    if same and not images.added:
        return (_sharing(images, f"serving has training's {images.shared} layers, and no other"),)
    known: dict[Digest, Overlay] = {}
    if same:
        added = _read(images.added, "serving", known, report)
        if all(is_outside(it, settings[1].places) for _, it in added):
            return _sharing(images, f"serving begins with training's {images.shared} layers"), _addition(images, ())
    before = Environment(_read(train.layers, "training", known, report))
    after = Environment(_read(serve.layers, "serving", known, report))
    pair = ImagePair(before=before, after=after, train=settings[0], serve=settings[1])
    return *_differences(images, before, after), *precedence_findings(pair)


@dataclass(frozen=True, slots=True)
class _Images:
    train: Image
    serve: Image

    @property
    def shared(self) -> int:
        """How many of the lowest layers have the same content."""
        pairs = zip(self.train.layers, self.serve.layers, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0].diff_id == pair[1].diff_id, pairs))

    @property
    def begins(self) -> bool:
        """Whether serving has all of training's layers below its own."""
        return self.shared == len(self.train.layers)

    @property
    def added(self) -> tuple[Layer, ...]:
        return self.serve.layers[self.shared :]

    def __str__(self) -> str:
        if self.begins:
            return f"serving begins with training's {self.shared} layers"
        return f"{self.shared} of training's {len(self.train.layers)} layers are serving's"


def _read(
    layers: Sequence[Layer], name: str, known: dict[Digest, Overlay], report: Callable[[str, int, int | None], None]
) -> list[tuple[str, Overlay]]:
    """Read each layer once; its blob's digest, and what it does."""
    total, done, found = sum(it.descriptor.size for it in layers), 0, []
    for layer in layers:
        if layer.diff_id not in known:
            known[layer.diff_id] = read_layer(layer, f"the {name} image")
        found.append((str(layer.descriptor.digest), known[layer.diff_id]))
        done += layer.descriptor.size
        report(f"reading {name}'s layers", done, total)
    return found


def _differences(images: _Images, before: Environment, after: Environment) -> Iterator[Finding]:
    changes = list(changed_packages(before, after))
    gpu, slim = gpu_changes(changes, before, after), slim_changes(changes, before, after, images.serve)
    packages = [it for it in changes if it not in (*gpu, *slim) and it.name not in INSTALLERS]
    files = {"python": changed_interpreter(before, after), "site-packages": changed_site_files(before, after)}
    wrong = [*map(str, packages), *(f"{about} ({list_paths(paths)})" for about, paths in files.items() if paths)]
    if wrong:
        first = images.added[0].descriptor.digest if images.added else "none"
        change = "a layer on top changes them" if images.begins else f"the first other one is {first}"
        names = tuple(f"{it.name} {it.before}" for it in packages)
        yield _wrong("layers", "shared-layers", f"{images}, {change}: {_list(wrong)}", names, _ends(images))
    else:
        same = f"Python and {len(before.distributions) - len(changes)} packages are the same"
        yield _sharing(images, f"{images}, and {'all but what a GPU needs is the same' if gpu else same}")
    yield from map(_package, packages)
    for about, paths in files.items():
        if paths:
            says = f"{len(paths)} files of training differ in serving: {list_paths(paths)}"
            yield _wrong(about, "shared-files", says)
    if gpu:
        yield _sibling(gpu)
    system = [*(str(it) for it in changes if it.name in INSTALLERS), *filter(None, (changed_libc(before, after),))]
    if system:
        yield Finding(
            about="system", rule="shared-system", agrees=False, severity="warning",
            says=f"differs in serving: {_list(system)}", why=_SYSTEM_WHY, todo=_SYSTEM_TODO,
        )  # fmt: skip
    added = [f"{it} {one.version}" for it, one in after.distributions.items() if it not in before.distributions]
    if images.begins or added:
        yield _addition(images, added)
    if slim:
        yield slim_finding(slim)


def _ends(images: _Images) -> tuple[str, str]:
    return str(images.train.digest), str(images.serve.digest)


def _sharing(images: _Images, says: str) -> Finding:
    wanted, found = _ends(images)
    return Finding(about="layers", rule="shared-layers", agrees=True, says=says, wanted=wanted, found=found)


def _wrong(
    about: str, rule: str, says: str, packages: tuple[str, ...] = (), values: tuple[str, str] = ("", ""), todo: str = ""
) -> Finding:
    return Finding(
        about=about, rule=rule, agrees=False, says=says, wanted=values[0], found=values[1], why=_WHY,
        todo=todo or _TODO, packages=packages,
    )  # fmt: skip


def _package(change: PackageChange) -> Finding:
    name, before, after = change.name, change.before, change.after
    found = f"{after} with other files" if before == after else after or "not there"
    names = tuple(f"{name} {version}" for version in dict.fromkeys((before, after)) if version)
    todo = f"pin {name}=={before} in serving, or {_TODO}"
    return _wrong(name, "shared-package", str(change), names, (before, found), todo)


def _sibling(changes: Sequence[PackageChange]) -> Finding:
    return Finding(
        about="variant",
        rule="shared-variant",
        agrees=False,
        severity="warning",
        says=f"training's image is for a GPU and serving's for the CPU: {_list(list(map(str, changes)))}",
        wanted="gpu",
        found="cpu",
        why=_CPU_WHY,
        todo=_CPU_TODO,
        packages=tuple(f"{it.name} {it.before}" for it in changes),
    )


def _addition(images: _Images, packages: Sequence[str]) -> Finding:
    serve = images.serve
    lines = history_lines(json.loads(serve.config), len(serve.layers)) if images.begins else []
    names = [line.strip()[:80] or str(it.descriptor.digest) for line, it in zip(lines, serve.layers, strict=False)]
    names = names[images.shared :]
    layers = f"{len(names)} layer{'s' if len(names) > 1 else ''} ({_list(names)})" if names else ""
    what = " and ".join(filter(None, (layers, _list(packages)))) or "no layer"
    return Finding(
        about="added", rule="shared-added", agrees=True, says=f"serving adds {what}", packages=tuple(packages)
    )


def _list(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more
