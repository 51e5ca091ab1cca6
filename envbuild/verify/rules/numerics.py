"""What the program told its frameworks: precision, determinism, switches and seed, asked of the running processes."""

from collections.abc import Iterator

from envbuild.manifest.model import Numerics
from envbuild.verify.findings import Finding, Severity
from envbuild.verify.rules.saying import agree, differs, listing
from envbuild.verify.sides.side import Side

_PRECISION = "Another precision rounds every number differently, weights and activations alike."
_SEED = "Weights and drops begin elsewhere; of a trained model only what it draws at random changes."
_TODO = "have both programs tell {0} the same, or hold their predictions against one another"

Value = tuple[str, str, Severity | None, str]
"""Name, what was told, how grave another value is, and why; the catalogue says the last two where they are empty."""


def numerics(wanted: Side, found: Side) -> Iterator[Finding]:
    """Each framework that both asked, by what both got to know; devices are told by the rules of GPUs."""
    there = {it.framework: it for it in found.numerics or ()}
    for name, one in {it.framework: it for it in wanted.numerics or ()}.items():
        if name in there:
            yield from _framework(one, there[name])


def _framework(one: Numerics, other: Numerics) -> Iterator[Finding]:
    known = {name: value for name, value, _, _ in _values(other)}
    same = []
    for name, value, severity, why in _values(one):
        if known.get(name, value) != value:
            yield differs(
                "numerics",
                f"{one.framework} {name}",
                wanted=value,
                found=known[name],
                todo=_TODO.format(one.framework),
                severity=severity,
                why=why,
            )
        elif name in known:
            same.append(name)
    if same:
        yield agree("numerics", f"{one.framework} numerics", f"the same of {listing(same)}")


def _values(it: Numerics) -> Iterator[Value]:
    if it.precision:
        yield "precision", it.precision, "error", _PRECISION
    if it.deterministic is not None:
        yield "determinism", "on" if it.deterministic else "off", None, ""
    if it.seed is not None:
        yield "seed", f"{it.seed}", "note", _SEED
    for name, value in sorted(dict(it.settings).items()):
        yield f"setting {name}", value, None, ""
