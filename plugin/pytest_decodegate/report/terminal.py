"""The verdict table at the end of a perf run, in plain columns that read as well in a log file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..gate.decision import named
from ..gate.text.explain import not_covered
from ..gate.verdict import Verdict
from ..machine.reach import reasons
from .ranks import rank_tables
from .rates import client
from .scaling import curves, scaling_table
from .table import Column, cells, table, unjudged

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

    from ..gate.result import Result

HEADER = ("metric", "verdict", "now", "baseline", "change", "interval", "band", "replicates")
COLUMNS: tuple[Column, ...] = ("name", "verdict", "measured", "base", "change", "interval", "band", "replicates")
"""What stands under HEADER."""

_UNFIT = (Verdict.INVALID, Verdict.WRONG_RESULT)
"""What was measured under these verdicts is not to be put beside anything."""

_COLOURS = {
    Verdict.PASS: "green",
    Verdict.IMPROVED: "green",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.NO_BASELINE: "yellow",
}


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run came to. problem: what failed besides the tests. launches: what ranks cost, a sentence each."""

    results: Sequence[Result]
    machine_class: str
    problem: str | None = None
    launches: Sequence[str] = ()


def write_summary(reporter: TerminalReporter, summary: Summary) -> None:
    """Write what failed besides the tests, and the table; silent when there is neither."""
    if summary.problem:
        reporter.write_sep("=", "perf")
        reporter.write_line(summary.problem, red=True)
    if summary.results and reporter.config.get_verbosity() < 0:
        reporter.write_line(counts(summary.results))
    elif summary.results:
        _write_table(reporter, summary)


def _write_table(reporter: TerminalReporter, summary: Summary) -> None:
    results = summary.results
    reporter.write_sep("=", "perf")
    reporter.write_line(f"machine class {summary.machine_class}; change and interval: + is worse, but - for rates")
    again = {(result.nodeid, result.name) for result in results if result.attempt > 1}
    lines = (row(result, tried=(result.nodeid, result.name) in again) for result in results)
    header, *rows = table([HEADER, *lines])
    reporter.write_line(header)
    for line, result in zip(rows, results, strict=True):
        colour = "green" if result.passes else _COLOURS.get(result.judgement.verdict, "red")
        reporter.write_line(line, **{colour: True})

    verbose = reporter.config.get_verbosity() > 0
    bracketed = unjudged(result.judgement for result in results)
    beside = _beside(summary, verbose=verbose)
    for line in (*bracketed, *chosen(results), *untouched(results), *noted(results), *beside):
        reporter.write_line(line)

    reporter.write_line(counts(results))


def _beside(summary: Summary, *, verbose: bool) -> Iterator[str]:
    """What the metrics say together: what no interval covers, ranks and world sizes, what client and ranks cost."""
    yield from not_covered(result.judgement for result in summary.results)
    yield from rank_tables(summary.results, always=verbose)
    judgements = [result.judgement for result in summary.results if result.judgement.verdict not in _UNFIT]
    levels = ((judgement.metric, judgement.numbers.measured) for judgement in judgements)
    yield from scaling_table(curves((metric.name, metric.contract, level) for metric, level in levels if level))
    yield from client(result.rates for result in summary.results)
    yield from summary.launches


def chosen(results: Sequence[Result]) -> list[str]:
    """Each baseline in use with the reason why it was chosen, once: "against 0001_x.json: the only one ..."."""
    bases = (result.judgement.basis for result in results)
    compared = ((basis.baseline, "; ".join(basis.choice)) for basis in bases if basis.baseline)
    lines = (f"against {file.parent.name}/{file.name}: {choice}" for file, choice in compared)
    return list(dict.fromkeys(lines))


def untouched(results: Sequence[Result]) -> list[str]:
    """What differs from the baselines and cannot touch some metrics, each once, with how many these are and why."""
    names: dict[tuple[str, str], list[str]] = {}
    for result in results:
        for reason, found in reasons(result.judgement.harmless).items():
            names.setdefault(("; ".join(map(str, found)), reason), []).append(result.name)

    return [f"differs: {found}: cannot touch {named(these)} ({reason})" for (found, reason), these in names.items()]


def noted(results: Sequence[Result]) -> list[str]:
    """What a reader should know of metrics that passed, too: "note: marlin_moe[m=8]: a kernel appeared: ..."."""
    return [f"note: {result.name}: {note}" for result in results for note in result.judgement.notes]


def row(result: Result, *, tried: bool = False) -> tuple[str, ...]:
    """The cells of one result, as HEADER names them; tried: whether its metric was measured in several tries."""
    marks = (
        f", try {result.attempt}" * tried
        + ", advisory" * result.advisory
        + ", recorded" * (result.recorded is not None)
    )
    return cells(result.judgement, COLUMNS, marks)


def counts(results: Sequence[Result]) -> str:
    """One line: how many of each verdict, and which did not pass."""
    verdicts = Counter(str(result.judgement.verdict) for result in results)
    failed = [result.name for result in results if not result.passes]
    said = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
    recorded = sum(result.recorded is not None for result in results)
    return "; ".join(
        [
            f"perf: {said}",
            *([f"{recorded} recorded"] if recorded else []),
            *([f"failed: {', '.join(failed)}"] if failed else []),
        ]
    )
