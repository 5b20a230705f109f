"""What a run on two stacks says, as one table with one answer, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator

from ..gate.decision import is_together
from ..gate.result import Failed, Result
from ..gate.run import Run
from .fields import as_json
from .screen import About, screen
from .table import Column, Row, cells, table

HEADER = ("metric", "base", "candidate", "change", "interval", "band", "verdict", "pairs")
COLUMNS: tuple[Column, ...] = ("name", "base", "measured", "change", "interval", "band", "verdict", "pairs")
"""What stands under HEADER."""

SCHEMA = 3
"""Version of the JSON document."""


def text(run: Run, about: About) -> str:
    """The stacks, with -v the table, what does not pass by cause, and the answer in the last line."""
    return "\n".join([*_lines(run, about), ""])


def _lines(run: Run, about: About) -> Iterator[str]:
    if run.stacks:
        yield f"base:      {run.stacks.base}"
        yield f"candidate: {run.stacks.candidate}"
        yield from (f"differs:   {difference}" for difference in run.stacks.contrast.differences)
        yield ""
    if run.outcomes and about.verbose:
        yield from table([HEADER, *map(_cells, run.outcomes)])
        yield ""

    yield from (line.text for line in screen(run, about))


def _cells(outcome: Result | Failed) -> tuple[str, ...]:
    return cells(_row(outcome), COLUMNS, ", advisory" if outcome.advisory else "")


def _row(outcome: Result | Failed) -> Row:
    return outcome.judgement if isinstance(outcome, Result) else outcome


def unsettled(answer: bytes) -> list[str]:
    """The metrics that did not pass in the JSON document of an earlier run, but for what the run says of them together.

    Raises ValueError for a text that is no such document.
    """
    try:
        document = json.loads(answer)
        if document["schema"] != SCHEMA:
            raise ValueError(f"schema is {document['schema']!r}, this version writes {SCHEMA}")

        rows = [row for row in document["metrics"] if not row.get("passes") and not row.get("advisory")]
        return [str(row["metric"]) for row in rows if not is_together(str(row["metric"]))]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it has no {error}") from error


def document(run: Run) -> str:
    """The same as strict JSON: values in the metric's unit, changes as fractions of the base."""
    decision = run.decision
    whole = {
        "schema": SCHEMA,
        "answer": decision.answer,
        "exit_status": decision.answer.status,
        "unfinished": run.unfinished,
        "seconds": run.seconds,
        "stacks": as_json(run.stacks) if run.stacks else {},
        "causes": [as_json(ground) for ground in decision.grounds],
        "counts": dict(decision.counts),
        "resolutions": [as_json(resolution) for resolution in decision.resolutions],
        "metrics": [as_json(outcome) for outcome in run.outcomes],
        "skipped": [as_json(test) for test in run.skipped],
    }
    return json.dumps(whole, allow_nan=False, indent=1) + "\n"
