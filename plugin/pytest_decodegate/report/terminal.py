"""The end of a perf run on pytest's terminal: with -v all rows, else what does not pass, and the answer last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..gate.decision import named
from ..gate.text.explain import not_covered, notes_of, wider_bands
from ..gate.verdict import UNFIT, Verdict
from ..machine.reach import reasons
from .briefly import compared, harmless, notes
from .ranks import rank_tables
from .rates import client
from .scaling import curves, scaling_table
from .screen import COLOURS, About, counts, last_line, screen, wrapped
from .serving import serving_table
from .table import Column, cells, table

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

    from ..gate.result import Result
    from ..gate.run import Run

HEADER = ("metric", "verdict", "now", "baseline", "change", "interval", "band", "replicates")
COLUMNS: tuple[Column, ...] = ("name", "verdict", "measured", "base", "change", "interval", "band", "replicates")
"""What stands under HEADER."""

_COLOURS = {
    Verdict.PASS: "green",
    Verdict.IMPROVED: "green",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.NO_BASELINE: "yellow",
}


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run came to. launches: what ranks cost, a sentence each."""

    run: Run
    machine_class: str
    about: About
    launches: Sequence[str] = ()


def write_summary(reporter: TerminalReporter, summary: Summary) -> None:
    """Write the answer last; before it what does not pass, with -v all rows, with -q the counts alone."""
    decision = summary.run.decision
    verbosity = reporter.config.get_verbosity()
    if verbosity < 0:
        reporter.write_line(counts(summary.run, decision))
        reporter.write_line(last_line(decision), **{COLOURS[decision.answer]: True})
        return

    reporter.write_sep("=", "perf")
    if verbosity > 0 and summary.run.results:
        _write_table(reporter, summary)

    for text in _said(summary, verbose=verbosity > 0):
        reporter.write_line(text)

    for line in screen(summary.run, summary.about):
        reporter.write_line(line.text, **({line.colour: True} if line.colour else {}))


def _write_table(reporter: TerminalReporter, summary: Summary) -> None:
    results = summary.run.results
    reporter.write_line(f"machine class {summary.machine_class}; change and interval: + is worse, but - for rates")
    again = {(result.nodeid, result.name) for result in results if result.attempt > 1}
    lines = (row(result, tried=(result.nodeid, result.name) in again) for result in results)
    header, *rows = table([HEADER, *lines])
    reporter.write_line(header)
    for line, result in zip(rows, results, strict=True):
        colour = "green" if result.passes else _COLOURS.get(result.judgement.verdict, "red")
        reporter.write_line(line, **{colour: True})


def _said(summary: Summary, *, verbose: bool) -> Iterator[str]:
    """What is said of the metrics besides their rows: what they were compared with, what to know of them."""
    results = summary.run.results
    judgements = [result.judgement for result in results]
    uncovered = (*wider_bands(judgements), *not_covered(judgements))
    if verbose:
        yield from (*chosen(results), *untouched(results), *noted(results), *uncovered, *_beside(summary))
        return

    width = summary.about.width
    said = (*compared(results), *harmless(results), *notes(results), *uncovered)
    yield from (line.text for text in said for line in wrapped(text, width))
    yield from rank_tables(results, always=False)


def _beside(summary: Summary) -> Iterator[str]:
    """What the metrics say together: ranks and world sizes beside each other, what the client and the ranks cost."""
    results = summary.run.results
    yield from rank_tables(results, always=True)
    judgements = [result.judgement for result in results if result.judgement.verdict not in UNFIT]
    levels = ((judgement.metric, judgement.numbers.measured) for judgement in judgements)
    yield from scaling_table(curves((metric.name, metric.contract, level) for metric, level in levels if level))
    yield from serving_table(results)
    yield from client(result.rates for result in results)
    yield from summary.launches


def chosen(results: Sequence[Result]) -> list[str]:
    """Each baseline in use with the reason why it was chosen, once: "against 0001_x.json: the only one ...".

    Where files or reasons differ, each with the metrics that it is for.
    """
    names: dict[str, list[str]] = {}
    for result in results:
        basis = result.judgement.basis
        if file := basis.baseline:
            names.setdefault(f"{file.parent.name}/{file.name}: {'; '.join(basis.choice)}", []).append(result.name)

    return [f"against {choice}{f' ({named(whose)})' * (len(names) > 1)}" for choice, whose in names.items()]


def untouched(results: Sequence[Result]) -> list[str]:
    """What differs from the baselines and cannot touch some metrics, each once, with how many these are and why."""
    names: dict[tuple[str, str], list[str]] = {}
    for result in results:
        for reason, found in reasons(result.judgement.harmless).items():
            names.setdefault(("; ".join(map(str, found)), reason), []).append(result.name)

    return [f"differs: {found}: cannot touch {named(these)} ({reason})" for (found, reason), these in names.items()]


def noted(results: Sequence[Result]) -> list[str]:
    """What a reader should know of metrics that passed, too: "note: marlin_moe[m=8]: a kernel appeared: ..."."""
    return [f"note: {result.name}: {note}" for result in results for note in notes_of(result.judgement)]


def row(result: Result, *, tried: bool = False) -> tuple[str, ...]:
    """The cells of one result, as HEADER names them; tried: whether its metric was measured in several tries."""
    marks = (
        f", try {result.attempt}" * tried
        + ", advisory" * result.advisory
        + ", recorded" * (result.recorded is not None)
    )
    return cells(result.judgement, COLUMNS, marks)
