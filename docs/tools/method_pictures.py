"""Draws the pictures of docs/method.md from recorded data: `python docs/tools/method_pictures.py`; needs matplotlib.

Each picture says in its description what it is drawn from, so that a test can tell when it is stale, without drawing.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Final

ROOT: Final = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "plugin" / "tests"))

from recorded_upgrades import SAME, SLOWED, recorded_run  # noqa: E402 - a support module of the tests

from pytest_decodegate import cli  # noqa: E402 - after the path
from pytest_decodegate.baseline.store import Store  # noqa: E402 - as above

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURES: Final = ROOT / "docs" / "pictures"
BASELINES: Final = ROOT / "baselines"

ALLREDUCE: Final = "allreduce_pynccl_graph[world=2]"

SHOWN: Final = {
    "NVIDIA-H200-x1": (
        *("marlin_moe[m=1]", "marlin_moe[m=8]", "o_proj[m=8]", "mla_decode[m=8,context=1024]", "topk[m=8]"),
    ),
    "NVIDIA-H200-x2-NVLink": (ALLREDUCE, "allreduce_custom_graph[world=2]", "alltoall_dispatch[m=8,world=2]"),
}
"""Metrics of processes.svg and finds.svg by machine class."""

TITLES: Final = {SAME: "a stack against itself", SLOWED: "Marlin slowed by 2 %"}
"""Of the two runs of rule.svg."""

INK, BAND, BAD, GOOD = "#222222", "#d9d9d9", "#b3261e", "#1b5e9e"


@dataclass(frozen=True, slots=True)
class Bar:
    """A metric of a run: change and interval of it, its band, and what was said of it; all numbers percents."""

    metric: str
    change: float
    lo: float
    hi: float
    band: float
    verdict: str


@dataclass(frozen=True, slots=True)
class Finds:
    """A line of `decodegate baselines`: the band and the least slowdown that is surely found, percents."""

    metric: str
    band: float
    least: float


def processes() -> dict[str, list[float]]:
    """Values of the fresh processes of the newest session of each metric of SHOWN: percents off their mean."""
    found: dict[str, list[float]] = {}
    for machine, metrics in SHOWN.items():
        for file in Store(BASELINES).load_all(machine):  # the last one counts
            found |= {
                name: _off_mean(file.metrics[name].sessions[-1].values) for name in metrics if name in file.metrics
            }

    return found


def _off_mean(values: Sequence[float]) -> list[float]:
    return [round(100 * (value / fmean(values) - 1), 3) for value in values]


def rule() -> dict[str, list[Bar]]:
    """What two real runs on one H200 said, by the title of the run."""
    return {title: _bars(name) for name, title in TITLES.items()}


def _bars(name: str) -> list[Bar]:
    bars: list[Bar] = []
    for result in recorded_run(name).results:
        numbers, band = result.judgement.numbers, result.judgement.metric.tolerance
        if numbers.lo is None or numbers.hi is None or numbers.change is None:
            raise ValueError(f"{result.name} was recorded without an interval")

        change, lo, hi = (round(100 * value, 3) for value in (numbers.change, numbers.lo, numbers.hi))
        bars.append(Bar(result.name, change, lo, hi, 100 * band, str(result.judgement.verdict)))

    return bars


def finds() -> list[Finds]:
    """What `decodegate baselines` says of SHOWN."""
    found: list[Finds] = []
    for machine, metrics in SHOWN.items():
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            cli.main(["baselines", "--baselines", str(BASELINES), "--machine", machine])

        rows: dict[str, list[str]] = {}
        for line in printed.getvalue().splitlines():
            cells = re.split(r"\s{2,}", line.strip())
            rows.setdefault(cells[0], cells)

        # Of two bands the last is in force on cards that did not record, where the least slowdown is meant, too.
        bands = {name: rows[name][6].split(", ")[-1] for name in metrics}
        found.extend(Finds(name, _percent(band), _percent(rows[name][8])) for name, band in bands.items())

    return found


def _percent(cell: str) -> float:
    found = re.match(r"([\d.]+) %", cell)
    if not found:
        raise ValueError(f"`decodegate baselines` says {cell!r} where a percentage should be")

    return float(found[1])


def descriptions() -> dict[str, str]:
    """What each picture is drawn from, by its file."""
    return {"processes.svg": str(processes()), "rule.svg": str(rule()), "finds.svg": str(finds())}


def draw_processes(percents: Mapping[str, Sequence[float]]) -> Figure:
    """A dot a process, a row a metric."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 3))
    for row, values in enumerate(percents.values()):
        axes.plot(values, [row] * len(values), "o", color=GOOD, alpha=0.7)

    axes.axvline(0, color=INK, linewidth=0.6)
    axes.set_yticks(range(len(percents)), list(percents), fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("%, off the mean of its session; a dot is the median of a fresh process")
    return figure


def draw_rule(runs: Mapping[str, Sequence[Bar]]) -> Figure:
    """A forest for each run, beside each other on one scale."""
    from matplotlib import pyplot as plt

    figure, sides = plt.subplots(1, len(runs), figsize=(10, 3.6), sharex=True, gridspec_kw={"wspace": 0.75})
    for axes, (title, bars) in zip(sides, runs.items(), strict=True):
        _forest(axes, bars)
        axes.set_title(title, fontsize=10, loc="left")

    return figure


def _forest(axes: Axes, bars: Sequence[Bar]) -> None:
    for row, bar in enumerate(bars):
        colour = BAD if bar.verdict == "REGRESSED" else GOOD
        axes.barh(row, 2 * bar.band, left=-bar.band, height=0.8, color=BAND)
        axes.plot([bar.lo, bar.hi], [row, row], color=colour, linewidth=2.5, solid_capstyle="butt")
        axes.plot(bar.change, row, "o", color=colour, markersize=4)

    axes.axvline(0, color=INK, linewidth=0.6)
    axes.set_yticks(range(len(bars)), [f"{bar.metric}  {bar.verdict}" for bar in bars], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("change, %, + is slower")


def draw_finds(found: Sequence[Finds]) -> Figure:
    """A bar a metric, its band as a mark."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 3))
    rows = range(len(found))
    axes.barh(rows, [each.least for each in found], height=0.55, color=GOOD)
    axes.plot([each.band for each in found], rows, "|", color=INK, markersize=18, markeredgewidth=2)
    axes.set_yticks(rows, [each.metric for each in found], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("%: the bar is the slowdown that is surely found, the mark the band")
    return figure


def main() -> None:
    """Draw all."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "decodegate", "svg.fonttype": "none", "font.size": 9})
    figures = {
        "processes.svg": draw_processes(processes()),
        "rule.svg": draw_rule(rule()),
        "finds.svg": draw_finds(finds()),
    }
    for name, description in descriptions().items():
        _save(figures[name], name, description)


def _save(figure: Figure, name: str, description: str) -> None:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)

    metadata = {"Date": None, "Description": description}
    figure.savefig(PICTURES / name, bbox_inches="tight", metadata=metadata, facecolor="white")
    drawn = (PICTURES / name).read_text(encoding="utf-8")
    (PICTURES / name).write_text("\n".join(map(str.rstrip, drawn.splitlines())) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
