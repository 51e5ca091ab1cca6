"""What a verification found: each thing that has to agree, and whether it does."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that has to agree with another."""

    about: str
    """`base`, `environment`, `layer`."""
    agrees: bool
    says: str
    """One sentence."""
    wanted: str = ""
    """What it has to be, where that is one value."""
    found: str = ""
    """What it is."""
    packages: tuple[str, ...] = ()
    """`numpy 1.26.4`: the distributions that it is about."""

    def __str__(self) -> str:
        return f"{'ok' if self.agrees else 'differs':<9}{self.about}: {self.says}"

    def to_dict(self) -> dict[str, Any]:
        """As --json has it."""
        return {
            "about": self.about,
            "agrees": self.agrees,
            "says": self.says,
            "wanted": self.wanted,
            "found": self.found,
            "packages": list(self.packages),
        }


def compared(about: str, *, wanted: str, found: str, ok: str, differs: str) -> Finding:
    """Hold one value against what it has to be, and say it in the sentence that is then true."""
    agrees = wanted == found
    return Finding(about=about, agrees=agrees, says=ok if agrees else differs, wanted=wanted, found=found)
