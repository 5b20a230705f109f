"""Draws the pictures of docs/method.md from recorded data: `python docs/tools/method_pictures.py`; needs matplotlib."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Final

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt

ROOT: Final = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "plugin" / "tests"))

from recorded_upgrades import SAME, SLOWED, recorded_run  # noqa: E402 - a support module of the tests

from pytest_decodegate import cli  # noqa: E402 - after the path
from pytest_decodegate.baseline.store import Store  # noqa: E402 - as above

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from pytest_decodegate.gate.result import Result

PICTURES: Final = ROOT / "docs" / "pictures"
BASELINES: Final = ROOT / "baselines"

ALLREDUCE: Final = "allreduce_pynccl_graph[world=2]"

SHOWN: Final = {
    "NVIDIA-H200-x1": (
        "marlin_moe[m=1]",
        "marlin_moe[m=8]",
        "o_proj[m=8]",
        "mla_decode[m=8,context=1024]",
        "topk[m=8]",
    ),
    "NVIDIA-H200-x2-NVLink": (ALLREDUCE, "allreduce_custom_graph[world=2]", "alltoall_dispatch[m=8,world=2]"),
}
"""Metrics of finds.svg by machine class."""

INK, BAND, BAD, GOOD = "#222222", "#d9d9d9", "#b3261e", "#1b5e9e"


def processes() -> None:
    """Each fresh gang's value of one AllReduce, session by session."""
    (stored,) = (
        file.metrics[ALLREDUCE]
        for file in Store(BASELINES).load_all("NVIDIA-H200-x2-NVLink")
        if ALLREDUCE in file.metrics
    )
    figure, axes = plt.subplots(figsize=(7, 2.4))
    for row, session in enumerate(stored.sessions):
        values = [value * 1e6 for value in session.values]
        axes.plot(values, [row] * len(values), "o", color=GOOD, alpha=0.7)
        axes.plot([fmean(values)] * 2, [row - 0.3, row + 0.3], color=INK)

    axes.set_yticks(range(len(stored.sessions)), [f"{session.recorded[11:16]} UTC" for session in stored.sessions])
    axes.set_ylim(len(stored.sessions) - 0.4, -0.6)
    axes.set_xlabel(f"{ALLREDUCE}: us a call; a dot a fresh gang, a line the mean of the session")
    _save(figure, "processes")


def rule() -> None:
    """Intervals of two real runs on one H200 against their bands."""
    figure, sides = plt.subplots(1, 2, figsize=(10, 3.6), sharex=True, gridspec_kw={"wspace": 0.75})
    for axes, name, title in zip(
        sides, (SAME, SLOWED), ("a stack against itself", "Marlin slowed by 2 %"), strict=True
    ):
        _forest(axes, recorded_run(name).results)
        axes.set_title(title, fontsize=10, loc="left")

    _save(figure, "rule")


def _forest(axes: Axes, results: list[Result]) -> None:
    for row, result in enumerate(results):
        numbers, band = result.judgement.numbers, result.judgement.metric.tolerance
        if numbers.lo is None or numbers.hi is None or numbers.change is None:
            raise ValueError(f"{result.name} was recorded without an interval")

        colour = BAD if result.judgement.verdict == "REGRESSED" else GOOD
        axes.barh(row, 200 * band, left=-100 * band, height=0.8, color=BAND)
        axes.plot([100 * numbers.lo, 100 * numbers.hi], [row, row], color=colour, linewidth=2.5, solid_capstyle="butt")
        axes.plot(100 * numbers.change, row, "o", color=colour, markersize=4)

    axes.axvline(0, color=INK, linewidth=0.6)
    axes.set_yticks(
        range(len(results)), [f"{result.name}  {result.judgement.verdict}" for result in results], fontsize=8
    )
    axes.invert_yaxis()
    axes.set_xlabel("change, %, + is slower")


@dataclass(frozen=True, slots=True)
class Finds:
    """A line of `decodegate baselines`: fractions as percents."""

    metric: str
    band: float
    least: float


def resolutions() -> Iterator[Finds]:
    """What `decodegate baselines` says of SHOWN."""
    for machine, metrics in SHOWN.items():
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            cli.main(["baselines", "--baselines", str(BASELINES), "--machine", machine])
        rows = {
            cells[0]: cells for line in printed.getvalue().splitlines() if (cells := re.split(r"\s{2,}", line.strip()))
        }
        yield from (Finds(name, _percent(rows[name][6]), _percent(rows[name][8])) for name in metrics)


def _percent(cell: str) -> float:
    found = re.match(r"([\d.]+) %", cell)
    if not found:
        raise ValueError(f"`decodegate baselines` says {cell!r} where a percentage should be")

    return float(found[1])


def finds() -> None:
    """The least slowdown that a run surely finds beside the shipped baselines, and the band."""
    figure, axes = plt.subplots(figsize=(8, 3))
    found = list(resolutions())
    rows = range(len(found))
    axes.barh(rows, [each.least for each in found], height=0.55, color=GOOD)
    axes.plot([each.band for each in found], rows, "|", color=INK, markersize=18, markeredgewidth=2)
    axes.set_yticks(rows, [each.metric for each in found], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("%: the bar is the slowdown that is surely found, the mark the band")
    _save(figure, "finds")


def _save(figure: plt.Figure, name: str) -> None:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)

    figure.savefig(PICTURES / f"{name}.svg", bbox_inches="tight", metadata={"Date": None}, facecolor="white")
    plt.close(figure)
    drawn = (PICTURES / f"{name}.svg").read_text(encoding="utf-8")
    (PICTURES / f"{name}.svg").write_text("\n".join(map(str.rstrip, drawn.splitlines())) + "\n", encoding="utf-8")


def main() -> None:
    """Draw all."""
    mpl.rcParams.update({"svg.hashsalt": "decodegate", "svg.fonttype": "none", "font.size": 9})
    processes()
    rule()
    finds()


if __name__ == "__main__":
    main()
