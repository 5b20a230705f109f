"""What the windows of each TPOT gave besides: time to the first token, between tokens, and tokens per second."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from ..gate.text.quantity import format_value
from .rates import line
from .table import NOTHING, table

if TYPE_CHECKING:
    from ..gate.result import Result

HEADER: Final = ("beside", "TTFT", "between tokens", "p99", "throughput")
COLUMNS: Final = {"ttft_median_s": "s", "itl_p50_s": "s", "itl_p99_s": "s", "output_tok_s": "tok/s"}
"""Rates of a result under HEADER, each with its unit."""


def serving_table(results: Sequence[Result]) -> Iterator[str]:
    """A row for each metric of windows: medians over its windows. Nothing where no server was measured."""
    rows = [(result.name, *_cells(result)) for result in _of_windows(results)]
    if rows:
        yield from table([HEADER, *rows])


def served(results: Sequence[Result]) -> Iterator[str]:
    """The same as sentences: "beside tpot[c=8]: TTFT 45.0 ms, between tokens 12.1 ms (p99 15.0 ms), 640 tok/s"."""
    yield from (f"beside {result.name}: {line(result.rates)}" for result in _of_windows(results))


def _of_windows(results: Sequence[Result]) -> list[Result]:
    return [result for result in results if "ttft_median_s" in result.rates]


def _cells(result: Result) -> Iterator[str]:
    for name, unit in COLUMNS.items():
        yield format_value(result.rates[name], unit) if name in result.rates else NOTHING
