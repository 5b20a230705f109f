"""What a run on two stacks says, read back from its lines, as one table with one answer, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..gate.decision import ERROR, Decision, Row, decide_all, named
from ..gate.text.quantity import format_band, format_interval, format_percent, format_value
from .terminal import table

HEADER = ("metric", "base", "candidate", "change", "interval", "band", "verdict", "pairs")

SCHEMA = 1
"""Version of the JSON document."""


@dataclass(slots=True)
class Run:
    """A run on two stacks: its rows in the order they came, what the stacks were, and what was skipped and why.

    unfinished: why it did not come to its end. seconds: how long it took, where it came to its end.
    """

    rows: list[Row] = field(default_factory=list)
    stacks: Mapping[str, Any] = field(default_factory=dict)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    unfinished: str | None = "pytest did not come to its end"
    seconds: float | None = None

    @property
    def decision(self) -> Decision:
        """The answer."""
        return decide_all(self.rows, self.unfinished)


def read(path: Path) -> Run:
    """The run that wrote the report `path`; what a killed run has not written is missing, and the run unfinished."""
    run = Run()
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else (), start=1):
        try:
            _add(run, json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInput(f"{path}:{number}: not a line of a run on two stacks: {error!r}") from error

    return run


def _add(run: Run, line: Mapping[str, Any]) -> None:
    match line.get("event"):
        case "stacks":
            run.stacks = line
        case "skipped":
            run.skipped.append((line["test"], line["reason"]))
        case "failed":
            run.rows.append(_failed(line))
        case "launch":
            pass  # what a run cost is no finding
        case "end":
            run.unfinished, run.seconds = line["unfinished"], line["seconds"]
        case _:
            run.rows.append(_judged(line))


def _failed(line: Mapping[str, Any]) -> Row:
    return Row(
        line["metric"] or line["test"],
        ERROR,
        unit=line["unit"],
        base=line["base"],
        side=line["side"],
        advisory=line["advisory"],
        reasons=(line["reason"],),
    )


def _judged(line: Mapping[str, Any]) -> Row:
    numbers = ("base", "measured", "change", "lo", "hi", "confidence", "tolerance", "p_worse")
    return Row(
        line["metric"],
        line["verdict"],
        pairs=line["replicates"],
        reasons=tuple(line["reasons"]),
        notes=tuple(line["notes"]),
        **{name: line[name] for name in ("kind", "level", "unit", "advisory", *numbers)},
    )


def text(run: Run) -> str:
    """The table, the reasons by cause, and the answer in the last line."""
    return "\n".join([*_lines(run), ""])


def _lines(run: Run) -> Iterator[str]:
    if run.stacks:
        yield f"base:      {run.stacks['base']}"
        yield f"candidate: {run.stacks['candidate']}"
        yield from (f"differs:   {one}" for one in run.stacks["differences"])
        yield ""
    if run.rows:
        yield from table([HEADER, *map(_cells, run.rows)])
        yield ""

    yield from _skipped(run.skipped)
    decision = run.decision
    yield from (f"{'NO-GO' if cause.blocks else 'open'}: {cause}" for cause in decision.causes)
    if run.seconds is not None:
        yield f"took: {run.seconds / 60:.1f} min"

    yield f"answer: {decision.answer}"


def _skipped(skipped: Sequence[tuple[str, str]]) -> Iterator[str]:
    """One line for each reason: a host with few GPUs skips dozens of tests for one."""
    for why in dict.fromkeys(reason for _, reason in skipped):
        yield f"skipped: {named([test for test, reason in skipped if reason == why])}: {why}"


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        "-" if row.base is None else format_value(row.base, row.unit),
        "-" if row.measured is None else format_value(row.measured, row.unit),
        "-" if row.change is None else format_percent(row.change, beside=row.tolerance),
        format_interval(row.lo, row.hi, beside=row.tolerance),
        "-" if row.tolerance is None else format_band(row.tolerance),
        f"{row.verdict}{', advisory' if row.advisory else ''}",
        str(row.pairs or "-"),
    )


def document(run: Run) -> str:
    """The same as strict JSON: changes as fractions, + is worse; values in the metric's unit."""
    decision = run.decision
    whole = {
        "schema": SCHEMA,
        "answer": decision.answer,
        "exit_status": decision.answer.status,
        "unfinished": run.unfinished,
        "seconds": run.seconds,
        "stacks": {name: value for name, value in run.stacks.items() if name not in ("event", "session")},
        "causes": [asdict(cause) for cause in decision.causes],
        "metrics": [asdict(row) for row in run.rows],
        "skipped": [{"test": test, "reason": reason} for test, reason in run.skipped],
    }
    return json.dumps(whole, allow_nan=False, indent=1) + "\n"
