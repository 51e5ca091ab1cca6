"""Options as a configuration sees them, and what one says of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

Kind = Literal["flag", "number", "text", "list"]
Place = Literal["none", "path", "program", "pair", "reference", "uri", "key"]
"""Which part of a value is a path: all of it; all, where it has a slash; what follows `=`; of images and URIs what
begins with `./` or `../`; of keys all but the word `keyless`; none where it names nothing on this machine."""

SHARED: Final[Mapping[str, tuple[str, ...]]] = {
    "base": ("from-manifest", "lock"),
    "ca-bundle": ("from-manifest",),
    "find-links": ("from-manifest", "local", "lock"),
    "offline": ("from-manifest", "local", "lock"),
    "policy": ("verify", "deploy-check"),
    "push": ("from-manifest",),
    "require-identical": ("from-manifest", "lock"),
    "resolver": ("from-manifest", "lock"),
    "variant": ("from-manifest", "lock"),
}
"""What may stand at the top, and which commands it is for: not all that have an option of that name mean the same."""
TEMPLATES: Final = ("templates", "folder", "from-manifest", "template")
"""A table and a key of their own, and the command and the option that they are for."""
OF_CAPTURE: Final = {"variables": "variable"}
"""What `envbuild.capture()`, which reads the table [capture] too, calls otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of one command."""

    command: str
    """Its words with hyphens: `base-build`."""
    key: str
    """Its long name without the hyphens before it: `find-links`."""
    kind: Kind
    place: Place = "none"
    choices: tuple[str, ...] = ()
    """What it takes; empty where that is not a few words."""
    here: bool = False
    """Whether it is a path of this machine and nothing else, so that an address is a mistake."""
    choosing: bool = False
    """Whether tables below the command's are named by its choices, and count where these are chosen."""
    help: str = ""

    @property
    def variable(self) -> str:
        """`ENVBUILD_BASE_BUILD_PYTHON_IMAGE`."""
        return f"ENVBUILD_{self.command}_{self.key}".upper().replace("-", "_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a configuration says of an option."""

    value: Any
    """As the option takes it, relative paths made absolute."""
    key: str
    """`from-manifest.serve.extra`: where it stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a configuration says."""

    file: Path | None = None
    """None where there is none."""
    text: str = ""
    """What is in it."""
    tables: Mapping[str, Mapping[str, Said]] = field(default_factory=dict)
    """By command, or `from-manifest.serve`, and by the option's key."""

    def said(self, command: str, key: str, chosen: Sequence[str] = ()) -> Said | None:
        """Return what counts for an option where these choices are made; None where nothing is said."""
        names = (*(f"{command}.{it}" for it in reversed(chosen)), command)
        return next((it for name in names if (it := self.tables.get(name, {}).get(key))), None)
