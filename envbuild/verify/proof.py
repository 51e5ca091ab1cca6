"""The loader proof: every CUDA library that a framework opens is found in the image, told without a GPU."""

from dataclasses import dataclass
from typing import Literal

from envbuild.errors import VerifyError

Kind = Literal["found", "missing", "unfit", "twice", "note"]
"""`note` is no fault: something optional is not there, or cannot be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderFinding:
    """What became of one library."""

    kind: Kind
    library: str
    """`libcudnn.so.8`; what it is about, where that is no library."""
    says: str
    """One sentence."""
    path: str = ""
    """Where it is found, links followed; empty where it is not."""
    via: str = ""
    """What leads the loader there: `RUNPATH of …`, `LD_LIBRARY_PATH`, `/etc/ld.so.cache`."""
    version: str = ""
    """As the wheel or the file's name says; empty where neither does."""
    todo: str = ""

    def __str__(self) -> str:
        return f"{self.library}: {self.says}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderProof:
    """What the loader finds in an image for one framework."""

    framework: str
    """`tensorflow 2.15.1`."""
    cuda: bool
    """False for a CPU build, which opens nothing."""
    findings: tuple[LoaderFinding, ...]
    """What is found in the loader's order, then what is wrong, then notes."""

    @property
    def faults(self) -> tuple[LoaderFinding, ...]:
        """What makes the proof fail."""
        return tuple(it for it in self.findings if it.kind not in ("found", "note"))

    @property
    def notes(self) -> tuple[LoaderFinding, ...]:
        """What is worth a line, and fails nothing."""
        return tuple(it for it in self.findings if it.kind == "note")

    @property
    def summary(self) -> str:
        """One line."""
        found = sum(it.kind == "found" for it in self.findings)
        if not self.cuda:
            return f"{self.framework} is a CPU build and opens no CUDA library"
        if not self.faults:
            return f"all {found} CUDA libraries that {self.framework} opens or needs are found"
        names = ", ".join(dict.fromkeys(it.library for it in self.faults))
        return f"{self.framework} would not run on a GPU: {names}"

    def require(self) -> None:
        """Raise VerifyError with every fault and what to do, unless there is none."""
        if self.faults:
            lines = "\n  - ".join((self.summary, *map(str, self.faults)))
            todo = "; ".join(dict.fromkeys(it.todo for it in self.faults if it.todo))
            raise VerifyError(lines, where="loader proof", todo=todo)
