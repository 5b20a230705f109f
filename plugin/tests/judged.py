"""Builders of what a run says: results with the numbers that an answer depends on, and failures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest_decodegate.cause import Finding
from pytest_decodegate.gate.result import Result
from pytest_decodegate.gate.verdict import Basis, Judgement, Numbers, Verdict
from pytest_decodegate.metric import Kind, Level, Metric


def result(
    name: str,
    verdict: str,
    *,
    kind: Kind = "kernel",
    level: Level = "gang",
    tolerance: float = 0.02,
    pairs: int = 6,
    reasons: tuple[Finding, ...] = (),
    notes: tuple[Finding, ...] = (),
    advisory: bool = False,
    **numbers: float | None,
) -> Result:
    """A metric of two stacks; `numbers` are fields of Numbers."""
    metric = Metric.of(name, kind, tolerance=tolerance)
    basis = Basis(level, pairs, reference="stack")
    judgement = Judgement(metric, Verdict(verdict), basis, Numbers(**numbers), reasons, notes)
    return Result(f"t.py::test_{name}", judgement, advisory=advisory)


def changed(result: Result, *, name: str | None = None, advisory: bool | None = None, **fields: Any) -> Result:
    """`result` with another name, or with other fields of its judgement or its numbers."""
    judgement = result.judgement
    numbers = {field: fields.pop(field) for field in Numbers.__slots__ if field in fields}
    if "verdict" in fields:
        fields["verdict"] = Verdict(fields["verdict"])

    metric = replace(
        judgement.metric, name=name or judgement.metric.name, kind=fields.pop("kind", judgement.metric.kind)
    )
    judgement = replace(judgement, metric=metric, numbers=replace(judgement.numbers, **numbers), **fields)
    return replace(result, judgement=judgement, advisory=result.advisory if advisory is None else advisory)
