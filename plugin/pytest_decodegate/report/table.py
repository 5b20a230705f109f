"""Rows as aligned text, and the columns that tables of metrics have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

from ..gate.result import ERROR, Failed
from ..gate.text.quantity import format_band, format_interval, format_percent, format_value
from ..gate.verdict import Judgement

Row: TypeAlias = Judgement | Failed
"""What a line of a table is about: a metric with a verdict, or a test that came to none."""

Column: TypeAlias = Literal[
    "name", "verdict", "base", "measured", "change", "interval", "band", "pairs", "replicates", "sessions"
]

NOTHING = "-"
"""The cell of what is not known or was not compared: no zero, which would be a number."""


MOST_CUT = 24
"""Characters of a name that stay on the narrowest terminal."""

_DOTS = "..."

UNJUDGED: Final = "a change in brackets is shown and not judged"
"""Said beside a table that has one."""


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Left-aligned columns two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip() for cells in rows]


def fitted(rows: Sequence[tuple[str, ...]], width: int, drop: Sequence[int]) -> tuple[list[str], tuple[str, ...]]:
    """A table of at most `width` characters a line where that can be, and the headers that were left out for it.

    rows: the first is the header, the first column names. drop: columns that may go, the least needed first. Then names
    are cut in the middle, to MOST_CUT characters at the least, so that both what is measured and its size stay.
    """
    kept = list(range(len(rows[0])))
    spare = min(MOST_CUT, max(len(cells[0]) for cells in rows))
    for column in drop:
        if _others(rows, kept) + spare > width:
            kept.remove(column)

    room = max(spare, width - _others(rows, kept))
    chosen = [(cut(cells[0], room), *(cells[column] for column in kept[1:])) for cells in rows]
    return table(chosen), tuple(name for index, name in enumerate(rows[0]) if index not in kept)


def _others(rows: Sequence[tuple[str, ...]], kept: Sequence[int]) -> int:
    """Characters of a line without its first cell."""
    return sum(2 + max(len(cells[column]) for cells in rows) for column in kept[1:])


def cut(text: str, most: int) -> str:
    """`text` in `most` characters: both its ends, and dots for the middle."""
    if len(text) <= most:
        return text

    head = (most - len(_DOTS) + 1) // 2
    return f"{text[:head]}{_DOTS}{text[len(text) - (most - len(_DOTS) - head) :]}"


def cells(row: Row, columns: Sequence[Column], remark: str = "") -> tuple[str, ...]:
    """One line of a table with these columns; `remark` stands beside the verdict."""
    return tuple(_CELLS[column](row) + (remark if column == "verdict" else "") for column in columns)


def _verdict(row: Row) -> str:
    return str(row.verdict) if isinstance(row, Judgement) else ERROR


def _value(row: Row, value: float | None) -> str:
    return NOTHING if value is None or row.metric is None else format_value(value, row.metric.unit)


def _change(row: Row) -> str:
    return NOTHING if row.numbers.change is None else _marked(row, format_percent(row.numbers.change))


def _interval(row: Row) -> str:
    numbers = row.numbers
    return NOTHING if numbers.lo is None else _marked(row, format_interval(numbers.lo, numbers.hi))


def _marked(row: Row, change: str) -> str:
    """A change as a cell: in brackets where it decides nothing."""
    return f"({change})" if _is_unjudged(row) else change


def _is_unjudged(row: Row) -> bool:
    return isinstance(row, Judgement) and not row.verdict.judged and row.numbers.change is not None


def unjudged(rows: Iterable[Row]) -> tuple[str, ...]:
    """What the brackets in a table of `rows` mean; () where it has none."""
    return (UNJUDGED,) if any(map(_is_unjudged, rows)) else ()


def _band(row: Row) -> str:
    return format_band(row.metric.tolerance) if isinstance(row, Judgement) else NOTHING


def _replicates(row: Row) -> str:
    if not isinstance(row, Judgement):
        return NOTHING

    return f"{row.basis.replicates} x {'pair' if row.basis.reference == 'stack' else row.basis.level}"


def _sessions(row: Row) -> str:
    if isinstance(row, Failed) or not row.basis.sessions:
        return NOTHING

    return f"{row.basis.sessions}, {row.basis.new_sessions}"


_CELLS: Final[Mapping[Column, Callable[[Row], str]]] = {
    "name": lambda row: row.name,
    "verdict": _verdict,
    "base": lambda row: _value(row, row.numbers.base),
    "measured": lambda row: _value(row, row.numbers.measured),
    "change": _change,
    "interval": _interval,
    "band": _band,
    "pairs": lambda row: str(row.basis.replicates or NOTHING) if isinstance(row, Judgement) else NOTHING,
    "replicates": _replicates,
    "sessions": _sessions,
}
