"""A run for other programs: a table as CSV, and gauges that Prometheus' node exporter reads from a text file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ..gate.decision import Answer, counted_as
from ..gate.result import Failed, Result
from ..gate.run import Run
from ..gate.verdict import Verdict
from ..printable import printable

COLUMNS: Final = (
    *("metric", "test", "verdict", "passes", "unit", "better", "measured", "base", "change", "lo", "hi"),
    *("tolerance", "replicates", "recorded"),
)
"""Of the CSV: levels in the unit, changes and tolerances as fractions of the base."""

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet would take for the start of a formula."""


def csv_table(outcomes: Sequence[Result | Failed]) -> str:
    """One row for each outcome, in the order of measurement; empty cells for what is not known."""
    written = io.StringIO()
    rows = csv.writer(written, lineterminator="\n")
    rows.writerow(COLUMNS)
    rows.writerows(map(_csv_row, outcomes))
    return written.getvalue()


def _csv_row(outcome: Result | Failed) -> tuple[object, ...]:
    counted = counted_as(outcome)
    if isinstance(outcome, Failed):
        base = outcome.numbers.base
        return (_text(outcome.name), _text(outcome.nodeid), counted, False, "", "", "", "" if base is None else base)

    metric, numbers = outcome.judgement.metric, outcome.judgement.numbers
    levels = (numbers.measured, numbers.base, numbers.change, numbers.lo, numbers.hi)
    return (
        *(metric.name, _text(outcome.nodeid), str(outcome.judgement.verdict), outcome.passes, metric.unit),
        *(metric.better, *("" if value is None else value for value in levels), metric.tolerance),
        *(outcome.judgement.basis.replicates, _text(outcome.recorded.name) if outcome.recorded else ""),
    )


def _text(foreign: str) -> str:
    """A cell that no spreadsheet computes."""
    shown = printable(foreign)
    return f"'{shown}" if shown.startswith(_FORMULA) else shown


GAUGES: Final[Mapping[str, str]] = {
    "measured": "Level of the metric, in its unit",
    "base": "Level that it is compared with, in its unit",
    "change_ratio": "Change against the base, a fraction",
    "change_low_ratio": "Lower end of the interval of the change, a fraction",
    "change_high_ratio": "Upper end of the interval of the change, a fraction",
    "tolerance_ratio": "Band, a fraction",
    "passes": "1 if the metric passed or was recorded, else 0",
    "verdict": "1 for the verdict of the metric",
}
"""Gauges of a metric: each is called decodegate_NAME and has the labels metric, unit and machine_class."""


def prometheus(run: Run, machine_class: str, now: float) -> str:
    """The text format of Prometheus, for the textfile collector of the node exporter. now: seconds since 1970."""
    lines = list(_of_run(run, machine_class, now))
    last = _last(run)
    for name, said in GAUGES.items():
        found = [line for outcome in last if (line := _gauge(name, outcome, machine_class))]
        if found:
            lines += [f"# HELP decodegate_{name} {said}", f"# TYPE decodegate_{name} gauge", *found]

    return "\n".join([*lines, ""])


def _of_run(run: Run, machine_class: str, now: float) -> Iterator[str]:
    of = _labels(machine_class=machine_class)
    answer = run.decision.answer
    yield "# HELP decodegate_answer 1 for the answer of the last run"
    yield "# TYPE decodegate_answer gauge"
    for each in Answer:
        yield f"decodegate_answer{_labels(answer=each, machine_class=machine_class)} {int(each is answer)}"

    yield "# HELP decodegate_finished 1 if the last run came to its end"
    yield "# TYPE decodegate_finished gauge"
    yield f"decodegate_finished{of} {int(run.unfinished is None)}"
    yield "# HELP decodegate_written_timestamp_seconds When this file was written"
    yield "# TYPE decodegate_written_timestamp_seconds gauge"
    yield f"decodegate_written_timestamp_seconds{of} {now:.3f}"


def _last(run: Run) -> list[Result]:
    """Each metric once: two samples with the same labels would make the whole file unreadable."""
    return list({result.name: result for result in run.results}.values())


def _gauge(name: str, result: Result, machine_class: str) -> str:
    judgement = result.judgement
    numbers, metric = judgement.numbers, judgement.metric
    values: Mapping[str, float | None] = {
        "measured": None if judgement.verdict is Verdict.WRONG_RESULT else numbers.measured,
        "base": numbers.base,
        "change_ratio": numbers.change,
        "change_low_ratio": numbers.lo,
        "change_high_ratio": numbers.hi,
        "tolerance_ratio": metric.tolerance,
        "passes": float(result.passes),
        "verdict": 1.0,
    }
    if (value := values[name]) is None:
        return ""

    more = {"verdict": counted_as(result)} if name == "verdict" else {}
    labels = _labels(metric=metric.name, unit=metric.unit, machine_class=machine_class, **more)
    return f"decodegate_{name}{labels} {value!r}"


def _labels(**labels: str) -> str:
    return "{" + ",".join(f'{name}="{_label(value)}"' for name, value in labels.items()) + "}"


def _label(value: str) -> str:
    return printable(value).replace("\\", "\\\\").replace('"', '\\"')
