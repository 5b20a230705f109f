"""The shipped baselines against the ways of timing of today: what has drifted is recorded again, or listed with why."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from perf_tests.test_decode_kernels import SMALL

from pytest_decodegate.baseline.reader import load
from pytest_decodegate.metric import FOLLOWS_STACK, Json, Metric, literal_brackets
from pytest_decodegate.workloads.collectives.allreduce import allreduce_fields, issued
from pytest_decodegate.workloads.collectives.alltoall import Direction, alltoall_fields, dispatch_counts, moved_elements
from pytest_decodegate.workloads.collectives.paths import ALLREDUCE, Shape
from pytest_decodegate.workloads.kimi import KIMI_K25
from pytest_decodegate.workloads.marlin.moe import layer_fields
from pytest_decodegate.workloads.ops import positions
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


def drifts(file: str, metric: Metric) -> list[Drift]:
    """The versions in which `metric` of `file` is behind (absent ones are); where none is, each field that differs."""
    stored = metric.contract
    behind = {name: now for name, now in versions_now(stored).items() if now is None or stored.get(name) != now}
    changed = behind or fields_that_differ(metric)
    return [Drift(file, metric.name, name, stored.get(name), now) for name, now in changed.items()]


def fields_that_differ(metric: Metric) -> dict[str, Json]:
    """By field what the code makes now, where the contract says something else; none for what it cannot make here."""
    made = made_now(metric.name)
    if made is None:
        return {}

    names = {*made, *metric.contract} - ELSEWHERE
    return {name: made.get(name) for name in sorted(names) if made.get(name) != metric.contract.get(name)}


ELSEWHERE = {
    *FOLLOWS_STACK,
    *("library", "communicators", "algorithm", "allocations"),  # what the path finds when it is prepared
    *("clock", "clock_version", "device", "mode", "duty_cycle", "calls"),  # of an op, by its device
}
"""Fields that only a GPU, or what ran on it, decides."""


def made_now(name: str) -> Mapping[str, Json] | None:
    """The contract of the metric `name` as the code makes it on a machine without a GPU; None if it makes none."""
    if found := re.fullmatch(r"allreduce_(\w+)\[(?:m=(\d+),)?world=(\d+)\]", name):
        return allreduce_now(found[1], int(found[2] or 1), int(found[3]))
    if found := re.fullmatch(r"alltoall_(dispatch|combine)\[m=(\d+),world=(\d+)\]", name):
        return alltoall_now("dispatch" if found[1] == "dispatch" else "combine", int(found[2]), int(found[3]))
    if found := re.fullmatch(r"marlin_moe\[m=(\d+)\]", name):
        return layer_fields(KIMI_K25.shard(8), int(found[1]), 0) | workload_fields("marlin")
    if found := re.fullmatch(r"(\w+)\[m=(\d+)\]", name):
        return kernel_now(found[1], int(found[2]))

    return None


def allreduce_now(path: str, tokens: int, ranks: int) -> Mapping[str, Json]:
    elements, calls = tokens * KIMI_K25.hidden, KIMI_K25.layer_allreduces
    own = allreduce_fields(elements, {"tokens": tokens})
    return {
        **issued(ALLREDUCE[path], path, calls, ranks),
        **own,
        **Shape([elements] * calls, [elements] * calls).contract,
    }


def alltoall_now(direction: Direction, tokens: int, ranks: int) -> Mapping[str, Json]:
    pytest.importorskip("torch", reason="the routing is drawn by torch")
    calls = KIMI_K25.moe_layers
    counts = moved_elements(direction, dispatch_counts(tokens, ranks, calls, 0))
    own = alltoall_fields(direction, tokens, 0, counts)
    # How all-to-all is issued is how AllReduce is: by torch, captured.
    return {**issued(ALLREDUCE["graph"], "graph", calls, ranks), **own, **Shape([1] * calls, [1] * calls).contract}


def kernel_now(op: str, tokens: int) -> Mapping[str, Json] | None:
    """The contract of a small kernel that also runs on a CPU; its cache is told of a GPU only."""
    if op not in SMALL or op not in MADE_ON_A_CPU:
        return None

    pytest.importorskip("vllm", reason="the op is vLLM's")
    factory, params = SMALL[op]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(positions, "needs_gpu", lambda _: None)  # kv_write cannot run here, and is made alike
        return factory(tokens=tokens, **params).contract


MADE_ON_A_CPU = {
    *("add_rms_norm", "silu_mul_experts", "silu_mul_shared"),
    *("rope", "q_a_norm", "kv_a_norm", "kv_write", "embedding", "scaled_add"),
}


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


@pytest.mark.parametrize(
    "name", ["allreduce_graph[m=8,world=4]", "alltoall_combine[m=8,world=2]", "marlin_moe[m=8]", "silu_mul_shared[m=8]"]
)
def test_a_field_that_the_code_fills_in_differently_is_a_drift_without_a_new_version(name: str) -> None:
    made = made_now(name)
    assert made is not None
    contract: dict[str, Json] = {**made, **clock_fields("cuda_event"), "kernels": {"k": 1}}
    assert drifts("H200", Metric(name, "s", "kernel", 0.02, contract)) == []

    size = "bytes" if "bytes" in contract else "tokens"
    more: list[dict[str, Json]] = [{size: 7}, {"since": "then"}]
    for changed in ({**contract, **one} for one in more):
        (drift,) = drifts("H200", Metric(name, "s", "kernel", 0.02, changed))
        assert (drift.field, drift.stored) in ((size, 7), ("since", "then"))
        assert f"is {drift.stored!r}, now {drift.now!r}" in unknown([drift], [])[0]


CURRENT = Metric("gemm[m=1]", "s", "kernel", 0.02, {**clock_fields("cuda_event"), **workload_fields("projection")})


def test_a_contract_of_today_has_not_drifted() -> None:
    assert drifts("H200", CURRENT) == []


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
