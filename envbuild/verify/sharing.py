"""The proof that a serving image has the environment of the training image: by its layers, else file by file."""

import json
import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import takewhile

from envbuild.diff.layers import read_layer
from envbuild.diff.pair import Report
from envbuild.image.config import OURS
from envbuild.image.rebase import BYTECODE_LINE
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image, Layer, history_lines
from envbuild.oci.rootfs import Overlay, members, over
from envbuild.verify.cache import read_cache
from envbuild.verify.choices import Configured, same_choices
from envbuild.verify.choices import Pair as Both
from envbuild.verify.findings import Finding
from envbuild.verify.foremost import foremost_findings
from envbuild.verify.holdings import Held, Holdings, Moved, harmless, held, names_of
from envbuild.verify.scripts import may_hide, script_folder
from envbuild.verify.slim import without_slim

_SHOWN = 5
_CACHE = "etc/ld.so.cache"
_LONGEST = 32 << 20
_WHY = "serving computes with other code than the model was trained with, and predictions can differ"
_TODO = "build serving on the training image (FROM it by digest), or both from one lock"
_CPU_WHY = "kernels for the CPU round otherwise than those for the GPU, so numbers differ in their last digits"
_CPU_TODO = "hold the model's recorded sample against the CPU image, or serve with the GPU image"
_SYSTEM_WHY = "the system's libraries can change numbers, and programs that need them may not start"
_SYSTEM_TODO = "give both images one base by digest, and install the system's packages in the training image"


def prove_sharing(train: Image, serve: Image, report: Report) -> tuple[Finding, ...]:
    """Whether serving has all of training's environment, and what it adds.

    Nothing but the configs is looked at where both have the same layers; where serving adds layers, those are read;
    and all of both only where these, or other variables, may change what training has or finds. BuildError for a
    layer that cannot be read, RegistryError for one that cannot be had.
    """
    pair = _Pair(train, serve)
    configs = _configured(train), _configured(serve)
    near = pair.begins and same_choices(*configs)
    if near and not pair.added:
        return (_finding(pair, f"serving has training's {pair.shared} layers, and no other"),)
    reading = _Reading(report)
    if near and _beside(reading.overlays(pair.added, "serving"), configs[1], pair):
        return _finding(pair, f"serving begins with training's {pair.shared} layers"), _adds(pair, ())
    before, after = reading.holdings(train.layers, "training"), reading.holdings(serve.layers, "serving")
    caches = _caches(before, after, pair)
    vouched = after.brought_by(_bytecode_layers(serve))
    both = Both(before=before, after=after, train=configs[0], serve=configs[1], caches=caches, vouched=vouched)
    found, slim = without_slim(held(before, after), before, after, serve)
    return *_findings(pair, found), *slim, *foremost_findings(both)


def _configured(image: Image) -> Configured:
    inner = json.loads(image.config).get("config") or {}
    variables = dict(str(it).partition("=")[::2] for it in inner.get("Env") or ())
    folder = str(inner.get("WorkingDir") or "/")
    return Configured(variables=variables, folder=folder, script=script_folder(inner))


def _beside(overlays: Sequence[Overlay], serve: Configured, pair: "_Pair") -> bool:
    """Whether what is added lies beside training's environment, and hides none of its modules from the program."""
    if not all(harmless(it, serve.led) for it in overlays):
        return False
    trained = " ".join(history_lines(json.loads(pair.train.config), len(pair.train.layers)))
    return not (serve.script and may_hide(overlays, serve.script, trained))


def _bytecode_layers(image: Image) -> list[int]:
    """The layers that the history calls our bytecode: all that tells where a Python's hash of sources is not known."""
    lines = history_lines(json.loads(image.config), len(image.layers))
    return [number for number, line in enumerate(lines) if line.startswith(f"{OURS}{BYTECODE_LINE}")]


def _caches(before: Holdings, after: Holdings, pair: "_Pair") -> tuple[dict[str, str], dict[str, str]]:
    """What the loader's caches say, where they differ: they are read for it once more."""
    old, new = before.tree.get(_CACHE), after.tree.get(_CACHE)
    if not old or not new or old.sha256 == new.sha256:
        return {}, {}
    return _cache(pair.train), _cache(pair.serve)


def _cache(image: Image) -> dict[str, str]:
    """What the highest layer that has a cache says in it; it was seen to be there, and no link."""
    machine = json.loads(image.config).get("architecture")
    for layer in reversed(image.layers):
        for member, archive in members(layer):
            if member.isreg() and posixpath.normpath(f"/{member.name}")[1:] == _CACHE:
                content = archive.extractfile(member)
                return read_cache(
                    content.read(_LONGEST) if content else b"", "aarch64" if machine == "arm64" else "x86_64"
                )
    return {}


@dataclass(frozen=True, slots=True)
class _Pair:
    train: Image
    serve: Image

    @property
    def shared(self) -> int:
        """How many lowest layers are the same, by their content."""
        pairs = zip(self.train.layers, self.serve.layers, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0].diff_id == pair[1].diff_id, pairs))

    @property
    def begins(self) -> bool:
        """Whether serving has all of training's layers below its own."""
        return self.shared == len(self.train.layers)

    @property
    def added(self) -> tuple[Layer, ...]:
        return self.serve.layers[self.shared :]

    @property
    def said(self) -> str:
        """How far the layers are the same."""
        if self.begins:
            return f"serving begins with training's {self.shared} layers"
        return f"{self.shared} of training's {len(self.train.layers)} layers are serving's"


class _Reading:
    """Reads each layer once."""

    def __init__(self, report: Report) -> None:
        self._known: dict[Digest, Overlay] = {}
        self._report = report

    def overlays(self, layers: Sequence[Layer], name: str) -> list[Overlay]:
        """What each layer does."""
        total, done, found = sum(it.descriptor.size for it in layers), 0, list[Overlay]()
        for layer in layers:
            if layer.diff_id not in self._known:
                self._known[layer.diff_id] = read_layer(layer, f"the {name} image")
            found.append(self._known[layer.diff_id])
            done += layer.descriptor.size
            self._report(f"reading {name}'s layers", done, total)
        return found

    def holdings(self, layers: Sequence[Layer], name: str) -> Holdings:
        """What an image holds."""
        overlays = self.overlays(layers, name)
        blobs = [str(it.descriptor.digest) for it in layers]
        return Holdings(reduce(over, overlays, Overlay()).nodes, list(zip(blobs, overlays, strict=True)))


def _findings(pair: _Pair, found: Held) -> Iterator[Finding]:
    """The findings of two images whose files are known."""
    wrong = [str(it) for it in found.packages]
    wrong += [f"Python itself: {names_of(found.interpreter)}"] if found.interpreter else []
    wrong += [f"files beside the packages: {names_of(found.loose)}"] if found.loose else []
    if wrong:
        yield _differs(pair, found.packages, wrong)
    elif found.excused:
        yield _finding(pair, f"{pair.said}, and all but what a GPU needs is the same")
    else:
        yield _finding(pair, f"{pair.said}, and every file of Python and of {found.same} packages is the same")
    yield from map(_package, found.packages)
    yield from _interpreter(found)
    if found.excused:
        yield _sibling(found.excused)
    if found.system:
        yield _system(found.system)
    if pair.begins or found.added:
        yield _adds(pair, found.added)


def _finding(pair: _Pair, says: str) -> Finding:
    wanted, found = str(pair.train.digest), str(pair.serve.digest)
    return Finding(about="layers", rule="shared-layers", agrees=True, says=says, wanted=wanted, found=found)


def _differs(pair: _Pair, packages: Sequence[Moved], wrong: Sequence[str]) -> Finding:
    first = pair.added[0].descriptor.digest if pair.added else "none"
    change = "a layer on top changes what is in them" if pair.begins else f"the first other one is {first}"
    return Finding(
        about="layers",
        rule="shared-layers",
        agrees=False,
        says=f"{pair.said}, {change}: {_listed(wrong)}",
        wanted=str(pair.train.digest),
        found=str(pair.serve.digest),
        why=_WHY,
        todo=_TODO,
        packages=tuple(f"{it.name} {it.before}" for it in packages),
    )


def _package(moved: Moved) -> Finding:
    found = moved.after or "not there"
    other = f"{found} with other files" if moved.before == moved.after else found
    return Finding(
        about=moved.name,
        rule="shared-package",
        agrees=False,
        says=str(moved),
        wanted=moved.before,
        found=other,
        why=_WHY,
        todo=f"pin {moved.name}=={moved.before} in serving, or {_TODO}",
        packages=tuple(f"{moved.name} {version}" for version in dict.fromkeys((moved.before, moved.after)) if version),
    )


def _interpreter(found: Held) -> Iterator[Finding]:
    for about, paths in (("python", found.interpreter), ("site-packages", found.loose)):
        if paths:
            says = f"{len(paths)} files of training differ in serving: {names_of(paths)}"
            yield Finding(about=about, rule="shared-files", agrees=False, says=says, why=_WHY, todo=_TODO)


def _sibling(excused: Sequence[Moved]) -> Finding:
    return Finding(
        about="variant",
        rule="shared-variant",
        agrees=False,
        severity="warning",
        says=f"training's image is for a GPU and serving's for the CPU: {_listed([str(it) for it in excused])}",
        wanted="gpu",
        found="cpu",
        why=_CPU_WHY,
        todo=_CPU_TODO,
        packages=tuple(f"{it.name} {it.before}" for it in excused),
    )


def _system(changes: Sequence[str]) -> Finding:
    return Finding(
        about="system",
        rule="shared-system",
        agrees=False,
        severity="warning",
        says=f"{len(changes)} of the system's packages and libraries differ: {_listed(changes)}",
        why=_SYSTEM_WHY,
        todo=_SYSTEM_TODO,
    )


def _adds(pair: _Pair, packages: Sequence[str]) -> Finding:
    lines = _lines(pair.serve)[pair.shared :] if pair.begins else []
    layers = f"{len(lines)} layer{'s' if len(lines) > 1 else ''} ({_listed(lines)})" if lines else ""
    what = " and ".join(filter(None, (layers, _listed(packages)))) or "no layer"
    return Finding(
        about="added", rule="shared-added", agrees=True, says=f"serving adds {what}", packages=tuple(packages)
    )


def _lines(image: Image) -> list[str]:
    """What the history says of each layer; its digest where it says nothing."""
    lines = history_lines(json.loads(image.config), len(image.layers))
    return [line.strip()[:80] or str(it.descriptor.digest) for line, it in zip(lines, image.layers, strict=True)]


def _listed(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more
