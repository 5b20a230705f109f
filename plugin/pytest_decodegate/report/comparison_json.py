"""A comparison of stored baselines as JSON, for programs: values in the metric's unit, changes as fractions."""

from __future__ import annotations

import json
from typing import cast

from ..compare.pairs import Alone, BaselinePair, Compared
from ..compare.standing import StandingDifference
from ..gate.text.advice import advice
from ..gate.verdict import Judgement
from ..machine.provenance import ABSENT, Leaf
from ..metric import Json
from .fields import as_json


def document(compared: Compared) -> str:
    """Strict JSON; `change`, `lo` and `hi` are worse where they are above 0, whatever the unit."""
    content = {
        "status": compared.status,
        "pairs": [_pair(pair) for pair in compared.pairs],
        "alone": [_alone(each) for each in compared.alone],
    }
    return json.dumps(content, allow_nan=False, indent=1) + "\n"


def _pair(pair: BaselinePair) -> dict[str, Json]:
    return {
        "reference": {"file": str(pair.base.path), "machine_class": pair.base.machine_class, "label": pair.base.label},
        "new": {"file": str(pair.new.path), "machine_class": pair.new.machine_class, "label": pair.new.label},
        "published": bool(pair.base.published or pair.new.published),
        "differences": [_difference(each) for each in pair.found],
        "metrics": [_metric(judgement) for judgement in pair.judgements],
        "only_in_reference": list(pair.only_base),
        "only_in_new": list(pair.only_new),
        "same_recording": list(pair.same),
    }


def _alone(alone: Alone) -> dict[str, Json]:
    baseline = alone.baseline
    return {
        "file": str(baseline.path),
        "machine_class": baseline.machine_class,
        "missing_in": alone.missing_in,
        "metrics": list(baseline.metrics),
    }


def _difference(found: StandingDifference) -> Json:
    difference = found.difference
    sides = {**_value("reference", difference.base), **_value("new", difference.new)}
    return {"field": difference.field, "standing": found.standing, **sides}


def _value(side: str, value: Leaf) -> dict[str, Json]:
    """A side that has no such field has no key: null is a value that could not be read."""
    return {} if value is ABSENT else {side: cast("Json", value)}


def _metric(judgement: Judgement) -> Json:
    return {**as_json(judgement), "advice": list(advice(judgement))}
