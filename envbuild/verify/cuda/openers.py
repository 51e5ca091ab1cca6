"""Projects besides the framework that open CUDA: each object of their wheels that needs its libraries is tried.

A wheel opens CUDA where one of its objects needs a library of CUDA (DT_NEEDED), or where a profile says that it opens
one by dlopen. Each object is tried in a process of its own, after what its project's Python has loaded before it.
NVIDIA's own wheels are passed over: their objects are read when one of these loads them.
"""

import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import groupby
from typing import NamedTuple

from packaging.version import Version

from envbuild.lock.model import LockedWheel
from envbuild.manifest.hardware import Library
from envbuild.match.openers import find_opener, wheel_of
from envbuild.match.rows import Opener
from envbuild.match.run import JAX_PLUGIN
from envbuild.oci.rootfs import resolve
from envbuild.verify.cuda.files import DRIVER, LIBRARY, PlannedImage
from envbuild.verify.cuda.openings import CUDA, Kind, LoaderFinding, Opening, loaded_before, open_library
from envbuild.verify.cuda.process import MACHINES, Elf

_FRAMEWORKS = {
    "torch": re.compile(r"lib(torch|c10)(_\w+)?\.so"),
    "tensorflow": re.compile(r"libtensorflow_\w+\.so\.\d+"),
}
"""What is imported before an object that needs such a library."""
_BUILD = re.compile(r"(?<![a-z])(cu|cuda)[-_.]?\d+(\.\d+)?")
"""What differs between the paths of objects for several versions of CUDA, of which one is loaded: `_cuda126`."""
_MAJOR = re.compile(r"lib(?:cudart|cublas|cublasLt|nvrtc|nvJitLink)\.so\.(\d+)(?:\.\d+)*")
"""What has the major version of CUDA in its name."""
_SHOWN = 5
"""Names of one kind that a line has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """An object that is opened in a process of its own."""

    wheel: LockedWheel
    path: str
    before: tuple[Opening, ...] = ()
    """What Python has loaded before."""
    opens: tuple[str, ...] = ()
    """The sonames that its code opens then, where no DT_NEEDED has them."""
    row: Opener | None = None


class Loss(NamedTuple):
    """A library that a trial does not find."""

    name: str
    needed_by: str


class OpenerJudgement(NamedTuple):
    """What was found of all openers in an image."""

    names: tuple[str, ...]
    """`onnxruntime-gpu 1.22.0`."""
    findings: tuple[LoaderFinding, ...]


def judge_openers(image: PlannedImage, framework: str, loaded: Collection[Library]) -> OpenerJudgement:
    """Try all openers but the framework that is proven by itself; `loaded` are the libraries of the run's process."""
    objects = read_objects(image, framework)
    trials = find_trials(image, objects)
    names, findings = [], list[LoaderFinding]()
    for wheel, group in groupby(trials, key=lambda it: it.wheel):
        names.append(f"{wheel.name} {wheel.version}")
        losses = {it: try_opening(image, it) for it in group}
        findings += _findings(image, _excused(image, objects, losses), loaded)
    return OpenerJudgement(tuple(names), (*findings, *_same_paths(image), *_cpu_builds(image)))


Objects = Mapping[LockedWheel, Mapping[str, Elf]]
"""The libraries of each wheel by absolute path."""


def read_objects(image: PlannedImage, framework: str) -> Objects:
    """Read the libraries of all wheels but NVIDIA's and the framework's own; what is for another machine is none."""
    own = {name for it in image.profiles.frameworks if it.name == framework for name in it.distributions}
    found: dict[LockedWheel, list[str]] = {}
    for path, file in image.wheels.files.items():
        name = file.wheel.name
        skipped = name in own or image.is_nvidia(name) or (framework == "jax" and JAX_PLUGIN.match(name))
        if not skipped and LIBRARY.fullmatch(path):
            found.setdefault(file.wheel, []).append(path)
    image.wheels.warm(path for paths in found.values() for path in paths)
    read = {wheel: {f"/{path}": image.wheels.read(path) for path in sorted(paths)} for wheel, paths in found.items()}
    machine = MACHINES[image.machine]
    return {
        wheel: {path: elf for path, elf in elfs.items() if elf and elf.machine == machine}
        for wheel, elfs in read.items()
    }


def find_trials(image: PlannedImage, objects: Objects) -> tuple[Trial, ...]:
    """List the objects that are tried, wheel by wheel."""
    trials = list[Trial]()
    for wheel in sorted(objects, key=lambda it: it.name):
        row = find_opener(wheel.name, wheel.version, image.profiles)
        linked = [path for path, elf in objects[wheel].items() if any(map(_is_cuda, elf.needed))]
        needed = {name for path in linked for name in objects[wheel][path].needed}
        opens = tuple(name for name in (*row.opens, *row.optional) if name not in needed) if row else ()
        before = _before(image, objects[wheel], row) if linked or opens else ()
        paths = linked or (objects[wheel] if opens else ())
        trials += [Trial(wheel=wheel, path=path, before=before, opens=opens, row=row) for path in paths]
    return tuple(trials)


def _is_cuda(name: str) -> bool:
    return bool(CUDA.fullmatch(name) and not DRIVER.fullmatch(name))


def _before(image: PlannedImage, objects: Mapping[str, Elf], row: Opener | None) -> tuple[Opening, ...]:
    """What a wheel's Python has loaded before its own objects: a framework, and what a profile names."""
    site, files = image.site, image.wheels.files
    needed = {name for elf in objects.values() for name in elf.needed}
    frameworks = [name for name, known in _FRAMEWORKS.items() if any(map(known.fullmatch, needed))]
    frameworks += [row.after] if row and row.after and row.after not in frameworks else []
    if any(path.startswith((f"{site}/jax_plugins/", f"{site}/jax_cuda")) for path in objects):
        frameworks.append("jax")
    patterns = [f"{site[1:]}/{it}" for it in row.preloads] if row else []
    paths = (f"/{path}" for it in patterns for path in sorted(files) if fnmatchcase(path, it))
    imported = (it for name in frameworks for it in loaded_before(name, site, files))
    return (*imported, *(Opening(name=path) for path in (*paths, *_loaded_by_path(image, needed))))


def _loaded_by_path(image: PlannedImage, needed: Iterable[str]) -> tuple[str, ...]:
    """What RAPIDS' Python opens by path, dependencies first: a package's `load.py` opens what lies in its lib64."""
    files, paths = image.wheels.files, dict[str, str]()
    for path in files:
        package, _, name = path.rpartition("/lib64/")
        if package and f"{package}/load.py" in files and LIBRARY.fullmatch(name):
            paths[name] = f"/{path}"

    found, seen = list[str](), set[str]()
    stack = [(paths[it], False) for it in sorted(needed, reverse=True) if it in paths]
    while stack:
        path, visited = stack.pop()
        if visited:
            found.append(path)
        elif path not in seen:
            seen.add(path)
            stack.append((path, True))  # after what it needs
            names = elf.needed if (elf := image.read(path)) else ()
            stack += [(paths[it], False) for it in reversed(names) if it in paths]
    return tuple(found)


def try_opening(image: PlannedImage, trial: Trial) -> tuple[Loss, ...]:
    """What a trial does not find: for the object itself, else what its code opens."""
    process, _ = image.process()
    for opening in trial.before:
        open_library(process, opening)
    found, missing = process.open(trial.path, process.program)
    if found is None:
        return tuple(Loss(it.name, it.needed_by) for it in missing)
    return tuple(Loss(name, trial.path) for name in trial.opens if process.open(name, found)[0] is None)


def _excused(
    image: PlannedImage, objects: Objects, losses: Mapping[Trial, Sequence[Loss]]
) -> dict[Trial, Sequence[Loss]]:
    """Drop the losses of objects that need not load in this way.

    Of objects for several versions of CUDA one is loaded; an object that others need is loaded with one of them, by its
    RUNPATH; what all objects of a project may open is opened by one of them.
    """
    groups, here = dict[str, list[Trial]](), _majors(map(posixpath.basename, image.tree))
    users = _Users(image, objects, losses)
    for trial in losses:
        groups.setdefault(_BUILD.sub(r"\1", trial.path), []).append(trial)
    kept = dict[Trial, Sequence[Loss]]()
    for trials in groups.values():
        best = min(trials, key=lambda it: (len(losses[it]), not here & _majors(loss.name for loss in losses[it])))
        own: Sequence[Loss] = [it for it in losses[best] if it.name not in best.opens]
        kept[best] = users.losses(best, own) if own else own
    for name in {name for trial in losses for name in trial.opens}:
        if all(name in {it.name for it in lost} for lost in losses.values()):
            first = next(iter(kept))
            kept[first] = [*kept[first], Loss(name, first.path)]
    return kept


class _Users:
    """The objects that need those of a wheel; each is tried once."""

    def __init__(self, image: PlannedImage, objects: Objects, losses: Mapping[Trial, Sequence[Loss]]) -> None:
        self._image, self._objects = image, objects
        self._known = {it.path: [loss for loss in lost if loss.name not in it.opens] for it, lost in losses.items()}
        self._before = {it.wheel: it.before for it in losses}
        self._by_name: dict[str, list[tuple[LockedWheel, str]]] = {}
        for wheel, elfs in objects.items():
            for path, elf in elfs.items():
                for name in set(elf.needed):
                    self._by_name.setdefault(name, []).append((wheel, path))

    def losses(self, trial: Trial, own: Sequence[Loss]) -> Sequence[Loss]:
        """What the user of an object lacks that lacks least; what the object lacks itself where none needs it."""
        name, found = self._objects[trial.wheel][trial.path].soname or posixpath.basename(trial.path), []
        for wheel, path in self._by_name.get(name, ()):
            if wheel not in self._before:
                row = find_opener(wheel.name, wheel.version, self._image.profiles)
                self._before[wheel] = (*trial.before, *_before(self._image, self._objects[wheel], row))
            if path not in self._known:
                user = Trial(wheel=wheel, path=path, before=self._before[wheel])
                self._known[path] = list(try_opening(self._image, user))
            found.append(self._known[path])
            if not found[-1]:
                break
        return min(found, key=len, default=own)


def _findings(
    image: PlannedImage, losses: Mapping[Trial, Sequence[Loss]], loaded: Collection[Library]
) -> Iterator[LoaderFinding]:
    """At most one finding of a distribution: what the run had loaded, else what is needed, else what can be missed."""
    some = any(not lost for lost in losses.values()) and not any(it.wheel.name in _FRAMEWORKS for it in losses)
    found: dict[Kind, dict[Loss, Trial]] = {"broken": {}, "warning": {}, "note": {}}
    files, places, names = image.wheels.files, {it.place for it in loaded}, {it.name for it in loaded}
    for trial, lost in losses.items():
        linked = [it for it in lost if it.name not in trial.opens]
        for group in (linked, *([it] for it in lost if it.name in trial.opens)):
            owners = {it: files.get(it.needed_by[1:]) for it in group}
            own = {it.name for it, file in owners.items() if not (file and image.is_nvidia(file.wheel.name))}
            kind: Kind = "note" if _can_be_missed(trial.row, own, some=some) else "warning"
            if image.short(trial.path) in places and (group is linked or group[0].name in names):
                kind = "broken"
            found[kind] |= dict.fromkeys(group, trial)
    for kind, lost_there in found.items():
        if lost_there:
            yield _finding(image, kind, lost_there)
            return


def _can_be_missed(row: Opener | None, needs: set[str], *, some: bool) -> bool:
    """Whether an object that lacks these is a part that few use.

    It is if it needs more than CUDA (FFmpeg), or more of it than the profile lists (TensorRT); where no profile lists
    anything, if another object loads.
    """
    cuda = {it for it in needs if _is_cuda(it)}
    if any(not any(known.fullmatch(it) for known in _FRAMEWORKS.values()) for it in needs - cuda):
        return True
    if row and row.opens:
        return not cuda <= set(row.opens)
    return bool(cuda) and cuda <= set(row.optional) if row and row.optional else some


def _finding(image: PlannedImage, kind: Kind, losses: Mapping[Loss, Trial]) -> LoaderFinding:
    trial, by = next(iter(losses.values())), min(it.needed_by for it in losses)
    name, names = trial.wheel.name, sorted({it.name for it in losses})
    folders = {it: folder for it in names if (folder := _folder_of(image, it))}
    absent = [it for it in names if it not in folders]
    here, wanted = _majors(map(posixpath.basename, image.tree)), _majors(absent)
    says, todo = f"{image.short(by)} needs {_listed(names)}", list[str]()
    if folders:
        places = sorted(set(folders.values()))
        lie = "lies" if len(folders) == 1 else "lie"
        says += f"; {_listed(sorted(folders))} {lie} in {_listed(map(image.short, places))}, where it is not looked for"
        todo.append(f"put {':'.join(places)} on LD_LIBRARY_PATH by ENV in the base")
    if absent:
        says += f"; {_listed(absent)} {'is' if len(absent) == 1 else 'are'} nowhere in the image"
        if here and wanted and not wanted <= here:
            says += f", which has CUDA {' and '.join(sorted(here))}"
            todo += _builds_for(image, trial, here)
        major = max(wanted or here or {"12"})
        wheels = sorted({wheel_of(it, major) for it in absent if _is_cuda(it)})
        todo += [f"install {' '.join(wheels)} beside {name} in the run"] if wheels else []
    without = {"broken": "the run had it loaded", "warning": "without it, the CPU is used or the import fails"}
    says += f"; {without.get(kind, 'a part of the project does not work')}"
    title = f"{name} {trial.wheel.version}"
    return LoaderFinding(kind=kind, library=title, says=says, path=by, todo=", or ".join(todo))


def _folder_of(image: PlannedImage, name: str) -> str:
    """Where a library lies; empty where it does not."""
    return next((posixpath.dirname(path) for path in image.places(name) if resolve(image.tree, path)), "")


def _majors(names: Iterable[str]) -> set[str]:
    return {found[1] for name in names if (found := _MAJOR.fullmatch(name))}


def _builds_for(image: PlannedImage, trial: Trial, majors: Collection[str]) -> Iterator[str]:
    """The releases of a project that are built for a CUDA that the image has."""
    project = _BUILD.sub(r"\1", trial.wheel.name)
    rows = [it for it in image.profiles.openers if it.cuda.partition(".")[0] in majors]
    for name in dict.fromkeys(it.distribution for it in rows if _BUILD.sub(r"\1", it.distribution) == project):
        versions = [Version(text) for it in rows if it.distribution == name for text in (it.first, it.last)]
        yield f"take {name} {min(versions)} to {max(versions)}, which is built for CUDA {' or '.join(sorted(majors))}"


def _listed(names: Iterable[str]) -> str:
    first, rest = list(names)[:_SHOWN], list(names)[_SHOWN:]
    return ", ".join(first) + (f" and {len(rest)} more" if rest else "")


def _same_paths(image: PlannedImage) -> Iterator[LoaderFinding]:
    """Warn of wheels that install other libraries at the same paths, where one of them serves CUDA."""
    pairs: dict[tuple[str, str], list[str]] = {}
    builds = {frozenset((it.distribution, it.cpu)) for it in image.profiles.openers if it.cpu}
    for it in image.wheels.overlaps:
        for loser in it.losers:
            both = {it.winner.name, loser}
            if LIBRARY.fullmatch(it.path) and any(map(image.is_nvidia, both)) and both not in builds:
                pairs.setdefault((it.winner.name, loser), []).append(it.path)
    for (winner, loser), paths in pairs.items():
        says = f"{loser} installs {paths[0].rpartition('site-packages/')[2]} too"
        says += f" and {len(paths) - 1} more of its libraries" if len(paths) > 1 else ""
        says += f", with other content: the image has {winner}'s"
        todo = f"take builds for one CUDA in the run, so that one of the two is enough, or give --drop {loser}"
        yield LoaderFinding(kind="warning", library=winner, says=says, todo=todo)


def _cpu_builds(image: PlannedImage) -> Iterator[LoaderFinding]:
    """Warn of a project's build for the CPU beside that for the GPU."""
    installed = {it.wheel.name: it.wheel.version for it in image.wheels.files.values()}
    for row in image.profiles.openers:
        version = installed.get(row.distribution)
        if version and row.cpu in installed and row.covers(row.distribution, version):
            says = f"{row.cpu} {installed[row.cpu]}, the build for the CPU, is installed over the same files"
            todo = f"give --drop {row.cpu}, or uninstall both in the run and install {row.distribution} alone"
            yield LoaderFinding(kind="warning", library=f"{row.distribution} {version}", says=says, todo=todo)
