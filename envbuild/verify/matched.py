"""The run's manifest against the image: the stack that it asks for, and whether its CUDA libraries are found."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from envbuild.files import data_folder
from envbuild.manifest import read_manifest
from envbuild.match.match import match
from envbuild.match.profiles import FRAMEWORKS, Profiles, load_profiles
from envbuild.match.run import frameworks_of
from envbuild.match.stack import CudaChoice, Stack, VariantChoice
from envbuild.oci.digest import Digest
from envbuild.recipe import Base, Recipe, make_recipe
from envbuild.verify.findings import Finding
from envbuild.verify.loader import prove_loading
from envbuild.verify.standing import Subject

_VARIANT = "dev.envbuild.variant"


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
    changed = [line for key in ("variables", "labels", "user") for line in _changed(key, wanted[key], found[key])]
    same = f"{stack.title}, {stack.variant}, is what the run asks for, and so are all variables"
    return Finding(about="stack", agrees=not changed, says="; ".join(changed) or same)


def _changed(key: str, wanted: Any, found: Any) -> Iterator[str]:
    """Each value that is another, one by one where there are several."""
    if isinstance(wanted, dict):
        for name in sorted(wanted.keys() | found.keys()):
            yield from _changed(name, wanted.get(name, ""), found.get(name, ""))
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
