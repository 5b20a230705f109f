"""What doctor says: checks as lines of text or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..fitness.check import Grade

if TYPE_CHECKING:
    from ..fitness.check import CheckOutcome
    from ..metric import Json

SCHEMA = 1


def lines(
    outcomes: Sequence[CheckOutcome], forecast: Sequence[str], minutes: int | None, seconds: float
) -> Iterator[str]:
    """A line for each check, with its cost and mend where there is something to mend; then the answer."""
    width = max(len(outcome.check.name) for outcome in outcomes)
    for outcome in outcomes:
        yield f"{outcome.grade.value:<4}  {outcome.check.name:<{width}}  {outcome.text}"
        if outcome.is_fault:
            indent = " " * (width + 8)
            yield f"{indent}costs: {outcome.check.cost}"
            yield f"{indent}mend:  {outcome.mend}"

    yield from (f"run   {line}" for line in forecast)
    if minutes is None:
        yield "run   how long a run takes here is not known before one is recorded here"

    yield f"{_answer(outcomes)} ({seconds:.0f} s)"


def as_json(outcomes: Sequence[CheckOutcome], forecast: Sequence[str], minutes: int | None, seconds: float) -> str:
    """The same as strict JSON. minutes: that a run of all that is stored takes, null where that is not known."""
    document: dict[str, Json] = {
        "schema": SCHEMA,
        "fit": not _named(outcomes, Grade.FAIL),
        "checks": [_document(outcome) for outcome in outcomes],
        "run": {"minutes": minutes, "lines": list(forecast)},
        "seconds": round(seconds, 1),
    }
    return json.dumps(document, indent=2, allow_nan=False)


def _document(outcome: CheckOutcome) -> Json:
    seen: list[Json] = [
        {"grade": symptom.grade.value, "text": symptom.text, "gpu": symptom.gpu} for symptom in outcome.symptoms
    ]
    return {
        "name": outcome.check.name,
        "grade": outcome.grade.value,
        "text": outcome.text,
        "seen": seen,
        "cost": outcome.check.cost if outcome.is_fault else None,
        "mend": outcome.mend if outcome.is_fault else None,
        "ends_a_run": outcome.check.early,
    }


def _answer(outcomes: Sequence[CheckOutcome]) -> str:
    failed, warned = (_named(outcomes, grade) for grade in (Grade.FAIL, Grade.WARN))
    if failed:
        return f"NOT FIT to gate: {', '.join(failed)}"

    return f"fit to gate, {len(warned)} warning{'' if len(warned) == 1 else 's'}"


def _named(outcomes: Sequence[CheckOutcome], grade: Grade) -> list[str]:
    return [outcome.check.name for outcome in outcomes if outcome.grade is grade]
