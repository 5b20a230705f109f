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


def card(uuid: str) -> dict[str, Json]:
    return {"gpus": [{"bus_id": "0000:06:00.0", "uuid": uuid}]}


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
    own, other, ever = bench_gate.worlds()
    assert (own.promised, other.promised, ever.promised) == (True, True, False)
    scale, df = own.laws["kernel"]
    kernels = recorded(NoiseClass("kernel", "graph", "gang", "same"))
    assert scale * math.sqrt(df / (df - 2)) == pytest.approx(kernels.session_sd, rel=0.03)
    assert df == pytest.approx(kernels.session_df, rel=0.03)
    assert bench_gate.HALF_WIDTH in own.targets
    assert own.memory == 0
    for each in (other, ever):
        assert each.cards == "any"
        assert each.laws["kernel"][0] > scale
        assert each.laws[bench_gate.STREAMING][0] > each.laws["kernel"][0]
        assert bench_gate.HALF_WIDTH not in each.targets


def test_what_kernels_that_stream_memory_differ_by_is_mostly_their_cards(bench_gate: ModuleType) -> None:
    assert 0.5 < bench_gate.part_in_step() < 0.9
    streaming = [each for each in bench_gate.metrics() if each.share]
    assert 10 < len(streaming) < 25
    assert all(each.found.streams for each in streaming)

    other = bench_gate.worlds()[1]
    worlds = [bench_gate.World(np.random.default_rng(seed), other, 1) for seed in range(80)]
    draws = np.array([world.base for world in worlds]).mean(axis=-1)
    levels = draws[:, [index for index, each in enumerate(bench_gate.metrics()) if each.share], 0]
    spread = np.median(levels.std(axis=0))
    known = recorded(NoiseClass("kernel", "graph", "gang", streams=True)).session_sd
    assert spread == pytest.approx(known, rel=0.2)
    alike = np.corrcoef(levels.T)
    assert np.median(alike[np.triu_indices_from(alike, 1)]) > 0.4


def test_metrics_differ_between_sessions_as_the_law_says(bench_gate: ModuleType) -> None:
    between = bench_gate.Between({"kernel": (0.001, 8.0), "collective": (0.003, 1e6)}, promised=False, why="")
    drawn = between.drawn(np.random.default_rng(1), ["kernel"] * 20_000 + ["collective"] * 10)
    assert np.sqrt((drawn[:20_000] ** 2).mean()) == pytest.approx(0.001 * math.sqrt(8 / 6), rel=0.03)
    assert drawn[20_000:] == pytest.approx(0.003, rel=0.02)


@pytest.mark.parametrize(("number", "here"), [(0, "GPU-a"), (1, "GPU-b")])
def test_it_judges_as_a_run_does(bench_gate: ModuleType, number: int, here: str) -> None:
    world = bench_gate.World(np.random.default_rng(2), bench_gate.worlds()[number], 2)
    stored = {}
    for each, sessions in zip(bench_gate.metrics(), world.base, strict=True):
        telemetry = {**card("GPU-a"), "medians": {"memory_share": each.share}}
        known = (
            Session(f"s{n}", "2026-01-01T00:00:00+00:00", "gang", replicates(logs), telemetry=telemetry)
            for n, logs in enumerate(sessions)
        )
        stored[each.metric.name] = StoredMetric(each.metric, tuple(known))

    baseline = Baseline(Path("0001.json"), "here", "stack", Provenance({}, {}, {}), stored)
    streaming = next(index for index, each in enumerate(bench_gate.metrics()) if each.share)
    for index in (3, 40, streaming):
        measured = replicates(world.measure(index, 0.0, 5))
        metric = bench_gate.metrics()[index].metric
        selection = Selection(Path(), baseline, cards=cards_of(card(here)))
        judgement = judge(Measurement(metric, measured, "gang"), selection, looks=2)
        judgement = weighed(judgement, bench_gate.weights())
        found = bench_gate.judged(world, index, measured)
        assert found.verdict == judgement.verdict
        assert found.step == judgement.step
        assert found.metric.tolerance == judgement.metric.tolerance == world.band(index)
        assert found.basis.streams == judgement.basis.streams
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
