"""A plot for terminals and log files: plain characters, one column a value or a mean of several."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from statistics import fmean

from ..gate.text.quantity import format_value

HEIGHT = 9
WIDTH = 72


def plot(values: Sequence[float], marks: Sequence[str], unit: str, changes: Collection[int]) -> list[str]:
    """Lines of a plot of `values` (in `unit`), each drawn as its one-letter mark; a bar stands at each of `changes`.

    More than WIDTH values are averaged by column. The axis spans the values, so it does not begin at zero.
    """
    columns = _columns(len(values))
    means = [fmean(values[column.start : column.stop]) for column in columns]
    rows = _rows(means)
    highest, lowest = max(values), min(values)
    labels = {0: format_value(highest, unit), HEIGHT - 1: format_value(lowest, unit)} if highest > lowest else {}
    width = max(map(len, labels.values()), default=0)
    bars = {index for index, column in enumerate(columns) if any(change in column for change in changes)}
    return [
        f"{labels.get(row, ''):>{width}} |"
        + "".join(
            marks[column.start] if rows[index] == row else "|" if index in bars else " "
            for index, column in enumerate(columns)
        ).rstrip()
        for row in range(HEIGHT)
    ]


def _columns(count: int) -> list[range]:
    """Which values stand in each column, as even as possible."""
    width = min(count, WIDTH)
    return [range(index * count // width, (index + 1) * count // width) for index in range(width)]


def _rows(means: Sequence[float]) -> list[int]:
    """The row of each column, 0 at the top."""
    highest, lowest = max(means), min(means)
    if highest == lowest:
        return [HEIGHT // 2] * len(means)

    return [round((highest - mean) / (highest - lowest) * (HEIGHT - 1)) for mean in means]
