"""What the windows of each TPOT gave besides: time to the first token, between tokens, and tokens per second."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from ..gate.text.quantity import format_value
from .table import NOTHING, table

if TYPE_CHECKING:
    from ..gate.result import Result

HEADER: Final = ("beside", "TTFT", "between tokens", "p99", "throughput")
COLUMNS: Final = {"ttft_median_s": "s", "itl_p50_s": "s", "itl_p99_s": "s", "output_tok_s": "tok/s"}
"""Rates of a result under HEADER, each with its unit."""


def serving_table(results: Sequence[Result]) -> Iterator[str]:
    """A row for each metric of windows: medians over its windows. Nothing where no server was measured."""
    rows = [(result.name, *_cells(result)) for result in results if "ttft_median_s" in result.rates]
    if rows:
        yield from table([HEADER, *rows])


def _cells(result: Result) -> Iterator[str]:
    for name, unit in COLUMNS.items():
        yield format_value(result.rates[name], unit) if name in result.rates else NOTHING
