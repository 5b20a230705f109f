"""A comparison of stored baselines as JSON, for programs: values in the metric's unit, changes as fractions."""

from __future__ import annotations

import json
from typing import cast

from ..compare.pairs import Alone, Compared, Pair
from ..compare.standing import Found
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
        "alone": [_alone(one) for one in compared.alone],
    }
    return json.dumps(content, allow_nan=False, indent=1) + "\n"


def _pair(pair: Pair) -> dict[str, Json]:
    return {
        "reference": {"file": str(pair.base.path), "machine_class": pair.base.machine_class, "label": pair.base.label},
        "new": {"file": str(pair.new.path), "machine_class": pair.new.machine_class, "label": pair.new.label},
        "published": bool(pair.base.published or pair.new.published),
        "differences": [_difference(one) for one in pair.found],
        "metrics": [_metric(one) for one in pair.judgements],
        "only_in_reference": list(pair.only_base),
        "only_in_new": list(pair.only_new),
    }


def _alone(alone: Alone) -> dict[str, Json]:
    one = alone.baseline
    return {
        "file": str(one.path),
        "machine_class": one.machine_class,
        "missing_in": alone.missing_in,
        "metrics": list(one.metrics),
    }


def _difference(found: Found) -> Json:
    one = found.difference
    return {"field": one.field, "standing": found.standing, **_value("reference", one.base), **_value("new", one.new)}


def _value(side: str, value: Leaf) -> dict[str, Json]:
    """A side that has no such field has no key: null is a value that could not be read."""
    return {} if value is ABSENT else {side: cast("Json", value)}


def _metric(judgement: Judgement) -> Json:
    return {**as_json(judgement), "advice": list(advice(judgement))}
