"""Importing in an image what the run imported, and what a failure means."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from envbuild.errors import UsageError, VerifyError, counted
from envbuild.verify.golden.runners import Ran
from envbuild.verify.imports import program
from envbuild.verify.imports.places import Place

_PROGRAM = Path(program.__file__).read_text()
_SECONDS = 900.0
_DRIVER = re.compile(r"\blib(cuda|nvcuvid|nvoptix|nvidia-[\w-]+)\.so")
"""Libraries of NVIDIA's driver, which a host with a GPU gives a container."""
_LIBRARY = re.compile(r"\b(lib[\w.+-]+\.so[\d.]*): cannot open shared object file")
"""What the loader says of a library that no wheel brings."""
_MODULE = re.compile(r"No module named '(\w+)'$")
_SIGILL = 128 + 4
NEVER = "--import-check never makes the image without this check"


@dataclass(frozen=True, slots=True, kw_only=True)
class Imports:
    """What was imported, and where."""

    place: str
    """`container engine`, `bubblewrap` or `metadata`: nothing was imported, and only metadata was looked at."""
    modules: tuple[str, ...] = ()
    """What was imported."""
    untold: tuple[tuple[str, str], ...] = ()
    """What could not be tried on this machine, and why."""

    @classmethod
    def from_dict(cls, value: Any) -> "Imports":
        """Read what `to_dict` gives; KeyError, TypeError, ValueError or AttributeError for anything else."""
        untold = tuple((str(module), str(why)) for module, why in value["untold"].items())
        return cls(place=str(value["place"]), modules=tuple(map(str, value["modules"])), untold=untold)

    def to_dict(self) -> dict[str, Any]:
        """All of it for programs."""
        return asdict(self) | {"modules": list(self.modules), "untold": dict(self.untold)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be imported, and what is known of it."""

    modules: tuple[str, ...]
    versions: Mapping[str, str]
    """Versions of distributions by the name of their package."""
    known: tuple[str, ...] = ()
    """Which of the versions are known not to go together, and what to pin."""
    gpu: bool = False
    """Whether the image is for a GPU, so that what wants the driver's libraries is no fault."""


def check_imports(place: Place, question: Question) -> Imports:
    """Import modules; VerifyError with the chain of causes of each that fails."""
    modules = question.modules
    assert place.runner, "there is a place"
    try:
        ran = place.runner.run(_PROGRAM, {"modules.json": json.dumps(modules).encode()}, seconds=_SECONDS)
    except UsageError as unstarted:  # it is no option that is wrong
        todo = f"give another base; {NEVER}"
        raise VerifyError(unstarted.what, where=f"import check, {place.name}", todo=todo) from unstarted
    lines = _lines(ran)
    errors: dict[str, Any] = {it["module"]: it["error"] for it in lines if "module" in it}
    faults, untold = [], []
    for module, error in errors.items():
        if error is None:
            continue
        if why := _why_untold(error, gpu=question.gpu):
            untold.append((module, why))
        else:
            faults.append(_chain(error, question.versions))
    if len(errors) < len(modules):
        begun = [it["begins"] for it in lines if "begins" in it and it["begins"] not in errors]
        module = begun[0] if begun else "the interpreter"
        if ran.code == _SIGILL and not ran.late:
            untold.append((module, "this machine's processor lacks an instruction that it uses"))
        else:
            faults.append(f"{module}: {_end(ran)}")
    if faults:
        many = f"{len(faults)} of {counted(len(modules), 'module')}"
        what = "\n  - ".join((f"the image cannot import {many} that the run could import:", *faults))
        raise VerifyError(what, where=f"import check, {place.name}", todo=_remedy(faults, question))
    imported = tuple(module for module, error in errors.items() if error is None)
    return Imports(place=place.name, modules=imported, untold=tuple(untold))


def _lines(ran: Ran) -> list[Mapping[str, Any]]:
    """What the program wrote; a line that is not whole is left out, as the process may have ended in it."""
    found: list[Mapping[str, Any]] = []
    for line in (ran.answer or b"").splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def _why_untold(error: Mapping[str, Any], *, gpu: bool) -> str:
    """Why a failure says nothing of the image; empty where it does."""
    for text in error["says"] if gpu else ():
        if found := _DRIVER.search(text):
            return f"it needs {found[0]} of NVIDIA's driver, and a GPU"
    return f"it needs what is not in the image: {error['root']}" if error["outside"] else ""


def _remedy(faults: Sequence[str], question: Question) -> str:
    """What to do about modules and libraries that are missing, and about versions that do not go together."""
    modules = sorted({name for fault in faults for name in _MODULE.findall(fault)})
    libraries = sorted({name for fault in faults for name in _LIBRARY.findall(fault)})
    remedies = list(question.known)
    if modules:
        added = "--from requirements adds what a list of pins requires"
        remedies.append(f"add what has {', '.join(modules)} to the record ({added})")
    if libraries:
        remedies.append(f"give a --base that has {', '.join(libraries)}")
    if not all(_MODULE.search(fault) or _LIBRARY.search(fault) for fault in faults):
        remedies.append("pin versions of these in the record that go together")
    return "; ".join((*remedies, "--drop NAME leaves out what the model does without", NEVER))


def _chain(error: Mapping[str, Any], versions: Mapping[str, str]) -> str:
    """`tensorflow 2.12.0 -> jax 0.10.2: AttributeError: ... (numpy 1.23.5)`."""

    def named(package: str) -> str:
        return f"{package} {versions[package]}" if package in versions else package

    packages, root = error["packages"], str(error["root"])
    about = [it for it in sorted(versions) if it not in packages and re.search(rf"(?i)\b{re.escape(it)}\b", root)]
    aside = f" ({', '.join(map(named, about))})" if about else ""
    return f"{' -> '.join(map(named, packages))}: {root}{aside}"


def _end(ran: Ran) -> str:
    if ran.late:
        return f"importing it took more than {_SECONDS:.0f} s"
    last = f"; it printed: {ran.lines[-1]}" if ran.lines else ""
    signal = f"by signal {ran.code - 128}" if ran.code > 128 else f"with exit code {ran.code}"
    return f"importing it ended the process {signal}{last}"
