"""Draw what `benchmarks.prediction` measured: the run of the median time of each variant, as bars of its stages.

.venv/bin/python -m benchmarks.prediction_chart RUNS.jsonl MODEL >docs/prediction.svg
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, TextIO

Run = dict[str, Any]
"""A line of JSON, as `benchmarks.prediction` writes it."""
STAGES: Mapping[str, tuple[str, str]] = {
    "build": ("lock to registry", "#3b6db3"),
    "pull": ("pull", "#7ba7dd"),
    "container": ("start", "#b3803b"),
    "prediction": ("first prediction", "#e6b566"),
}
LEFT, WIDTH, BAR, STEP = 200, 560, 16, 22
USUAL, BUILDKIT, DEFAULT, SLIM = "BuildKit, gzip", "BuildKit", "envbuild, gzip", "envbuild, slim"


def medians(runs: Sequence[Run]) -> dict[str, Run]:
    """The run with the median time, by variant; of an even number, the quicker one of both."""
    found: dict[str, list[Run]] = {}
    for it in runs:
        found.setdefault(it["variant"], []).append(it)
    return {
        name: sorted(rows, key=lambda row: float(row["seconds"]))[(len(rows) - 1) // 2] for name, rows in found.items()
    }


def by_speed(runs: Sequence[Run]) -> dict[int | None, dict[str, Run]]:
    """The medians without a limit, then with each."""
    speeds = sorted({it["MB/s"] for it in runs}, key=lambda it: it or 0)
    return {speed: medians([it for it in runs if it["MB/s"] == speed]) for speed in speeds}


def title(speed: int | None) -> str:
    return f"registry at {speed} MB/s" if speed else "registry without a limit"


def show(runs: Sequence[Run], file: TextIO) -> None:
    """Print a table, and how far the bounds are met."""
    for speed, rows in by_speed(runs).items():
        print(f"\n{title(speed)}{'':6}{'seconds':>9}{'CPU s':>8}{'MB':>7}  {' '.join(STAGES)}", file=file)
        for name, it in rows.items():
            stages = it["stages"]
            cpu = sum(stage["cpu"] for stage in stages.values())
            parts = " ".join(f"{stages[stage]['seconds']:{len(stage)}.2f}" for stage in STAGES)
            print(f"  {name:28}{it['seconds']:9.2f}{cpu:8.2f}{it['image'] / 1e6:7.0f}  {parts}", file=file)
        for text, limit, ratio in bounds({name: float(it["seconds"]) for name, it in rows.items()}):
            print(f"{'yes' if ratio <= limit else 'no':>3} ({ratio:.2f}): {text}", file=file)


def bounds(seconds: Mapping[str, float]) -> Iterator[tuple[str, float, float]]:
    """Each that could be measured, its limit and what was found."""
    if DEFAULT in seconds and USUAL in seconds:
        yield "at most 1/3 of BuildKit as people use it", 1 / 3, seconds[DEFAULT] / seconds[USUAL]
    if DEFAULT in seconds and (peers := [it for name, it in seconds.items() if BUILDKIT in name]):
        yield "at most 1/2 of the best BuildKit", 1 / 2, seconds[DEFAULT] / min(peers)
    if DEFAULT in seconds and SLIM in seconds:
        yield "slim: at most 0.7 of what is not", 0.7, seconds[SLIM] / seconds[DEFAULT]


def chart(runs: Sequence[Run]) -> str:
    """As SVG."""
    panels = by_speed(runs)
    scale = WIDTH / max(float(it["seconds"]) for rows in panels.values() for it in rows.values())
    parts, y = [legend()], 50
    for speed, rows in panels.items():
        parts.append(f'<text x="{LEFT}" y="{y}" font-weight="bold">{title(speed)}</text>')
        for name, it in rows.items():
            y += STEP
            parts.append(bar(name, it, y - 12, scale))
        y += 2 * STEP
    last = runs[-1]
    rounds = max(
        sum(it["variant"] == other["variant"] and it["MB/s"] == other["MB/s"] for it in runs) for other in runs
    )
    about = f"{last['model']}, median of {rounds}, {last['cpu']}, podman {last['podman']}, BuildKit {last['BuildKit']}"
    parts.append(f'<text x="8" y="{y - 16}" font-size="11">{escape(about)}</text>')
    label = f"From the lock to the first prediction of a {last['model']} model, in seconds"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 60} {y - 8}" font-family="sans-serif"'
        f' font-size="13" role="img" aria-label="{escape(label)}">\n'
        + "".join(f"  {it}\n" for it in parts)
        + "</svg>\n"
    )


def legend() -> str:
    cells = (
        f'<rect x="{x}" y="10" width="12" height="12" fill="{colour}"/><text x="{x + 18}" y="21">{text}</text>'
        for x, (text, colour) in zip(range(LEFT, LEFT + WIDTH, 140), STAGES.values(), strict=False)
    )
    return "".join(cells)


def bar(name: str, it: Run, y: int, scale: float) -> str:
    parts, x = [f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(name)}</text>'], float(LEFT)
    for stage, (_, colour) in STAGES.items():
        width = it["stages"][stage]["seconds"] * scale
        parts.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{colour}"/>')
        x += width
    return "".join([*parts, f'<text x="{x + 6:.1f}" y="{y + 13}">{float(it["seconds"]):.1f}</text>'])


def main() -> None:
    runs = [it for it in map(json.loads, Path(sys.argv[1]).read_text().splitlines()) if it["model"] == sys.argv[2]]
    same = ("envbuild", "cpu", "podman", "BuildKit")  # of one machine and release
    print(chart([it for it in runs if all(it[name] == runs[-1][name] for name in same)]), end="")


if __name__ == "__main__":
    main()
