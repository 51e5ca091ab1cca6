"""The checks before anything is downloaded: machine, contract and disk; and the golden sample."""

import posixpath
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote

from envbuild.errors import UsageError, counted
from envbuild.local.contract import recorded_model, run_places
from envbuild.local.data import exposure, is_free, is_seen, resolve_here, seen_at, within
from envbuild.local.machine import gpu_findings, names_of, side_of_machine
from envbuild.local.model import WORKSPACE, Choice, Machine, Settled, Subject
from envbuild.local.subject import chosen_side, machine_of
from envbuild.manifest.hardware import Cpu
from envbuild.manifest.model import Data
from envbuild.oci.layout import ARCHITECTURES
from envbuild.report import Reporter
from envbuild.stamp.store import ModelUri
from envbuild.verify.findings import Finding
from envbuild.verify.golden.check import check
from envbuild.verify.golden.runners import Runner
from envbuild.verify.rules import apply_rules
from envbuild.verify.rules.catalogue import agree, differs, listing
from envbuild.verify.rules.hardware import cpu_flags, memory, system
from envbuild.verify.rules.packages import builds

_PULLED, _BUILT = 3, 5
"""Room by the compressed size: that, and two of it unpacked; of an image that is built also its wheels and layers."""
_USUAL = {"gpu": 4e9, "cpu": 0.6e9}
"""Bytes of an image of TensorFlow, where nobody knows more."""
_START = "start Docker, or podman's socket (podman system service), or let DOCKER_HOST name an engine"
_ADC = "GOOGLE_APPLICATION_CREDENTIALS"
_BUCKETS = "gs://"


def preflight(
    subject: Subject, choice: Choice, machine: Machine, *, size: int | None, settled: Settled, engine: bool = True
) -> Iterator[Finding]:
    """Yield all findings, including those that agree; an error would make the run fail.

    `size` is that of the image's layers in bytes, 0 for one that the engine has; `engine` is false for a virtual
    environment, which needs none.
    """
    found = [
        *((_engine(machine),) if engine else ()),
        *_hardware(subject, choice, machine),
        _disk(subject, choice, machine, size, engine=engine),
        *_variables(settled),
        *_data(subject, settled, engine=engine),
    ]
    yield from subject.findings
    yield from (it.with_targets(subject.name, "this machine") for it in found)


def _engine(machine: Machine) -> Finding:
    engine = machine.engine
    if engine is None:
        todo = f"{_START}; without one, `--venv DIR` makes a virtual environment from the same lock"
        return Finding(about="engine", agrees=False, says="no container engine answers", found="none", todo=todo)
    kind = "podman" if engine.kind == "podman" else "Docker"
    more = ", rootless" * engine.rootless + ", on another machine or in a virtual one" * (not engine.near)
    return Finding(about="engine", agrees=True, says=f"{kind} {engine.version}{more}", found=kind)


def _hardware(subject: Subject, choice: Choice, machine: Machine) -> Iterator[Finding]:
    side, host = chosen_side(subject, choice.variant, choice.platform), side_of_machine(machine)
    yield _architecture(subject, choice, machine)
    if subject.image is None:
        yield from apply_rules(subject.side, replace(side, system="Linux"), (system,))
    cpu = side
    if side.machine == "x86_64" and "tensorflow" in builds(side):  # which its wheels need
        facts = side.cpu or Cpu()
        cpu = replace(side, cpu=replace(facts, flags=tuple(sorted({*facts.flags, "avx", "sse2"}))))
    yield from apply_rules(cpu, host, (cpu_flags,))
    if choice.gpus:
        yield from gpu_findings(subject, choice.variant, choice.platform, machine)
        yield from apply_rules(side, host, (memory,))
    elif had := names_of(subject.side.accelerator) or ("a GPU" if choice.variant == "gpu" else ""):
        run = f"the run had {had}" if subject.image is None else "the image was made for a GPU"
        todo = "nothing if that is meant; else compare predictions with those of the run by `--golden`"
        why, says = "It is slower, and the last digits of predictions move.", f"{run}, and here the CPU computes"
        finding = partial(differs, "gpu-absent", "GPU", says, wanted=had, found="the CPU")
        yield finding(todo=todo, severity="note", why=why)
    else:
        yield agree("gpu-absent", "GPU", "none is needed")


def _architecture(subject: Subject, choice: Choice, machine: Machine) -> Finding:
    """Report emulation, and an architecture that differs from the run's."""
    here, there = machine_of(choice.platform), subject.side.machine
    run = machine_of(there) if there else here
    differ = partial(differs, "machine", "architecture")
    if choice.platform != machine.platform:
        why = "Linux emulates another machine only where QEMU is registered for it (binfmt_misc), many times slower."
        if choice.platform == "linux/amd64":
            why = "QEMU before 7.2 and Rosetta on most of macOS have no AVX, without which TensorFlow's wheels abort."
        platforms = f"the image is for {choice.platform}, and this machine is {machine.platform}"
        todo = f"give the model or the manifest of its run instead, from which one for {machine.platform} is built"
        says = f"{platforms}: it runs by emulation, if at all"
        return differ(says, wanted=choice.platform, found=machine.platform, todo=todo, severity="warning", why=why)
    if subject.image is None and here not in ARCHITECTURES:
        todo = "use a machine with x86_64 or aarch64"
        return differ(f"there are no images for {here}", wanted="x86_64 or aarch64", found=here, todo=todo)
    if run == here:
        return agree("machine", "architecture", here, wanted=run, found=here)
    says = f"the run was on {run}, and here it is {here}: predictions are close to the run's, and not bit-identical"
    todo = "compare predictions with those of the run by `--golden`, or use a machine of its architecture"
    why = "Each architecture has its own wheels, whose kernels round differently."
    return differ(says, wanted=run, found=here, todo=todo, severity="warning", why=why)


def _disk(subject: Subject, choice: Choice, machine: Machine, size: int | None, *, engine: bool) -> Finding:
    free, host = machine.free, machine.engine
    place = f"in {host.folder}, where the engine keeps images" if host and host.folder else "for the cache"
    if host and not host.near:
        place = "on the engine's machine"
    finding = partial(Finding, about="disk")
    if size == 0:
        return finding(agrees=True, says="nothing has to be downloaded")
    if free is None:
        says, todo = f"cannot see how much is free {place}", "make sure that a few GB are free"
        return finding(agrees=False, severity="note", says=says, todo=todo)
    nearest = choice.pull or choice.expected or choice.nearest
    lock = subject.locks.get(nearest.slot) if nearest and nearest.variant == choice.variant else None
    about = size or (sum(it.size for it in lock.wheels) if lock else 0) or _USUAL[choice.variant]
    is_built = engine and not (choice.pull or subject.image)
    times = _BUILT if is_built else _PULLED
    required, found = f"{about * times / 1e9:.1f} GB", f"{free / 1e9:.1f} GB"
    says = f"{found} are free {place}, and it takes up to {required}"
    if free >= about * times:
        return finding(agrees=True, says=says, wanted=required, found=found)
    why = f"What is {about / 1e9:.1f} GB compressed takes {times} times that, packed and unpacked."
    images = "images that are not used (docker image prune), or " if engine else ""
    todo = f"remove {images}old downloads (envbuild cache prune)"
    return finding(agrees=False, says=says, wanted=required, found=found, why=why, todo=todo)


def _variables(settled: Settled) -> Iterator[Finding]:
    for name in settled.missing:
        yield differs(
            "variable-missing",
            name,
            "the run had it, the program reads it, and nothing provides it",
            wanted="set",
            found="not set",
            todo=f"give it by `-e {name}=...`, by `-e {name}` if this shell has it, or by a line in an `--env-file`",
        )
    if settled.variables:
        yield agree("variable-missing", "variables", f"given: {listing(sorted(settled.variables))}")


def _data(subject: Subject, settled: Settled, *, engine: bool) -> Iterator[Finding]:
    """Yield the places that the program reads and the container cannot."""
    places = run_places(subject, settled.variables)
    lost = [(it, place) for it, place in places if not _is_reached(place, settled, engine=engine)]
    yield from (_unreached(it, place) for it, place in lost)
    if reached := len(places) - len(lost):
        yield agree("data-absent", "data", f"{counted(reached, 'place')} can be reached")


def _is_reached(place: str, settled: Settled, *, engine: bool) -> bool:
    path = seen_at(place)
    if path is None or is_seen(path, settled.mounts):
        return path is not None
    if place.startswith(_BUCKETS):
        # Outside a container there are the credentials of this machine, if there are any.
        return _ADC in settled.variables or not engine
    # The working folder is the container's.
    is_inside = within(path, WORKSPACE)
    with suppress(OSError, ValueError):  # an unreadable folder, or an invalid path
        return (is_inside or not engine) and Path(posixpath.relpath(path, WORKSPACE) if is_inside else path).exists()
    return False


def _unreached(data: Data, place: str) -> Finding:
    says, path = "it cannot be read from here", seen_at(place)
    todo = f"map a copy of it: `--data {quote(place)}=PATH`"
    if place.startswith(_BUCKETS):
        says, todo = (
            "it is not mapped, and the container has no credentials",
            f"{todo}, or pass credentials by `--with-adc`",
        )
    elif path is None:
        todo = "make sure that the program can read it from there"
    elif within(path, WORKSPACE):
        todo = "start in the folder where it lies"
    elif not is_free(path):
        todo = "map a copy of it to a place of its own, and name it in a variable"
    elif source := resolve_here(path):
        if reason := exposure(source):
            says, todo = f"the run read {path}; {reason}", f"map a copy of what it needs: `--data {quote(path)}=PATH`"
        else:
            below = "--yes-data, or " if source.is_relative_to(Path.cwd().resolve()) else ""
            says = f"the run read {path}, which is here and is not mounted"
            todo = f"give {below}--data {quote(f'{path}={source}')}"
    todo += f", or name another place by `-e {data.variable}=...`" if data.variable else ""
    return differs("data-absent", data.uri, says, wanted="there", found="not seen", todo=todo, severity="warning")


def parity(subject: Subject, runner: Runner, *, cache: Path, report: Reporter) -> Iterator[Finding]:
    """Run the recorded sample in an environment; yield what differs, else one finding with the largest difference.

    UsageError without a sample or a model, StampError if the model cannot be read, VerifyError if a manifest names a
    model outside of the working folder.
    """
    manifest, model = subject.manifest, subject.model
    if manifest is None or (model is None and manifest.model_uri is None):
        what = f"there is no {'sample' if manifest is None else 'model'} to run"
        todo = "give a stamped model, or the manifest of a run that says where its model lies"
        raise UsageError(what, where=f"--golden, {subject.name}", todo=todo)

    def outside_folder(uri: ModelUri) -> str:
        if uri.bucket is not None or Path(uri.path).resolve().is_relative_to(Path.cwd().resolve()):
            return ""
        outside = f"the manifest says that its model is {uri.path}, outside of this folder"
        return f"{outside}; give the model itself as TARGET"

    if recorded := recorded_model(subject):
        model = str(recorded.prove(outside_folder))
    return check(manifest, model or manifest.model_uri or "", [runner], cache=cache, report=report)
