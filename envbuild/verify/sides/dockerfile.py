"""Whether a context's Dockerfiles do what envbuild writes for the lock beside them, and what they do besides."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher

from envbuild.errors import BuildError
from envbuild.image.context import build_context
from envbuild.lock.model import Lock
from envbuild.oci.digest import Digest
from envbuild.recipe import PREFIX, Recipe
from envbuild.verify.findings import Finding, Severity

Settings = tuple[str, tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]
"""Base, variables and labels, as a Dockerfile's last stage has them."""
_DIRECTIVE = re.compile(r"#\s*(syntax|escape|check)\s*=(.*)", re.IGNORECASE)
"""Comments that builders go by, before all else (Dockerfile reference, "Parser directives")."""
_PYTHON = re.compile(r'\["(/[^"]+)", "-m", "venv", ')
_OFFLINE = re.compile(r"\s--no-index\s")
_OWN = frozenset({"PATH", "VIRTUAL_ENV"})
"""Variables that the templates set by themselves."""
_LEADS = re.compile(r"PYTHON(?:PATH|HOME|STARTUP|PLATLIBDIR|USERBASE)|LD_PRELOAD|LD_AUDIT")
"""Variables that lead Python or the loader elsewhere, which no lock's image has."""
_SETS = re.compile(rf"(?:^|\s)(?:PATH|LD_LIBRARY_PATH|{_LEADS.pattern})[\s=]")
_HARMLESS = frozenset(
    {"CMD", "ENTRYPOINT", "EXPOSE", "HEALTHCHECK", "LABEL", "MAINTAINER", "STOPSIGNAL", "VOLUME", "WORKDIR"}
)
_PLACES = frozenset({"usr", "lib", "lib32", "lib64", "bin", "sbin", "opt", "etc", "root", "var"})
"""Where environments and the system lie."""
_NOBODY = "0" * 64
_SHOWN = 80
_WHY = "What the Dockerfile does besides is in the image and in no lock, so that nobody else can tell or repeat it."
_TODO = "put packages into the manifest; what a template of yours adds, give to both forms, or accept it in the policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction of a Dockerfile."""

    line: int
    """Where it begins, from 1."""
    word: str
    """In upper case; `#SYNTAX` and the like for what builders go by in comments."""
    rest: str

    @property
    def text(self) -> str:
        """What it says, however it is spaced."""
        return f"{self.word} {' '.join(self.rest.split())}".strip()


def instructions(dockerfile: str) -> Iterator[Instruction]:
    """Join lines that go on in the next; comments between them do not end them."""
    begun, first, leading = "", 0, True
    for number, line in enumerate((it.strip() for it in dockerfile.split("\n")), 1):
        directive = _DIRECTIVE.fullmatch(line) if leading else None
        leading = directive is not None
        if directive:
            yield Instruction(line=number, word=f"#{directive[1].upper()}", rest=directive[2].strip())
        if line.startswith("#") or not line:
            continue
        first = first if begun else number
        begun += line.removesuffix("\\")
        if not line.endswith("\\"):
            word, *rest = begun.split(None, 1) or [""]
            yield Instruction(line=first, word=word.upper(), rest="".join(rest))
            begun = ""


def form_findings(forms: Mapping[str, str], settings: Mapping[str, Settings], lock: Lock) -> Iterator[Finding]:
    """Hold each Dockerfile, by its name, against what envbuild writes: what installs something else is a warning.

    A note is what sets or copies beside the environment, and what each form has: templates of one's own do that.
    """
    read = {name: list(instructions(text)) for name, text in forms.items()}
    changes = {name: _changes(name, it, settings[name], lock) for name, it in read.items()}
    for name, (more, less) in changes.items():
        others = [it for other, it in changes.items() if other != name]
        for one in more:
            both = any(one.text == it.text for found, _ in others for it in found)
            says = f"{name}:{one.line} is not of envbuild: {_shown(one)}"
            yield _finding(says, one, "note" if both or _beside(one) else "warning")
        for one in less:
            both = any(one.word == it.word for _, found in others for it in found)
            says = f"{name} lacks what envbuild writes for this lock: {_shown(one)}"
            yield _finding(says, one, "note" if both else "warning")


def _finding(says: str, one: Instruction, severity: Severity) -> Finding:
    return Finding(
        about="dockerfile",
        rule="context-dockerfile",
        agrees=False,
        severity=severity,
        says=says,
        found=one.text,
        why=_WHY,
        todo=_TODO,
    )


def _shown(one: Instruction) -> str:
    return one.text if len(one.text) <= _SHOWN else f"{one.text[:_SHOWN]}..."


def _beside(one: Instruction) -> bool:
    """Whether an instruction changes nothing that the lock is about."""
    if one.word == "ENV":
        return not _SETS.search(one.rest)
    if one.word == "COPY":
        place = one.rest.split()[-1:]
        return bool(place) and "--from" not in one.rest and _lies_beside(place[0])
    return one.word in _HARMLESS


def _lies_beside(place: str) -> bool:
    parts = place.strip("/").split("/")
    return re.fullmatch(r"[\w./-]+", place) is not None and ".." not in parts and parts[0] not in {*_PLACES, ""}


def _changes(
    name: str, found: list[Instruction], settings: Settings, lock: Lock
) -> tuple[list[Instruction], list[Instruction]]:
    """What a Dockerfile has more, and less, than envbuild writes; nothing is known of one with no environment in it."""
    wanted = _written(name, found, settings, lock)
    if wanted is None:
        return [], [Instruction(line=0, word="RUN", rest="... -m venv ...")]
    one, other = ([it.text for it in those] for those in (wanted, found))
    more, less = list[Instruction](), list[Instruction]()
    for kind, i, j, k, m in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        if kind != "equal":
            less += wanted[i:j]
            more += found[k:m]
    # a variable or label elsewhere than envbuild puts it is one that follows what it was rendered of
    moved = {it.text for it in more} & {it.text for it in less}
    return more, [it for it in less if it.text not in moved and it.word not in ("ENV", "LABEL")]


def _written(name: str, found: list[Instruction], settings: Settings, lock: Lock) -> list[Instruction] | None:
    """What envbuild writes for the same lock, base, Python, variables and labels."""
    python = next((match[1] for it in found if it.word == "RUN" and (match := _PYTHON.search(it.rest))), None)
    if python is None:
        return None
    base, variables, labels = settings
    pinned = base if "@" in base or base.startswith("$") else f"{base}@{Digest(_NOBODY)}"
    recipe = Recipe(
        base_name=pinned,
        base_digest=Digest(_NOBODY),
        python_path=json.loads(f'"{python}"'),
        target=lock.target,
        wheels=lock.wheels,
        packages=lock.packages,
        variables=tuple((key, value) for key, value in variables if key not in _OWN and not _LEADS.fullmatch(key)),
        labels=labels,
        prefix=PREFIX,
    )
    offline = any(it.word == "RUN" and _OFFLINE.search(it.rest) for it in found)
    try:
        text = build_context(recipe, b"", b"", None, wheelhouse=offline)[name].decode()
        return list(instructions(text.replace(pinned, base)))
    except (BuildError, ValueError):
        return None
