"""One outcome in one line: for the terminal as it comes, for the JSON report, for JUnit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ..gate.decision import Decision
from ..gate.result import Ended, Failed, Result, Skipped, Stacks
from ..gate.text.explain import confirmation_text, headline
from ..gate.text.quantity import format_band
from .fields import as_json
from .rates import line

if TYPE_CHECKING:
    from ..gate.bands import RecordedBand
    from ..metric import Json

EVENTS = {Failed: "failed", Skipped: "skipped", Stacks: "stacks", Ended: "end", Decision: "answer"}
"""How lines of the report that are no verdicts call themselves; others are called as their class."""


_STEP = ("step_change", "step_worst")
"""JUnit properties of what a change means for the decode step, as fractions of it: as it is, and at its worse end."""


def json_line(outcome: object, session_id: str) -> str:
    """One line of results.jsonl: strict JSON, no newline."""
    event: dict[str, Json] = {}
    if not isinstance(outcome, Result):
        event = {"event": EVENTS.get(type(outcome), type(outcome).__name__.lower())}

    return json.dumps({"session": session_id, **event, **as_json(outcome)}, allow_nan=False)


def verdict_line(result: Result) -> str:
    """What the terminal shows when the verdict comes: "allreduce[...]: PASS: +0.4 % [...] stays inside ..."."""
    judgement = result.judgement
    recorded = f"; recorded in {result.recorded.name}{_under(result.band)}" if result.recorded else ""
    confirmed = f"; {confirmation_text(judgement.confirmation)}" if judgement.confirmation else ""
    achieved = f"; {rates}" if (rates := line(result.rates)) else ""
    again = f" (try {result.attempt})" if result.attempt > 1 else ""
    return f"{result.name}{again}: {judgement.verdict}: {headline(judgement)}{confirmed}{achieved}{recorded}"


def _under(band: RecordedBand | None) -> str:
    """The band where it is not the test's own, and what makes the metric noisy or its level doubtful."""
    if band is None:
        return ""

    why = "; ".join(band.why)
    if band.is_kept:
        return f" ({why})" if why else ""

    return f" under a band of {format_band(band.kept)}, for {format_band(band.own)} cannot be kept here: {why}"


def properties(result: Result) -> list[tuple[str, object]]:
    """JUnit properties of the test; names carry the metric, as a test may gate several, and each later try."""
    shown = ("verdict", "measured", "base", "change", "lo", "hi", "judged", "unit", "tolerance", "replicates")
    step = result.judgement.step
    fields = {**as_json(result), "step_change": step and step.change, "step_worst": step and step.worst}
    again = f".try{result.attempt}" if result.attempt > 1 else ""
    known = [field for field in (*shown, *_STEP) if fields[field] is not None]
    return [(f"perf.{result.name}{again}.{field}", fields[field]) for field in known]
