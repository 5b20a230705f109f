"""Verdicts and what else a run says as JSON: every field under its own name, so that a new field is written once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, cast

from ..cause import Finding
from ..gate.pairs import Contrast
from ..gate.result import ERROR, Failed, Result, Skipped
from ..gate.verdict import Basis, Judgement, Numbers
from ..machine.provenance import ABSENT, Difference
from ..metric import Json, Metric

PARTS: Final = (Judgement, Basis, Numbers, Metric, Contrast)
"""Parts of an outcome whose fields stand beside each other in one flat object."""

_NAMES: Final[Mapping[tuple[type, str], str]] = {
    (Metric, "name"): "metric",
    (Result, "nodeid"): "test",
    (Failed, "nodeid"): "test",
    (Skipped, "nodeid"): "test",
}
_LEFT_OUT: Final = frozenset({(Metric, "contract")})
"""The contract names every kernel that ran: it is in the baseline file, and what differs in it is named here."""


def as_json(outcome: object) -> dict[str, Json]:
    """One value of gate.result or gate.verdict: levels in the metric's unit, changes as fractions of the base."""
    found = _flat(outcome)
    if isinstance(outcome, Result):
        return {**found, "passes": outcome.passes}
    if isinstance(outcome, Failed):
        return {**found, "metric": outcome.name, "verdict": ERROR}

    return found


def _flat(value: object) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for field in fields(cast("Any", value)):
        key = type(value), field.name
        part = getattr(value, field.name)
        if isinstance(part, PARTS):
            found |= _flat(part)
        elif key not in _LEFT_OUT:
            found[_NAMES.get(key, field.name)] = plain(part)

    if isinstance(value, Metric):
        return {**found, "better": value.better}

    return {**found, "judged": value.verdict.judged} if isinstance(value, Judgement) else found


def plain(value: object) -> Json:
    """`value` as JSON: findings and dataclasses as objects, paths and enums as text, absent sides left out."""
    if isinstance(value, Finding):
        return dict(value.fields)
    if isinstance(value, Difference):
        sides = {"base": value.base, "new": value.new}
        return {"field": value.field, **{side: plain(leaf) for side, leaf in sides.items() if leaf is not ABSENT}}
    if isinstance(value, Enum | Path):
        return str(value)
    if is_dataclass(value):
        return _flat(value)
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(part) for part in value]

    return cast("Json", value)
