"""Findings in the words of the catalogue, and the remedies that depend on who has to change."""

from collections.abc import Sequence
from dataclasses import replace

from envbuild.verify.findings import Finding, Severity
from envbuild.verify.rules.catalogue import rule_of
from envbuild.verify.sides.side import Kind, Side

_LISTED = 8
"""Names that a sentence has room for."""

_ANEW: dict[Kind, str] = {
    "image": "build the image anew from the run's manifest: `envbuild from-manifest MANIFEST`",
    "lock": "lock the run's versions anew: `envbuild lock MANIFEST`",
    "context": "write the context anew from the run's manifest: `envbuild from-manifest MANIFEST`",
    "host": "run it in the image that was made for it",
    "manifest": "keep the two apart, or train anew in the first one's environment",
    "model": "keep the two apart, or train anew in the first one's environment",
}

MADE: frozenset[Kind] = frozenset({"image", "lock", "context"})
"""What envbuild makes from a run, on purpose with less than the run had: Linux only, no values of one model."""


def differs(
    rule: str,
    about: str,
    says: str = "",
    *,
    wanted: str,
    found: str,
    todo: str,
    severity: Severity | None = None,
    why: str = "",
) -> Finding:
    """A disagreement by a rule, as grave as the catalogue says unless told otherwise."""
    known = rule_of(rule)
    return Finding(
        rule=rule,
        about=about,
        agrees=False,
        says=says or f"wanted {wanted}, found {found}",
        severity=severity or known.severity,
        wanted=wanted,
        found=found,
        why=why or known.why,
        todo=todo,
    )


def about_packages(finding: Finding, *packages: str) -> Finding:
    """The same finding, with the distributions that it is about."""
    return replace(finding, packages=packages)


def agree(rule: str, about: str, says: str, *, wanted: str = "", found: str = "") -> Finding:
    """A subject that was compared and agrees."""
    return Finding(rule=rule, about=about, agrees=True, says=says, wanted=wanted, found=found)


def anew(found: Side) -> str:
    """How what was found comes to be what was wanted."""
    return _ANEW[found.kind]


def with_pin(found: Side, pin: str) -> str:
    """The same for one package."""
    return f"{anew(found)}, or install {pin} there" if found.kind == "host" else anew(found)


def passing(found: Side, option: str) -> str:
    """How an option for running a container is given: at the start of an image, by hand on a host."""
    return (
        f"set it there, or start the container with `{option}`" if found.kind == "host" else f"start it with `{option}`"
    )


def brings_all(wanted: Side, found: Side) -> bool:
    """Whether one holds all software, so that only the hardware of the other counts: an image that runs on a host."""
    return wanted.kind in ("image", "context") and found.kind == "host"


def listing(names: Sequence[str]) -> str:
    """As many as a sentence has room for."""
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")
