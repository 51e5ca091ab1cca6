"""What the benchmark prints: a table for each scenario, and how far the aims are met."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.build_parts import Cost

COLD, SAME, CHANGED = "cold", "nothing changed", "one small package changed"
EMPTY, LAYERS = "empty machine, the registry has the image", "empty machine, the registry has the layers"
LIBRARY, COMMAND = "envbuild, from the lock", "envbuild from-manifest"
ZSTD, BYTECODE = f"{LIBRARY}, zstd", f"{LIBRARY}, bytecode"
LIBRARIES = {
    LIBRARY: (),
    ZSTD: ("--compression=zstd",),
    BYTECODE: ("--bytecode",),
    f"{ZSTD}, bytecode": ("--bytecode", "--compression=zstd"),
}
"""Options of `benchmarks.build_envbuild`."""
BUILDKIT, BUILDKIT_ZSTD = "newest BuildKit, gzip", "newest BuildKit, zstd 3"
SCENARIOS = (COLD, SAME, CHANGED, EMPTY, LAYERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured run."""

    cost: Cost
    image: int
    """Bytes of the image's layers, compressed."""
    resident: int | None = None
    """Bytes, mapped files included, where the process told."""


class Floor(NamedTuple):
    """What cannot be avoided."""

    seconds: float
    cpu: float


Results = dict[str, dict[str, list[Row]]]
"""By scenario and builder, each round's."""


def usual(rows: Sequence[Row]) -> Row:
    """That of the median time; of an even number, the quicker one of both."""
    return sorted(rows, key=lambda row: row.cost.seconds)[(len(rows) - 1) // 2]


def show(results: Results, floor: Floor) -> None:
    """Print everything."""
    for scenario in SCENARIOS:
        if rows := results.get(scenario):
            print(f"\n{scenario}")
            print(f"  {'':36}{'seconds':>9}{'ratio':>7}{'CPU s':>8}{'MB':>7}{'up MB':>9}{'down MB':>9}{'image MB':>10}")
            for name, found in rows.items():
                row, ours = usual(found), rows.get(BYTECODE if "bytecode" in name else LIBRARY)
                print(line(name, row, row.cost.seconds / usual(ours).cost.seconds if ours else None))
    print(f"\nfloor: {floor.seconds:.2f} s, {floor.cpu:.2f} CPU s to read, inflate once and hash twice")
    if cold := results.get(COLD, {}).get(LIBRARY):
        row = usual(cold)
        resident = f", {row.resident / 1e6:.0f} MB with mapped files" if row.resident else ""
        times = f"{row.cost.seconds / floor.seconds:.2f} times the floor, {row.cost.cpu / floor.cpu:.2f} times its CPU"
        print(f"envbuild cold: {times}{resident}")
    for aim in AIMS:
        print(aim.line(results, floor))


def line(name: str, row: Row, ratio: float | None) -> str:
    cost = row.cost
    shown = f"{ratio:7.1f}" if ratio is not None else f"{'':7}"
    times = f"{cost.seconds:9.2f}{shown}{cost.cpu:8.2f}{cost.memory / 1e6:7.0f}"
    return f"  {name:36}{times}{cost.sent / 1e6:9.2f}{cost.received / 1e6:9.2f}{row.image / 1e6:10.0f}"


@dataclass(frozen=True, slots=True)
class Aim:
    """A sentence, and the figure that has to be under a limit."""

    text: str
    limit: float
    figure: Callable[[Results, Floor], float]

    def line(self, results: Results, floor: Floor) -> str:
        try:
            found = self.figure(results, floor)
        except (KeyError, ValueError):
            return f"not measured: {self.text}"
        return f"{'yes' if found <= self.limit else 'no':>3} ({found:.2f}): {self.text}"


def _seconds(results: Results, scenario: str, name: str = LIBRARY) -> float:
    return usual(results[scenario][name]).cost.seconds


def _best(results: Results) -> float:
    """Of BuildKit in any of its ways, without bytecode."""
    return min(
        usual(rows).cost.seconds
        for name, rows in results[COLD].items()
        if "BuildKit" in name and "bytecode" not in name
    )


def _image(results: Results, name: str) -> float:
    return usual(results[COLD][name]).image


def _empty(results: Results) -> list[Cost]:
    return [usual(results[scenario][LIBRARY]).cost for scenario in (EMPTY, LAYERS)]


AIMS = (
    Aim("cold: at most 1/9 of BuildKit's default", 1 / 9, lambda r, _: _seconds(r, COLD) / _seconds(r, COLD, BUILDKIT)),
    Aim("cold: at most 1/4 of BuildKit's best", 1 / 4, lambda r, _: _seconds(r, COLD) / _best(r)),
    Aim("cold, zstd: at most 1.4 of gzip", 1.4, lambda r, _: _seconds(r, COLD, ZSTD) / _seconds(r, COLD)),
    Aim("cold, zstd: at most 1/3 of BuildKit's best", 1 / 3, lambda r, _: _seconds(r, COLD, ZSTD) / _best(r)),
    Aim("zstd: no larger than BuildKit's zstd 3", 1, lambda r, _: _image(r, ZSTD) / _image(r, BUILDKIT_ZSTD)),
    Aim("cold: at most 1.5 times the floor", 1.5, lambda r, floor: _seconds(r, COLD) / floor.seconds),
    Aim("cold: under 200 MB of memory", 200, lambda r, _: usual(r[COLD][LIBRARY]).cost.memory / 1e6),
    Aim("one small package changed: under 1.5 s", 1.5, lambda r, _: _seconds(r, CHANGED)),
    Aim("nothing changed: under 0.7 s", 0.7, lambda r, _: _seconds(r, SAME)),
    Aim("empty machine: under 5 s", 5, lambda r, _: max(it.seconds for it in _empty(r))),
    Aim("empty machine: under 1 MB downloaded", 1, lambda r, _: max(it.received for it in _empty(r)) / 1e6),
)
"""Seconds are of whole processes from the lock on."""
