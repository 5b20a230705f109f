"""The last screen of a run: what does not pass by its cause, what passed as a count, the next step, and the answer."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ..gate.bands import ini_lines
from ..gate.decision import ADVISORY, THE_RUN, Answer, Decision, Ground, Resolution, counted_as
from ..gate.result import Failed, Result, Skipped
from ..gate.run import Run
from ..gate.text.quantity import format_interval, format_percent, format_value
from ..gate.verdict import Verdict
from ..profile.whole_steps import attributed
from .next_step import next_command
from .table import cells, fitted, unjudged

WIDTH: Final = 80

MOST_ROWS: Final = 10
"""Rows of one cause; -v shows all."""

MOST_NAMES: Final = 12
"""Names in one list; -v shows all."""

_KINDS: Final[Mapping[str, str]] = {
    "kernel": "a kernel",
    "collective": "a collective",
    "serving": "TPOT or a rate",
    "cpu": "a stand-in on the CPU",
    "quality": "answers",
    "kernels_common_shift": "all kernels together",
    "decode_step": "the decode step",
}

COLOURS: Final[Mapping[Answer, str]] = {
    Answer.GO: "green",
    Answer.RECORDED: "green",
    Answer.NO_GO: "red",
    Answer.NOT_PROVEN: "yellow",
}


_STUCK: Final = "\N{NO-BREAK SPACE}"
_UNIT: Final = re.compile(r"(?<=\d) (?=[%A-Za-z])")


@dataclass(frozen=True, slots=True)
class ScreenLine:
    """A line of the screen. colour: as pytest's terminal names it, "" for none."""

    text: str
    colour: str = ""


@dataclass(frozen=True, slots=True)
class About:
    """What a screen says beside the outcomes. command: the words that started the run. reports: what lies where.

    width: characters of a line. verbose: whether all rows and names are shown.
    """

    command: Sequence[str] = ("pytest", "-m", "perf")
    reports: Sequence[str] = ()
    width: int = WIDTH
    verbose: bool = False


@dataclass(frozen=True, slots=True)
class _Screen:
    run: Run
    decision: Decision
    about: About
    by_name: Mapping[str, Result]


def screen(run: Run, about: About) -> Iterator[ScreenLine]:
    """The whole screen; its last line is the answer."""
    decision = run.decision
    shown = _Screen(run, decision, about, {result.name: result for result in run.results})
    for ground in decision.grounds:
        yield from _ground(shown, ground)

    for name, why in attributed([result.judgement for result in run.results]):
        yield from wrapped(f"{name}: {why}", about.width)

    for count in (Verdict.IMPROVED, ADVISORY):
        yield from _names(shown, count)

    bracketed = unjudged(result.judgement for result in run.results)
    for text in (*bracketed, *skips(run.skipped, verbose=about.verbose), *seen(decision.resolutions)):
        yield from wrapped(text, about.width)

    yield from _bands(run.results, about.width)
    yield from _next(shown)
    for report in about.reports:
        yield ScreenLine(report)

    yield from wrapped(counts(run, decision), about.width)
    yield ScreenLine(last_line(decision), COLOURS[decision.answer])


def last_line(decision: Decision) -> str:
    """The answer: "answer: NO-GO: 104 metrics in 12.3 min"."""
    return f"answer: {decision.answer}: {in_words(decision)}"


def in_words(decision: Decision) -> str:
    """What the answer rests on: "104 metrics in 12.3 min"."""
    total = sum(decision.counts.values())
    metrics = f"{total} metric{'' if total == 1 else 's'}"
    took = "" if decision.seconds is None else f" in {decision.seconds / 60:.1f} min"
    return f"{metrics}{took}"


def counts(run: Run, decision: Decision) -> str:
    """How many of each verdict, what weighs most first, and the largest change of those that passed."""
    said = [f"{count} {name}{_largest(run) if name == Verdict.PASS else ''}" for name, count in decision.counts.items()]
    return f"counts: {', '.join(said) or 'nothing was measured'}"


def _largest(run: Run) -> str:
    """The PASS that moved most, either way."""
    passed = [result for result in run.results if counted_as(result) == Verdict.PASS]
    changes = [(result.judgement.numbers.change, result.name) for result in passed]
    moved = [(abs(change), change, name) for change, name in changes if change is not None]
    if not moved:
        return ""

    _, change, name = max(moved)
    return f" (at most {format_percent(change)}: {name})"


def _ground(shown: _Screen, ground: Ground) -> Iterator[ScreenLine]:
    colour = "red" if ground.blocks else "yellow"
    regressed = [found for name in ground.names if (found := shown.by_name.get(name)) and _is_regressed(found)]
    is_alone = len(ground.names) == 1 and not regressed
    whose = f"{_moved(shown, ground.names[0])}: " if is_alone and ground.names != (THE_RUN,) else ""
    yield from wrapped(f"{'NO-GO' if ground.blocks else 'open'}: {whose}{ground.text}", shown.about.width, colour)
    if regressed:
        yield from _rows(shown, regressed, colour)
    elif not is_alone:
        yield from _listed(shown, [_moved(shown, name) for name in ground.names], "  ")


def _is_regressed(result: Result) -> bool:
    return result.judgement.verdict is Verdict.REGRESSED


def _rows(shown: _Screen, regressed: Sequence[Result], colour: str) -> Iterator[ScreenLine]:
    """The metrics of one cause, what costs the decode step most first; then, where that is unknown, by their change."""
    in_order = sorted(regressed, key=_cost)
    some = in_order if shown.about.verbose else in_order[:MOST_ROWS]
    rows = [("metric", "change", "step", "interval", "base", "now"), *map(_row, some)]
    if not any(result.judgement.step for result in some):
        rows = [(*row[:2], *row[3:]) for row in rows]

    last = len(rows[0]) - 1
    lines, _ = fitted(rows, shown.about.width - 2, drop=(last, last - 1, last - 2))
    yield from (ScreenLine(f"  {line}", colour) for line in lines[1:])
    if len(some) < len(in_order):
        yield ScreenLine(f"  and {len(in_order) - len(some)} more (-v)", colour)


def _cost(result: Result) -> tuple[float, float]:
    step, change = result.judgement.step, result.judgement.numbers.change or 0.0
    return (-step.change if step else 0.0, -abs(change))


def _row(result: Result) -> tuple[str, ...]:
    numbers, unit, step = result.judgement.numbers, result.judgement.metric.unit, result.judgement.step
    return (
        result.name,
        "" if numbers.change is None else format_percent(numbers.change),
        f"step {format_percent(step.change)}" if step else "",
        f"[{format_interval(numbers.lo, numbers.hi)}]",
        *("" if value is None else format_value(value, unit) for value in (numbers.base, numbers.measured)),
    )


def _moved(shown: _Screen, name: str) -> str:
    """A metric that is open, with its change: in brackets where that is not judged."""
    found = shown.by_name.get(name)
    if found is None or found.judgement.numbers.change is None:
        return name

    return f"{name} {cells(found.judgement, ('change',))[0]}"


def _names(shown: _Screen, count: str) -> Iterator[ScreenLine]:
    """What is counted as `count`, by name, unless there is none."""
    names = [_named(outcome) for outcome in shown.run.outcomes if counted_as(outcome) == count]
    if names:
        yield from _listed(shown, names, f"{count}: ")


def _named(outcome: Result | Failed) -> str:
    """What only is shown says its verdict and its change, which no count has."""
    if isinstance(outcome, Failed) or counted_as(outcome) != ADVISORY:
        return outcome.name

    change = outcome.judgement.numbers.change
    moved = "" if change is None else f" {format_percent(change)}"
    return f"{outcome.name} {outcome.judgement.verdict}{moved}"


def _listed(shown: _Screen, names: Sequence[str], before: str) -> Iterator[ScreenLine]:
    most = len(names) if shown.about.verbose else MOST_NAMES
    more = f" and {len(names) - most} more (-v)" if len(names) > most else ""
    yield from wrapped(f"{before}{', '.join(names[:most])}{more}", shown.about.width)


def skips(skipped: Collection[Skipped], *, verbose: bool) -> Iterator[str]:
    """One line for each reason: a host with few GPUs skips dozens of tests for one.

    verbose: each is said whole; else those that begin alike ("no GPU: ...") are one, which the first stands for.
    """
    groups: dict[str, list[Skipped]] = {}
    for test in skipped:
        groups.setdefault(test.reason if verbose else _beginning(test.reason), []).append(test)

    for tests in groups.values():
        whose = tests[0].nodeid if len(tests) == 1 else f"{len(tests)} tests"
        others = len({test.reason for test in tests}) - 1
        more = f", and {others} more reason{'s' * (others > 1)} of this kind (-v)" if others else ""
        yield f"skipped: {whose}: {tests[0].reason}{more}"


def _beginning(reason: str) -> str:
    """What is missing, without what that would have been for; all of a reason that does not say it so."""
    return reason.rpartition(": ")[0] or reason


def seen(resolutions: Iterable[Resolution]) -> Iterator[str]:
    """The smallest slowdowns that would have been found, of a middle metric and of the worst."""
    said = []
    for found in resolutions:
        typical, worst = (format_percent(change, signed=False) for change in (found.typical, found.worst))
        said.append(f"{_KINDS[found.kind]} by {typical}{'' if typical == worst else f' ({found.metric}: {worst})'}")
    if said:
        yield f"would have been found: a slowdown of {', of '.join(said)}"


def _bands(results: Sequence[Result], width: int) -> Iterator[ScreenLine]:
    """Bands that recorded metrics cannot keep, as lines to be pasted: never broken."""
    unkept = {result.name: result.band for result in results if result.band and not result.band.is_kept}
    if unkept:
        count = f"{len(unkept)} band{'' if len(unkept) == 1 else 's'}"
        yield from wrapped(f"{count} cannot be kept here; paste into the ini file, or accept what stays open:", width)
        yield from (ScreenLine(line) for line in ini_lines(list(unkept.items())))


def _next(shown: _Screen) -> Iterator[ScreenLine]:
    """The command, ready to be pasted: broken only where a shell reads on."""
    command = next_command(shown.run, shown.decision, shown.about.command)
    if command:
        first, *others = _continued(command, shown.about.width)
        yield ScreenLine(f"next: {first}")
        yield from (ScreenLine(f"      {line}") for line in others)


def _continued(words: Sequence[str], width: int) -> list[str]:
    """Quoted words in lines that leave room for the margin where they can; a backslash ends each but the last."""
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + len(word) + 3 > width - len("next: "):
            lines.append(word)
        else:
            lines[-1] += f" {word}"

    return [*(f"{line} \\" for line in lines[:-1]), lines[-1]]


def wrapped(text: str, width: int, colour: str = "") -> Iterator[ScreenLine]:
    """`text` in lines of `width`; no name is broken, and no number stands without its unit."""
    kept = _UNIT.sub(_STUCK, text)
    lines = textwrap.wrap(kept, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    yield from (ScreenLine(line.replace(_STUCK, " "), colour) for line in lines)
