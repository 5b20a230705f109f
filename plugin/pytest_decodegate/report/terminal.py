"""The verdict table at the end of a perf run, in plain columns that read as well in a log file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..gate.text.quantity import format_band, format_interval, format_percent, format_value

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

    from ..session.session import Suite
    from .result import Result

HEADER = ("metric", "verdict", "now", "baseline", "change", "interval", "band", "replicates")

_UNFIT = ("INVALID", "WRONG_RESULT")
"""What was measured under these verdicts is not to be put beside anything."""

_COLOURS = {"PASS": "green", "IMPROVED": "green", "INCONCLUSIVE": "yellow", "NO_BASELINE": "yellow"}


def write_summary(reporter: TerminalReporter, suite: Suite) -> None:
    """Write what failed besides the tests, and the table; silent when there is neither."""
    if suite.problem:
        reporter.write_sep("=", "perf")
        reporter.write_line(suite.problem, red=True)
    if suite.results and reporter.config.get_verbosity() < 0:
        reporter.write_line(counts(suite.results))
    elif suite.results:
        _write_table(reporter, suite)


def _write_table(reporter: TerminalReporter, suite: Suite) -> None:
    reporter.write_sep("=", "perf")
    reporter.write_line(f"machine class {suite.machine_class}; change and interval: + is worse")
    header, *rows = table([HEADER, *(row(result) for result in suite.results)])
    reporter.write_line(header)
    for line, result in zip(rows, suite.results, strict=True):
        colour = "green" if result.passes else _COLOURS.get(result.judgement.verdict, "red")
        reporter.write_line(line, **{colour: True})

    for line in (*chosen(suite.results), *noted(suite.results), *_beside(suite, reporter.config.get_verbosity() > 0)):
        reporter.write_line(line)

    reporter.write_line(counts(suite.results))


def _beside(suite: Suite, verbose: bool) -> Iterator[str]:
    """What the metrics say together: ranks and world sizes beside each other, what the client and the ranks cost."""
    from . import ranks, rates, scaling

    yield from ranks.told(suite.results, always=verbose)
    judgements = [result.judgement for result in suite.results if result.judgement.verdict not in _UNFIT]
    measured = [(one.metric.name, one.metric.contract, one.measured) for one in judgements if one.measured]
    yield from scaling.told(scaling.curves(measured))
    yield from rates.client(result.rates for result in suite.results)
    yield from suite.launches.lines()


def chosen(results: Sequence[Result]) -> list[str]:
    """Each baseline in use with the reason why it was chosen, once: "against 0001_x.json: the only one ..."."""
    judgements = (result.judgement for result in results)
    lines = (f"against {one.baseline.name}: {'; '.join(one.choice)}" for one in judgements if one.baseline)
    return list(dict.fromkeys(lines))


def noted(results: Sequence[Result]) -> list[str]:
    """What a reader should know of metrics that passed, too: "note: marlin_moe[m=8]: a kernel appeared: ..."."""
    return [f"note: {one.judgement.metric.name}: {note}" for one in results for note in one.judgement.notes]


def row(result: Result) -> tuple[str, ...]:
    """The cells of one result, as HEADER names them; "-" for what was not compared."""
    judgement = result.judgement
    unit = judgement.metric.unit
    return (
        judgement.metric.name,
        f"{judgement.verdict}{', advisory' if result.advisory else ''}{', recorded' if result.recorded else ''}",
        "-" if judgement.measured is None else format_value(judgement.measured, unit),
        "-" if judgement.base is None else format_value(judgement.base, unit),
        "-" if judgement.change is None else format_percent(judgement.change),
        format_interval(judgement.lo, judgement.hi),
        format_band(judgement.metric.tolerance),
        f"{judgement.replicates} x {'pair' if judgement.paired else judgement.level}",
    )


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Left-aligned columns two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip() for cells in rows]


def counts(results: Sequence[Result]) -> str:
    """One line: how many of each verdict, and which did not pass."""
    verdicts = Counter(str(result.judgement.verdict) for result in results)
    failed = [result.judgement.metric.name for result in results if not result.passes]
    said = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
    recorded = sum(result.recorded is not None for result in results)
    return "; ".join(
        [
            f"perf: {said}",
            *([f"{recorded} recorded"] if recorded else []),
            *([f"failed: {', '.join(failed)}"] if failed else []),
        ]
    )
