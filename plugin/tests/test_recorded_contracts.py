"""The shipped baselines against the ways of timing of today: what has drifted is recorded again, or listed with why."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from pytest_decodegate.baseline.reader import load
from pytest_decodegate.metric import Json, Metric, literal_brackets
from pytest_decodegate.workloads.versions import CLOCKS, WORKLOADS, clock_fields, workload_fields

SHIPPED = Path(__file__).parents[2] / "baselines"
LISTED = Path(__file__).parent / "data" / "drifted_contracts.json"


@dataclass(frozen=True)
class Drift:
    """A field of a stored contract that the code would fill in differently now. file: its folder's name."""

    file: str
    metric: str
    field: str
    stored: Json
    now: Json


@dataclass(frozen=True)
class Listed:
    """A drift that is known, until the metrics are recorded again. files, metrics: patterns. stored: None is absent."""

    files: str
    metrics: str
    field: str
    stored: Json
    why: str

    def covers(self, drift: Drift) -> bool:
        """Whether `drift` is one of these."""
        named = fnmatchcase(drift.metric, literal_brackets(self.metrics)) and fnmatchcase(drift.file, self.files)
        return named and (self.field, self.stored) == (drift.field, drift.stored)


def versions_now(contract: Mapping[str, Json]) -> Mapping[str, Json]:
    """The versions that the code would write into `contract`; none for a clock or workload that has gone."""
    return {
        "clock_version": CLOCKS.get(str(contract.get("clock"))),
        "workload_version": WORKLOADS.get(str(contract.get("workload"))),
    }


def drifts(file: str, metric: Metric) -> Iterator[Drift]:
    """The versions in which `metric` of `file` is behind; absent ones are."""
    for name, now in versions_now(metric.contract).items():
        stored = metric.contract.get(name)
        if stored is None or stored != now:
            yield Drift(file, metric.name, name, stored, now)


def shipped() -> list[Drift]:
    """Every drift in the baselines of the repository that were recorded."""
    files = [load(path) for path in sorted(SHIPPED.glob("*/*.json"))]
    metrics = [(file, stored.metric) for file in files if not file.published for stored in file.metrics.values()]
    assert metrics
    return [drift for file, metric in metrics for drift in drifts(file.path.parent.name, metric)]


def listed() -> list[Listed]:
    """The known drifts, as data."""
    return [Listed(**line) for line in json.loads(LISTED.read_text(encoding="utf-8"))]


def unknown(found: Sequence[Drift], known: Sequence[Listed]) -> list[str]:
    """What to do about each drift that is not listed, in words."""
    return [
        f"{drift.file}: {drift.metric}: contract.{drift.field} is {drift.stored!r}, now {drift.now!r}: "
        f"record it again (`pytest -m perf --perf-record=all --perf-only '{drift.metric}'`), or add a line to "
        f"{LISTED.name} that says why it waits"
        for drift in found
        if not any(line.covers(drift) for line in known)
    ]


def test_no_shipped_contract_has_drifted_but_those_listed() -> None:
    assert unknown(shipped(), listed()) == []


def test_nothing_is_listed_that_has_not_drifted() -> None:
    found = shipped()
    assert [line for line in listed() if not any(map(line.covers, found))] == []


def test_every_line_of_the_list_has_a_reason() -> None:
    assert all(line.why.strip() for line in listed())


CURRENT = Metric("gemm[m=1]", "s", "kernel", 0.02, {**clock_fields("cuda_event"), **workload_fields("projection")})


def test_a_contract_of_today_has_not_drifted() -> None:
    assert list(drifts("H200", CURRENT)) == []


@pytest.mark.parametrize("field", ["clock_version", "workload_version"])
@pytest.mark.parametrize("stored", [0, None])
def test_an_older_version_is_a_drift_whose_remedy_is_named(field: str, stored: Json) -> None:
    old = Metric(CURRENT.name, "s", "kernel", 0.02, {**CURRENT.contract, field: stored})
    (drift,) = drifts("H200", old)
    (said,) = unknown([drift], [])
    assert f"contract.{field} is {stored!r}, now {CURRENT.contract[field]!r}" in said
    assert "--perf-record=all --perf-only 'gemm[m=1]'" in said

    line = Listed("H*", "gemm[m=1]", field, stored, "x")
    assert unknown([drift], [line]) == []
    assert unknown([drift], [Listed("H*", "gemm[m=2]", field, stored, "x"), Listed("H*", "*", field, 7, "x")]) == [said]
