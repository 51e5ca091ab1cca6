"""Whether the loader proof and the real loader agree about each opener of CUDA, in real environments without a GPU.

    python -m benchmarks.openers [--only TEXT ...] [--proof-only] [--remove] [--folder DIR]

Each environment of openers.toml is locked from the index as it is today, and its wheels are fetched into the cache. The
proof reads them as they are. For the real loader, the shared objects of the wheels are unpacked below /opt/env on the
files of Debian 12, and each opener is opened by Python there (ctypes.CDLL), in bubblewrap, in a process of its own,
after what its project's Python has opened before. What an opener's own code opens by name is opened by a stub beside
it with the same RUNPATH, as dlopen goes by its caller. The driver's libraries are stubs with the functions that the
objects need. The sections with GPU code (`.nv_fatbin`) become holes, to save disk; nothing runs on a GPU.

Two verdicts are the same where both find all libraries, or both miss one, and the one that the loader names is one that
the proof misses. What the proof says of each environment must be what openers.toml says: an alarm elsewhere is false.
Exit code 1 where anything differs. Needs gcc, nm, fallocate and bwrap; 33 GB of wheels in the cache, 6 GB of disk, and
45 minutes on two cores. With `--remove` wheels that this run fetched go once no later environment needs them. With
`--proof-only` the real loader is not asked, which takes two minutes when the wheels were read before.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from elftools.elf.elffile import ELFFile

from envbuild.base.resolve import resolve_base
from envbuild.files import cache_folder, data_folder
from envbuild.lock.download import fetch, wheel_path
from envbuild.lock.model import Lock, LockedWheel
from envbuild.lock.resolvers import UvResolver
from envbuild.match.profiles import load_profiles
from envbuild.match.stack import Gaps, Stack
from envbuild.oci.digest import Digest
from envbuild.oci.rootfs import unpack
from envbuild.recipe import Base, make_recipe
from envbuild.report import SILENT
from envbuild.verify.cuda.files import LIBRARY, PlannedImage, WheelFiles, framework_wheel, plan_image, read_base_files
from envbuild.verify.cuda.loader import LoaderProof, prove_loading
from envbuild.verify.cuda.openers import Trial, find_trials, read_objects, try_opening
from envbuild.verify.cuda.openings import openings

HERE = Path(__file__).parent
PROFILES = load_profiles(data_folder("profiles"))
_DRIVERS = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvcuvid.so.1")
_LOAD = r"""
import ctypes, json, os, sys
def load(path):
    try:
        ctypes.CDLL(path, mode=os.RTLD_LAZY | os.RTLD_GLOBAL)
    except OSError as error:
        return str(error)
def answer(number, path, stub, names):
    lost, inner = load(path), []
    if names and not lost:
        opener = ctypes.CDLL(stub)
        opener.reopen.restype = ctypes.c_void_p
        inner = [name for name in names if not opener.reopen(name.encode())]
    print("\nANSWER" + json.dumps([number, lost, inner]), flush=True)
    os._exit(0)
def group(before, trials):
    found = set()
    for name, unless in before:
        if unless not in found and not load(name):
            found.add(name)
    for number, path, stub, names in trials:
        if os.fork() == 0:
            answer(number, path, stub, names)
        if status := os.wait()[1]:
            print("\nANSWER" + json.dumps([number, f"the process ended with status {status}", []]), flush=True)
    os._exit(0)
for before, trials in json.load(sys.stdin):
    if os.fork() == 0:
        group(before, trials)
    os.wait()
"""
_STUB = "#include <dlfcn.h>\nvoid *reopen(const char *name) { return dlopen(name, RTLD_LAZY); }\n"


@dataclass(frozen=True, kw_only=True)
class Environment:
    """One environment of openers.toml."""

    name: str
    requirements: tuple[str, ...]
    framework: str = "none"
    without: tuple[str, ...] = ()
    """Distributions that are taken out of the lock, as in an environment that somebody installed without them."""
    finds: tuple[str, ...] = ()
    """What the proof has to find fault with; empty for an environment that is right."""
    library_path: tuple[str, ...] = ()
    """Folders below site-packages on LD_LIBRARY_PATH, which matching puts there."""


def no_pull(*_: object) -> None:
    """Debian 12 is bootstrapped from its mirror or the cache."""
    raise AssertionError


def lock_of(it: Environment, base: Base) -> Lock:
    """Lock an environment, and leave out what it is without."""
    lock = UvResolver(cache=cache_folder()).resolve(it.requirements, base.target, Gaps())
    return Lock(target=lock.target, wheels=tuple(wheel for wheel in lock.wheels if wheel.name not in it.without))


def stack_of(it: Environment, lock: Lock) -> Stack:
    """The stack that matching would choose."""
    versions = {wheel.name: wheel.version for wheel in lock.wheels}
    version = versions.get(it.framework, "")
    rows = [row for known in PROFILES.frameworks if known.name == it.framework for row in known.wheels]
    mine = [row for row in rows if (row.distribution, row.version) == (it.framework, version) and row.cuda]
    cuda = mine[0].cuda if mine else None
    site = "/opt/env/lib/python3.11/site-packages"
    path = ":".join(f"{site}/{folder}" for folder in it.library_path)
    return Stack(
        framework=it.framework, distribution=it.framework, version=version, variant="gpu", python="3.11.2",
        machine="x86_64", cuda=cuda, cudnn=None, cuda_source="wheels", base="", glibc_minimum="2.17", requirements=(),
        variables=(("LD_LIBRARY_PATH", path),) if path else (), changes=(), decisions=(),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What the proof says of one environment."""

    proof: LoaderProof
    trials: Mapping[Trial, tuple[str, ...]]
    """The names that each does not find."""
    stubs: Mapping[str, tuple[str, str]]
    """RPATH and RUNPATH of the objects that open others by name."""
    winners: Mapping[str, LockedWheel]
    """Whose file the image has of paths that several wheels install, below site-packages."""
    variables: Mapping[str, str]


def judge(it: Environment, lock: Lock, base: Base, wheels: Mapping[Digest, Path]) -> Judged:
    """Ask the proof."""
    stack, facts = stack_of(it, lock), cache_folder() / "loading"
    recipe = make_recipe(stack, lock, base)
    proof = prove_loading(stack, recipe, base, wheels, PROFILES, facts)
    with ExitStack() as opened:
        files = WheelFiles(recipe, wheels, facts, opened)
        image = plan_image(recipe, base, PROFILES, read_base_files(base, facts), files)
        trials = (*find_trials(image, read_objects(image, "")), *framework_trials(image, stack))
        tried = {trial: tuple(loss.name for loss in try_opening(image, trial)) for trial in trials}
        elfs = {trial.path: image.read(trial.path) for trial in trials if trial.opens}
        winners = {overlap.path.partition("site-packages/")[2]: overlap.winner for overlap in files.overlaps}
        files.keep()
    stubs = {path: (elf.rpath, elf.runpath) for path, elf in elfs.items() if elf}
    return Judged(proof=proof, trials=tried, stubs=stubs, winners=winners, variables=image.variables)


def framework_trials(image: PlannedImage, stack: Stack) -> Iterator[Trial]:
    """What TensorFlow and JAX open by name, as trials."""
    if stack.framework not in ("tensorflow", "jax") or not stack.cuda:
        return
    row = framework_wheel(stack, PROFILES)
    plan = openings(stack.framework, row, image.site, image.wheels.files)
    for by in dict.fromkeys(it.by for it in plan if it.by and it.by[1:] in image.wheels.files):
        before = tuple(it for it in plan if it.quiet)
        names = tuple(it.name for it in plan if it.by == by)
        yield Trial(wheel=image.wheels.files[by[1:]].wheel, path=by, before=before, opens=names)


class Unpacked:
    """The shared objects of wheels in folders, each wheel once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, wheel: LockedWheel, path: Path) -> Path:
        """Unpack a wheel's objects; `driver.txt` has the driver's functions that they need."""
        folder = self._folder / wheel.sha256.hex
        if (folder / "driver.txt").is_file():
            return folder
        functions = set[str]()
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if LIBRARY.fullmatch(name):
                    place = folder / "site" / _installed(name)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(name) as source, place.open("wb") as target:
                        shutil.copyfileobj(source, target, 1 << 20)
                    place.chmod(0o755)
                    functions |= _driver_functions(place)
                    _drop_gpu_code(place)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "driver.txt").write_text("\n".join(sorted(functions)))
        return folder

    def remove(self, wheel: LockedWheel) -> None:
        """Free the disk."""
        shutil.rmtree(self._folder / wheel.sha256.hex, ignore_errors=True)


def _installed(name: str) -> str:
    parts = name.split("/")
    return "/".join(parts[2:]) if parts[0].endswith(".data") else name


def _driver_functions(path: Path) -> set[str]:
    done = subprocess.run(["nm", "-D", "-u", path], capture_output=True, text=True, check=False)
    names = (line.split()[-1].partition("@")[0] for line in done.stdout.splitlines() if line.strip())
    return {name for name in names if name.startswith(("cu", "nvml")) and name.lstrip("cunvml")[:1].isupper()}


def _drop_gpu_code(path: Path) -> None:
    """Make holes where the code for GPUs was; the loader maps it and reads nothing of it."""
    try:
        with path.open("rb") as file:
            found = [it for it in ELFFile(file).iter_sections() if it.name == ".nv_fatbin"]
    except Exception:  # noqa: BLE001 - whatever is no ELF file stays as it is
        return
    for it in found:
        subprocess.run(["fallocate", "-p", "-o", str(it["sh_offset"]), "-l", str(it["sh_size"]), path], check=False)


@dataclass(frozen=True, kw_only=True)
class Loading:
    """Where the real loader is asked."""

    folder: Path
    root: Path
    """The files of Debian 12."""
    python: str
    unpacked: Unpacked

    def ask(self, judged: Judged, lock: Lock, wheels: Mapping[Digest, Path]) -> list[tuple[str | None, list[str]]]:
        """What the loader says of each trial, in the order of the trials."""
        tree = self.folder / "tree"
        shutil.rmtree(tree, ignore_errors=True)
        places = {wheel.sha256: self.unpacked.of(wheel, wheels[wheel.sha256]) for wheel in lock.wheels}
        make_tree(tree, lock, places, judged.winners)
        for name in _DRIVERS:
            shutil.copy(tree / "driver" / name, self.root / "usr/lib/x86_64-linux-gnu" / name)
        wanted: dict[tuple[tuple[str, str], ...], list[object]] = {}
        for number, trial in enumerate(judged.trials):
            stub = f"{trial.path.rpartition('/')[0]}/stub-{number}.so" if trial.opens else ""
            if stub:
                rpath, runpath = judged.stubs.get(trial.path, ("", ""))
                flags = ["-Wl,--enable-new-dtags", f"-Wl,-rpath,{runpath}"] if runpath else []
                flags += ["-Wl,--disable-new-dtags", f"-Wl,-rpath,{rpath}"] if rpath else []
                compile_library(tree / stub.removeprefix("/opt/env/"), _STUB, flags)
            before = tuple((it.name, it.unless) for it in trial.before)
            wanted.setdefault(before, []).append([number, trial.path, stub, trial.opens])
        command = [
            "bwrap", "--bind", self.root, "/", "--ro-bind", tree, "/opt/env", "--dev", "/dev", "--proc", "/proc",
            "--unshare-all", "--die-with-parent", "--clearenv", "--setenv", "PATH", "/usr/bin",
            "--setenv", "LD_LIBRARY_PATH", judged.variables.get("LD_LIBRARY_PATH", ""), self.python, "-c", _LOAD,
        ]  # fmt: skip
        done = subprocess.run(
            command, input=json.dumps(list(wanted.items())), capture_output=True, text=True, check=True, timeout=1800
        )
        shutil.rmtree(tree)
        lines = [line.partition("ANSWER")[2] for line in done.stdout.splitlines() if "ANSWER" in line]
        answers = {number: (lost, inner) for number, lost, inner in map(json.loads, lines)}
        return [answers[number] for number in range(len(judged.trials))]


def compile_library(path: Path, source: str, flags: Sequence[str]) -> None:
    """Compile a shared object."""
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-shared", "-fPIC", "-o", path, "-x", "c", "-", *flags]
    subprocess.run(command, input=source, text=True, check=True)


def make_tree(tree: Path, lock: Lock, unpacked: Mapping[Digest, Path], winners: Mapping[str, LockedWheel]) -> None:
    """Link all objects as they are installed; of two at the same path the image's."""
    site = tree / "lib/python3.11/site-packages"
    functions = set[str]()
    for wheel in lock.wheels:
        folder = unpacked[wheel.sha256]
        functions |= set((folder / "driver.txt").read_text().split())
        for path in (folder / "site").rglob("*"):
            name = str(path.relative_to(folder / "site"))
            if path.is_file() and winners.get(name, wheel) == wheel:
                (site / name).parent.mkdir(parents=True, exist_ok=True)
                os.link(path, site / name)
    source = "".join(f"int {name}(void) {{ return 999; }}\n" for name in sorted(functions))
    for name in _DRIVERS:
        compile_library(tree / "driver" / name, source, [f"-Wl,-soname,{name}", "-fno-builtin"])


def compare(ours: Sequence[str], theirs: tuple[str | None, list[str]]) -> str:
    """How two verdicts differ; empty where they are the same."""
    lost, inner = theirs
    if lost and "cannot open shared object file" not in lost:
        return f"the loader says {lost}" if "undefined symbol: " not in lost or ours else ""
    if lost:
        name = lost.partition(":")[0]
        return "" if name in ours or name.rpartition("/")[2] in ours else f"the loader misses {name}, the proof {ours}"
    return "" if sorted(inner) == sorted(ours) else f"the loader misses {inner}, the proof {ours}"


def check(it: Environment, base: Base, lock: Lock, place: "Loading | None") -> bool:
    """Judge one environment in both ways, and print its line."""
    started = time.monotonic()
    wheels = {wheel.sha256: path for wheel, path in fetch(lock.wheels, cache_folder())}
    judged = judge(it, lock, base, wheels)
    proven = time.monotonic() - started
    wrong, symbols = list[str](), 0
    if place:
        answers = place.ask(judged, lock, wheels)
        pairs = zip(judged.trials.items(), answers, strict=True)
        wrong = [f"{trial.path}: {text}" for (trial, ours), theirs in pairs if (text := compare(ours, theirs))]
        symbols = sum("undefined symbol" in f"{lost}" for lost, _ in answers)
    alarms = [*judged.proof.faults, *judged.proof.warnings]
    said = " ".join(f"{alarm} {alarm.todo}" for alarm in alarms)
    false = [f"false alarm: {alarm}" for alarm in alarms if not it.finds]
    false += [f"nothing is said of {name}" for name in it.finds if name not in said]
    fails = sum(bool(lost) for lost in judged.trials.values())
    kinds = ", ".join(sorted({alarm.kind for alarm in alarms})) or "ok"
    print(
        f"{'DIFFERS' if wrong or false else 'same':<8}{it.name:<50}{len(judged.trials):>4} openers {fails:>3} fail"
        f"  {kinds:<17}{len(lock.wheels):>4} wheels {proven:6.1f} s {time.monotonic() - started:6.1f} s"
        + (f" ({symbols} with undefined symbols)" if symbols else ""),
        flush=True,
    )
    for text in (*wrong[:8], *false, *(f"{alarm.kind}: {alarm}; {alarm.todo}" for alarm in alarms)):
        print(f"          {text}", flush=True)
    return not wrong and not false


def main() -> int:
    """Check all environments, or those whose names have a text."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", default=[""], help="parts of the names of the environments")
    parser.add_argument("--folder", type=Path, help="where wheels are unpacked, and kept if this ends early")
    parser.add_argument("--proof-only", action="store_true", help="do not ask the real loader")
    parser.add_argument("--remove", action="store_true", help="remove wheels that this fetched, after their last use")
    options = parser.parse_args()
    rows = tomllib.loads((HERE / "openers.toml").read_text())["environment"]
    chosen = [row for row in rows if any(text in row["name"] for text in options.only)]
    texts = ({key: tuple(it) if isinstance(it, list) else it for key, it in row.items()} for row in chosen)
    environments = [Environment(**it) for it in texts]
    base = resolve_base("debian:bookworm", machine="x86_64", cache=cache_folder(), pull=no_pull, report=SILENT)
    with tempfile.TemporaryDirectory(prefix="openers-") as name:
        folder = options.folder or Path(name)
        root = folder / "root"
        unpacked = Unpacked(folder / "wheels")
        place = None
        if not options.proof_only:
            shutil.rmtree(root, ignore_errors=True)
            root.mkdir(parents=True)
            unpack(base.image, root, base.name)
            (root / "opt/env").mkdir(parents=True, exist_ok=True)
            place = Loading(folder=folder, root=root, python=base.python_path, unpacked=unpacked)
        locks, same = [lock_of(it, base) for it in environments], 0
        paths = {it.sha256: wheel_path(cache_folder(), it.sha256) for lock in locks for it in lock.wheels}
        fetched = {it for it, path in paths.items() if options.remove and not path.exists()}
        for number, (it, lock) in enumerate(zip(environments, locks, strict=True)):
            same += check(it, base, lock, place)
            later = {wheel.sha256 for one in locks[number + 1 :] for wheel in one.wheels}
            for wheel in lock.wheels:
                if wheel.sha256 not in later:
                    unpacked.remove(wheel)
                    if wheel.sha256 in fetched:
                        paths[wheel.sha256].unlink(missing_ok=True)
    print(f"same verdict in {same} of {len(environments)}")
    return 0 if same == len(environments) else 1


if __name__ == "__main__":
    sys.exit(main())
