"""One result in one line: for the terminal as it comes, for the JSON report, for JUnit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ..gate.text.explain import headline
from .rates import line

if TYPE_CHECKING:
    from ..metric import Json
    from .result import Result


def told(result: Result) -> str:
    """What the terminal shows when the verdict comes: "allreduce[...]: PASS: +0.4 % [...] stays inside ..."."""
    judgement = result.judgement
    recorded = f"; recorded in {result.recorded.name}" if result.recorded else ""
    achieved = f"; {rates}" if (rates := line(result.rates)) else ""
    return f"{judgement.metric.name}: {judgement.verdict}: {headline(judgement)}{achieved}{recorded}"


def as_json(result: Result) -> dict[str, Json]:
    """Everything a program needs: values in the metric's unit, changes as fractions, + is worse."""
    judgement = result.judgement
    return {
        "metric": judgement.metric.name,
        "verdict": str(judgement.verdict),
        "passes": result.passes,
        "kind": judgement.metric.kind,
        "unit": judgement.metric.unit,
        "better": judgement.metric.better,
        "measured": judgement.measured,
        "base": judgement.base,
        "change": judgement.change,
        "lo": judgement.lo,
        "hi": judgement.hi,
        "confidence": judgement.confidence,
        "tolerance": judgement.metric.tolerance,
        "replicates": judgement.replicates,
        "paired": judgement.paired,
        "looks": judgement.looks,
        "p_worse": judgement.p_worse,
        "advisory": result.advisory,
        "level": judgement.level,
        "sessions": judgement.sessions,
        "reasons": [dict(reason.fields) for reason in judgement.reasons],
        "baseline": str(judgement.baseline) if judgement.baseline else None,
        "choice": list(judgement.choice),
        "notes": [dict(note.fields) for note in judgement.notes],
        "rates": dict(result.rates),
        "ranks": list(result.ranks),
        "changed": list(judgement.changed),
        "recorded": str(result.recorded) if result.recorded else None,
        "test": result.nodeid,
    }


def json_line(result: Result, session_id: str) -> str:
    """One line of --perf-report: strict JSON, no newline."""
    return json.dumps({"session": session_id, **as_json(result)}, allow_nan=False)


def properties(result: Result) -> list[tuple[str, object]]:
    """JUnit properties of the test; names carry the metric, because a test may gate several."""
    name = result.judgement.metric.name
    shown = ("verdict", "measured", "base", "change", "lo", "hi", "unit", "tolerance", "replicates")
    fields = as_json(result)
    return [(f"perf.{name}.{field}", fields[field]) for field in shown if fields[field] is not None]
