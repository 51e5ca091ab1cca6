"""What the benchmark prints: a table for each scenario, and how far the aims are met."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.build_parts import Cost

COLD, SAME, CHANGED = "cold", "nothing changed", "one small package changed"
EMPTY, LAYERS = "empty machine, the registry has the image", "empty machine, the registry has the layers"
LIBRARY, COMMAND = "envbuild, from the lock", "envbuild from-manifest"
UV = "BuildKit, uv"
SCENARIOS = (COLD, SAME, CHANGED, EMPTY, LAYERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured run."""

    cost: Cost
    image: int
    """Bytes of the image's layers, compressed."""
    resident: int | None = None
    """Bytes, mapped files included, where the process told."""

    def better(self, other: "Row | None") -> "Row":
        """The quicker of two rounds."""
        return self if other is None or self.cost.seconds < other.cost.seconds else other


class Floor(NamedTuple):
    """What cannot be avoided."""

    seconds: float
    cpu: float


Results = dict[str, dict[str, Row]]
"""By scenario and builder."""


def show(results: Results, floor: Floor) -> None:
    """Print everything."""
    for scenario in SCENARIOS:
        if rows := results.get(scenario):
            print(f"\n{scenario}")
            print(f"  {'':24}{'seconds':>9}{'ratio':>7}{'CPU s':>8}{'MB':>7}{'up MB':>9}{'down MB':>9}{'image MB':>10}")
            first = rows.get(LIBRARY)
            for name, row in rows.items():
                print(line(name, row, row.cost.seconds / first.cost.seconds if first else None))
    print(f"\nfloor: {floor.seconds:.2f} s, {floor.cpu:.2f} CPU s to read, inflate once and hash twice")
    if row := results.get(COLD, {}).get(LIBRARY):
        resident = f", {row.resident / 1e6:.0f} MB with mapped files" if row.resident else ""
        times = f"{row.cost.seconds / floor.seconds:.2f} times the floor, {row.cost.cpu / floor.cpu:.2f} times its CPU"
        print(f"envbuild cold: {times}{resident}")
    for aim in AIMS:
        print(aim.line(results, floor))


def line(name: str, row: Row, ratio: float | None) -> str:
    cost = row.cost
    shown = f"{ratio:7.1f}" if ratio is not None else f"{'':7}"
    times = f"{cost.seconds:9.2f}{shown}{cost.cpu:8.2f}{cost.memory / 1e6:7.0f}"
    return f"  {name:24}{times}{cost.sent / 1e6:9.2f}{cost.received / 1e6:9.2f}{row.image / 1e6:10.0f}"


@dataclass(frozen=True, slots=True)
class Aim:
    """A sentence, and the figure that has to be under a limit."""

    text: str
    limit: float
    figure: Callable[[Results, Floor], float]

    def line(self, results: Results, floor: Floor) -> str:
        try:
            found = self.figure(results, floor)
        except KeyError:
            return f"not measured: {self.text}"
        return f"{'yes' if found <= self.limit else 'no':>3} ({found:.2f}): {self.text}"


def _seconds(results: Results, scenario: str, name: str = LIBRARY) -> float:
    return results[scenario][name].cost.seconds


def _empty(results: Results) -> list[Cost]:
    return [results[scenario][LIBRARY].cost for scenario in (EMPTY, LAYERS)]


AIMS = (
    Aim("cold: at most 0.1 of BuildKit with uv", 0.1, lambda r, _: _seconds(r, COLD) / _seconds(r, COLD, UV)),
    Aim("cold: at most 1.5 times the floor", 1.5, lambda r, floor: _seconds(r, COLD) / floor.seconds),
    Aim("cold: under 200 MB of memory", 200, lambda r, _: r[COLD][LIBRARY].cost.memory / 1e6),
    Aim("one small package changed: under 1.5 s", 1.5, lambda r, _: _seconds(r, CHANGED)),
    Aim("nothing changed: under 0.7 s", 0.7, lambda r, _: _seconds(r, SAME)),
    Aim("empty machine: under 5 s", 5, lambda r, _: max(it.seconds for it in _empty(r))),
    Aim("empty machine: under 1 MB downloaded", 1, lambda r, _: max(it.received for it in _empty(r)) / 1e6),
)
"""Those of issue 5; seconds are of whole processes from the lock on."""
