"""`decodegate selftest`: what the gate finds on this host of slowdowns that are known, because it makes them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import BadInput
from .two_stacks import measured

if TYPE_CHECKING:
    from ..gate.selftest import Tally, Trial

HEADER = ("kind", "slowdown", "found", "passed", "open", "failed", "expected")


def add(commands: Any) -> None:
    """Register the command with the subparsers `commands`."""
    parser = commands.add_parser(
        "selftest",
        help="slow the perf tests down by known amounts and say what the gate finds of it here",
        description="Measures this environment against itself, then with a spin in every timed burst and after every "
        "step of the servers of one side. Servers take two starts a pair, for as long as `-- --perf-budget 10m` "
        "allows, and `-- -k 'not tpot'` leaves them out. "
        "Exit status: 0 no false alarm and every slowdown of at least 1.5 bands found, 1 otherwise, 3 bad input.",
    )
    parser.add_argument("--slowdowns", default="1,2,3,5", metavar="PERCENTS", help="default: %(default)s")
    parser.add_argument(
        "--rank",
        type=int,
        metavar="N",
        help="slow only this rank of the collectives down, as a bad slot would; rank 0 is the kernels', too; servers "
        "are then not slowed down",
    )
    parser.add_argument("-m", dest="markers", metavar="EXPR", help="only perf tests that match this marker expression")
    parser.add_argument("arguments", nargs="*", metavar="PYTEST_ARGUMENT", help="passed to pytest; options after --")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from ..gate.selftest import findings, proven

    trials = list(_trials([0.0, *_fractions(options.slowdowns)], options))
    found = list(findings(trials))
    for line in _lines(trials, found):
        print(line)

    return int(not proven(trials, found))


def _trials(fractions: Sequence[float], options: argparse.Namespace) -> Iterator[Trial]:
    """One for each slowdown, until one does not come to its end: whoever pressed Ctrl-C means all of them."""
    for fraction in fractions:
        trial = _trial(fraction, options)
        yield trial
        if trial.unfinished:
            return


def _fractions(text: str) -> list[float]:
    try:
        percents = [float(part) for part in text.split(",")]
    except ValueError:
        percents = []
    if not percents or not all(0 < percent < 1000 for percent in percents):
        raise BadInput(f"--slowdowns: {text!r} is no list of percentages; write for example 1,2,3,5")

    return [percent / 100 for percent in percents]


def _trial(fraction: float, options: argparse.Namespace) -> Trial:
    from ..gate.selftest import Trial
    from ..settings.stack import Stack
    from ..workloads.runtime.slowdown import VARIABLE

    at = "" if options.rank is None else f"@{options.rank}"
    slow = ((VARIABLE, f"*={100 * fraction:g}%{at}"),) if fraction else ()
    run = measured(Stack(), Stack(env=slow), options.markers, options.arguments, options.typed)
    return Trial(fraction, options.rank, tuple(run.outcomes), run.unfinished)


def _lines(trials: Sequence[Trial], found: Sequence[Tally]) -> Iterator[str]:
    from ..gate.selftest import resolved
    from ..gate.text.quantity import format_percent
    from ..report.table import table

    yield from table([HEADER, *map(_cells, found)])
    yield ""
    for kind, fraction in resolved(trials).items():
        yield f"{kind}: a slowdown of {format_percent(fraction, signed=False)} would be found here"

    yield from _problems(trials)
    alarms = sum(tally.wrong for tally in found if tally.expected == "pass")
    missed = sum(tally.wrong for tally in found if tally.expected == "slower")
    yield f"false alarms: {alarms}; slowdowns missed: {missed}; not judged: {sum(tally.failed for tally in found)}"


def _problems(trials: Sequence[Trial]) -> Iterator[str]:
    """Why metrics were not judged, and why the test ended early."""
    from ..gate.decision import decide_all
    from ..gate.selftest import failed

    for trial in trials:
        unjudged = [replace(outcome, advisory=False) for outcome in trial.outcomes if failed(outcome)]
        yield from (f"not judged: {ground}" for ground in decide_all(unjudged).grounds if unjudged)
        if trial.unfinished:
            yield f"not finished: {trial.unfinished}"


def _cells(tally: Tally) -> tuple[str, ...]:
    from ..gate.text.quantity import format_percent

    where = "" if tally.rank is None or not tally.slowdown else f" in rank {tally.rank}"
    slowdown = f"{format_percent(tally.slowdown)}{where}" if tally.slowdown else "none"
    counts = (tally.slower, tally.passed, tally.open, tally.failed)
    return (tally.kind or "-", slowdown, *map(str, counts), tally.expected or "either")
