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
from pytest_decodegate.gate.decision import is_together
from pytest_decodegate.gate.materiality import weighed
from pytest_decodegate.gate.stats.recorded import NoiseClass, recorded
from pytest_decodegate.gate.verdict import judge
from pytest_decodegate.machine.cards import cards_of
from pytest_decodegate.machine.provenance import Provenance
from pytest_decodegate.metric import Json, Measurement, Replicate

CARD: dict[str, Json] = {"gpus": [{"bus_id": "0000:06:00.0", "uuid": "GPU-a"}]}


@pytest.fixture
def bench_gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    yield importlib.import_module("bench_gate")
    for name in ("bench_gate", "derive_noise"):
        sys.modules.pop(name)


def replicates(logs: tuple[float, ...]) -> tuple[Replicate, ...]:
    return tuple(Replicate((math.exp(log),)) for log in logs)


def test_its_metrics_are_those_of_a_run_on_two_cards(bench_gate: ModuleType) -> None:
    kinds = [each.found.kind for each in bench_gate.metrics()]
    assert kinds.count("kernel") >= 83
    assert kinds.count("collective") >= 21
    assert all(each.scatter > 0 for each in bench_gate.metrics())
    assert bench_gate.weights()["marlin_moe[m=8]"].share > 0.05


def test_what_is_promised_is_what_sessions_of_todays_contracts_say(bench_gate: ModuleType) -> None:
    promised, *others = bench_gate.worlds()
    assert promised.promised
    scale, df = promised.laws["kernel"]
    kernels = recorded(NoiseClass("kernel", "graph", "gang", "same"))
    assert scale * math.sqrt(df / (df - 2)) == pytest.approx(kernels.session_sd, rel=0.03)
    assert df == pytest.approx(kernels.session_df, rel=0.03)
    for other in others:
        assert not other.promised
        assert other.cards == "any"
        assert other.laws["kernel"][0] > scale


def test_metrics_differ_between_sessions_as_the_law_says(bench_gate: ModuleType) -> None:
    between = bench_gate.Between({"kernel": (0.001, 8.0), "collective": (0.003, 1e6)}, promised=False, why="")
    drawn = between.drawn(np.random.default_rng(1), ["kernel"] * 20_000 + ["collective"] * 10)
    assert np.sqrt((drawn[:20_000] ** 2).mean()) == pytest.approx(0.001 * math.sqrt(8 / 6), rel=0.03)
    assert drawn[20_000:] == pytest.approx(0.003, rel=0.02)


def test_it_judges_as_a_run_does(bench_gate: ModuleType) -> None:
    world = bench_gate.World(np.random.default_rng(2), bench_gate.worlds()[0], 2)
    stored = {}
    for each, sessions in zip(bench_gate.metrics(), world.base, strict=True):
        known = (
            Session(f"s{n}", "2026-01-01T00:00:00+00:00", "gang", replicates(logs), telemetry=CARD)
            for n, logs in enumerate(sessions)
        )
        stored[each.metric.name] = StoredMetric(each.metric, tuple(known))

    baseline = Baseline(Path("0001.json"), "here", "stack", Provenance({}, {}, {}), stored)
    for index in (3, 40):
        measured = replicates(world.measure(index, 0.0, 5))
        metric = bench_gate.metrics()[index].metric
        selection = Selection(Path(), baseline, cards=cards_of(CARD))
        judgement = judge(Measurement(metric, measured, "gang"), selection, looks=2)
        judgement = weighed(judgement, bench_gate.weights())
        found = bench_gate.judged(world, index, measured)
        assert found.verdict == judgement.verdict
        assert found.step == judgement.step
        for name in ("measured", "base", "change", "lo", "hi", "p_worse", "standard_error"):
            assert getattr(found.numbers, name) == pytest.approx(getattr(judgement.numbers, name))


def test_a_much_slower_metric_is_no_go_and_named(bench_gate: ModuleType) -> None:
    index = next(n for n, each in enumerate(bench_gate.metrics()) if each.metric.name == "marlin_moe[m=64]")
    run = bench_gate.run(bench_gate.World(np.random.default_rng(4), bench_gate.worlds()[0], 3), index)
    assert run.answer == "NO-GO"
    # The step that is mostly made of it may be slower, too.
    assert {name for name in run.blamed if not is_together(name)} == {"marlin_moe[m=64]"}


def test_a_cell_that_misses_a_target_is_not_kept(bench_gate: ModuleType) -> None:
    runs = bench_gate.simulate(bench_gate.Job(0, 5, 1, 3))
    good = [
        replace(run, answer="GO" if run.slower is None else "NO-GO", blamed=(run.slower,), half_width=0.005)
        for run in runs
    ]
    cell = bench_gate.Cell(bench_gate.worlds()[0], 5, tuple(good))
    assert cell.kept
    assert "!" not in str(cell)

    missed = {
        "false NO-GO": lambda run: replace(run, answer="NO-GO") if run.slower is None else run,
        "NO-GO naming it": lambda run: replace(run, blamed=()),
        "kernels' half width": lambda run: replace(run, half_width=0.01),
    }
    for spoil in missed.values():
        bad = bench_gate.Cell(bench_gate.worlds()[0], 5, tuple(map(spoil, good)))
        assert not bad.kept
        assert "!" in str(bad)
