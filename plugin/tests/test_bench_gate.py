"""bench_gate simulates the run that operators see: with the gate's own functions, and able to miss its targets."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from pytest_decodegate.baseline.schema import Baseline, Session, StoredMetric
from pytest_decodegate.baseline.selection import Selection
from pytest_decodegate.gate.verdict import judge
from pytest_decodegate.machine.provenance import Provenance
from pytest_decodegate.metric import Measurement, Metric, Replicate


@pytest.fixture
def bench_gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    yield importlib.import_module("bench_gate")
    for name in ("bench_gate", "derive_noise"):
        sys.modules.pop(name)


def replicates(logs: tuple[float, ...]) -> tuple[Replicate, ...]:
    return tuple(Replicate((math.exp(log),)) for log in logs)


def test_its_metrics_are_those_of_a_host_that_had_not_recorded(bench_gate: ModuleType) -> None:
    kinds = [metric.found.kind for metric in bench_gate.metrics()]
    assert (kinds.count("kernel"), kinds.count("collective")) == (83, 21)
    assert all(metric.scatter > 0 for metric in bench_gate.metrics())


def test_it_judges_as_a_run_does(bench_gate: ModuleType) -> None:
    world = bench_gate.World(np.random.default_rng(2), bench_gate.TAILS[0], 2)
    stored = {}
    for metric, band, sessions in zip(world.metrics, world.bands, world.base, strict=True):
        contract = {"mode": metric.found.mode}
        known = Metric(metric.name, "s", metric.found.kind, band, contract)
        recorded = (
            Session(f"s{n}", "2026-01-01T00:00:00+00:00", "gang", replicates(logs)) for n, logs in enumerate(sessions)
        )
        stored[metric.name] = StoredMetric(known, tuple(recorded))

    baseline = Baseline(Path("0001.json"), "here", "stack", Provenance({}, {}, {}), stored)
    index, values = 3, world.measure(3, 0.0, 5)
    name = world.metrics[index].name
    judgement = judge(
        Measurement(stored[name].metric, replicates(values), "gang"), Selection(Path(), baseline), looks=2
    )
    found = bench_gate.compare(values, world.base[index], world.peers(index), world.metrics[index].found, 2)
    assert judgement.numbers.hi == pytest.approx(math.expm1(found.hi))
    assert judgement.numbers.p_worse == pytest.approx(found.p_worse)
    assert judgement.verdict == bench_gate.decide(found, world.bands[index])


def test_a_much_slower_metric_is_no_go_and_named_alone(bench_gate: ModuleType) -> None:
    run = bench_gate.run(bench_gate.World(np.random.default_rng(4), bench_gate.TAILS[0], 3), 7)
    assert (run.answer, run.blamed) == ("NO-GO", (7,))


def test_a_cell_that_misses_a_target_is_not_kept(bench_gate: ModuleType) -> None:
    runs = bench_gate.simulate(bench_gate.Job(bench_gate.TAILS[0], 5, 1, 3))
    good = [replace(run, answer="GO" if run.slower is None else "NO-GO", blamed=(run.slower,)) for run in runs]
    cell = bench_gate.Cell(bench_gate.TAILS[0], 5, tuple(good))
    assert cell.kept
    assert "!" not in str(cell)

    missed = {
        "false NO-GO": lambda run: replace(run, answer="NO-GO") if run.slower is None else run,
        "NO-GO naming it": lambda run: replace(run, blamed=()),
        "kernels' half width": lambda run: replace(run, half_width=0.01),
    }
    for spoil in missed.values():
        bad = bench_gate.Cell(bench_gate.TAILS[0], 5, tuple(map(spoil, good)))
        assert not bad.kept
        assert "!" in str(bad)
