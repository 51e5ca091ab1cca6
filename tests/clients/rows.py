"""What a program of others made of one thing: a row of the table."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

NOTHING = "no: nothing is found"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One program, and one thing that it was given."""

    client: str
    """With its version."""
    what: str
    verdict: str
    """`yes`, or how it failed."""
    expected: str = "yes"
    """Another verdict where the client is known to fail."""

    @property
    def is_expected(self) -> bool:
        """Whether it is what docs/attestations.md says."""
        return self.verdict == self.expected


def verdict_of(command: Sequence[object], variables: Mapping[str, str], says: str = "") -> str:
    """Run a client: `yes` if it succeeds and its output has `says`, else its last words."""
    done = subprocess.run(
        [str(it) for it in command], env=dict(variables), capture_output=True, text=True, timeout=120, check=False
    )
    output = (done.stdout + done.stderr).strip()
    if done.returncode == 0:
        return "yes" if says in output else NOTHING
    last = output.splitlines()[-1] if output else "no output"
    return f"no: {last.rpartition('error during command execution: ')[2]}"
