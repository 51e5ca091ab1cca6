"""What a verification found: each thing that has to agree, whether it does, and how much it matters if not."""

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

Severity = Literal["error", "warning", "note"]
"""`error` can change predictions or keep it from running; `warning` may, elsewhere; `note` is good to know."""

SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""The gravest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that has to agree with another."""

    about: str
    """`base`, `environment`, `numpy`."""
    agrees: bool
    says: str
    """One sentence."""
    rule: str = ""
    """Stable name of what was looked at, which policies go by: `package`; what it is about where that is all."""
    severity: Severity = "error"
    """How much it matters, where it does not agree."""
    wanted: str = ""
    """What it has to be, where that is one value."""
    found: str = ""
    """What it is."""
    why: str = ""
    """What comes of it if nothing is done, in one sentence."""
    todo: str = ""
    """What to do about it."""
    packages: tuple[str, ...] = ()
    """`numpy 1.26.4`: the distributions that it is about."""
    between: tuple[str, str] = ("", "")
    """The names of the two targets that were compared; empty where it is about one thing."""

    @property
    def id(self) -> str:
        """The rule's name."""
        return self.rule or self.about

    def __str__(self) -> str:
        return f"{'ok' if self.agrees else self.severity:<9}{self.about}: {self.says}"

    def to_dict(self) -> dict[str, Any]:
        """As --json has it."""
        return {
            "rule": self.id,
            "about": self.about,
            "agrees": self.agrees,
            "severity": None if self.agrees else self.severity,
            "says": self.says,
            "wanted": self.wanted,
            "found": self.found,
            "why": self.why,
            "do": self.todo,
            "packages": list(self.packages),
            "between": list(self.between) if any(self.between) else None,
        }

    def with_targets(self, wanted: str, found: str) -> "Finding":
        """The same finding, between these two."""
        return replace(self, between=(wanted, found))


def compare_values(about: str, *, wanted: str, found: str, ok: str, differs: str) -> Finding:
    """Compare one value with what it has to be; `ok` or `differs` is the sentence."""
    agrees = wanted == found
    return Finding(about=about, agrees=agrees, says=ok if agrees else differs, wanted=wanted, found=found)
