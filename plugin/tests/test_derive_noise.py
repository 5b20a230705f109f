"""The noise that stands in for hosts without sessions of their own: every number comes from the data beside it."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from types import ModuleType

import numpy as np
import pytest

from pytest_decodegate.gate.stats.noise import Variance, session_variance

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def derive_noise(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("derive_noise")
    sys.modules.pop("derive_noise")


def test_what_is_shipped_is_what_the_data_give(derive_noise: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert derive_noise.main([]) == 0
    shipped = json.loads(capsys.readouterr().out)
    kernels = shipped["kernel/graph/gang"]
    assert 1.0 < kernels["process_df"] < 1.5
    assert 0.003 < kernels["session_sd"] < 0.0045, "between cards of four hosts; of two alone it was 0.0018"
    streaming = shipped["kernel/graph/gang/streaming"]
    assert 2.5 < streaming["session_sd"] / kernels["session_sd"] < 4, "cards differ in how fast their memory is"
    assert int(streaming["session_source"].split()[0]) >= derive_noise.LEAST_METRICS
    assert int(kernels["session_source"].split()[0]) >= derive_noise.LEAST_PAIRS
    assert shipped["serving/host/window"]["session_source"].startswith("assumed")
    starts = shipped["serving/host/server"]
    assert 0.004 < starts["process_sd"] < 0.006, "24 starts on one H200"
    assert starts["process_df"] == shipped["serving"]["process_df"], "one host does not tell how alike metrics are"


def test_a_number_that_was_changed_by_hand_is_found(
    derive_noise: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    edited = tmp_path / "noise.json"
    edited.write_text(derive_noise.SHIPPED.read_text().replace('"session_df": ', '"session_df": 1'))
    monkeypatch.setattr(derive_noise, "SHIPPED", edited)
    assert derive_noise.main([]) == 1
    assert derive_noise.main(["--write"]) == 0
    assert derive_noise.main([]) == 0


def test_sessions_that_other_code_timed_are_not_compared(derive_noise: ModuleType) -> None:
    one = derive_noise.Line("a", "x", "m", "kernel", "graph", "gang", 1e-5, 5, 0.001, 0.02)
    other = derive_noise.Line("b", "y", "m", "kernel", "graph", "gang", 1.1e-5, 5, 0.001, 0.02)
    assert derive_noise.session_means([one, other], 1e-6) == []
    again = derive_noise.Line("b", "x", "m", "kernel", "graph", "gang", 1.01e-5, 5, None, 0.02)
    (between, share) = derive_noise.session_means([one, again], 4e-6)[0]
    assert tuple(between) == pytest.approx((0.00995**2 / 2, 1.0), rel=1e-3)
    assert share == pytest.approx((1e-6 + 4e-6) / 2 / 5)
    assert session_variance([(between, share)], 4.0) > 0


def test_a_stored_baseline_gives_its_sessions(derive_noise: ModuleType, tmp_path: Path) -> None:
    from stack_baselines import baseline, session

    from pytest_decodegate.baseline.benchmark_json import dumps

    stored = baseline(1, session(1), session(2))
    path = tmp_path / "stored.json"
    path.write_bytes(dumps(stored))
    lines = list(derive_noise.of_baseline(path, "here", "x"))
    assert [(line.metric, line.host, line.processes) for line in lines] == [("gemm", "here", 5)] * 2
    assert lines[0].sd > 0


@pytest.fixture
def shipped(derive_noise: ModuleType, tmp_path: Path) -> Path:
    """A folder of baselines in which one metric has two sessions, and was timed so before its inputs took turns."""
    from stack_baselines import baseline, session

    from pytest_decodegate.baseline.benchmark_json import dumps

    stored = baseline(1, session(1), session(2, 1.01e-5))
    (tmp_path / "NVIDIA-H200-x1").mkdir()
    (tmp_path / "NVIDIA-H200-x1" / "0001_a.json").write_bytes(dumps(stored))
    return tmp_path


def test_shipped_sessions_are_part_of_the_data(derive_noise: ModuleType, shipped: Path) -> None:
    found = [line for line in derive_noise.lines(baselines=shipped) if line.metric == "gemm"]
    assert [line.timing for line in found] == ["NVIDIA-H200-x1/0001_a.json"] * 2
    assert found[0].host != found[1].host
    assert len(derive_noise.session_means(found, 1e-6)) == 1


def test_what_the_data_hold_already_is_not_taken_twice(derive_noise: ModuleType, shipped: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.json"
    first, _ = derive_noise.shipped_lines(shipped)
    data.write_text(json.dumps([asdict(replace(first, host="here", timing="a"))]))
    assert [line.host for line in derive_noise.lines(data, shipped)] == ["here", "session s2"]


def test_an_old_line_streams_memory_as_what_ships_of_its_metric_does(derive_noise: ModuleType, tmp_path: Path) -> None:
    from stack_baselines import baseline, session

    from pytest_decodegate.baseline.benchmark_json import dumps

    (tmp_path / "NVIDIA-H200-x1").mkdir()
    fast = baseline(1, replace(session(1), telemetry={"medians": {"memory_share": 0.9}}))
    (tmp_path / "NVIDIA-H200-x1" / "0001_a.json").write_bytes(dumps(fast))
    old = {
        name: replace(line, metric=name, level=1.0, streams=None)
        for name in ("gemm", "gone")
        for line in derive_noise.shipped_lines(tmp_path)
    }
    data = tmp_path / "data.json"
    data.write_text(json.dumps([asdict(line) for line in old.values()]))
    found = derive_noise.lines(data, tmp_path)
    assert [(line.metric, line.streams) for line in found] == [("gemm", True), ("gone", None), ("gemm", True)]
    assert [line.noise_class.streams for line in found] == [True, False, True]


def test_what_is_timed_in_another_way_since_is_no_evidence_of_today(
    derive_noise: ModuleType, shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drifted = tmp_path / "drifted.json"
    drifted.write_text(json.dumps([{"files": "NVIDIA-*", "metrics": "gem?", "field": "places", "stored": None}]))
    monkeypatch.setattr(derive_noise, "DRIFTED", drifted)
    timings = {line.timing for line in derive_noise.shipped_lines(shipped)}
    assert timings == {f"NVIDIA-H200-x1/0001_a.json{derive_noise.CHANGED_SINCE}"}


def test_older_timings_are_asked_only_where_todays_say_too_little(derive_noise: ModuleType) -> None:
    def pair(metric: str, timing: str, apart: float) -> list[object]:
        levels = (1e-5, 1e-5 * (1 + apart))
        return [derive_noise.Line("h", timing, metric, "kernel", "graph", "gang", one, 5, 1e-3, 0.02) for one in levels]

    old = [line for n in range(4) for line in pair(f"old{n}", "b", 0.02)]
    today = [line for n in range(derive_noise.LEAST_PAIRS) for line in pair(f"new{n}", "x/1.json", 0.002)]
    assert len(derive_noise.class_means([*old, *today[2:]])) == 4 + derive_noise.LEAST_PAIRS - 1
    assert len(derive_noise.class_means([*old, *today])) == derive_noise.LEAST_PAIRS
    assert len(derive_noise.class_means([*old, *today], ever=True)) == 4 + derive_noise.LEAST_PAIRS


def test_what_needs_a_band_of_its_own_is_no_evidence_of_its_class(derive_noise: ModuleType) -> None:
    def pair(metric: str, band: float, apart: float) -> list[object]:
        levels = (1e-5, 1e-5 * (1 + apart))
        return [derive_noise.Line("h", "x", metric, "kernel", "graph", "gang", one, 5, 1e-3, band) for one in levels]

    usual = [line for n in range(9) for line in pair(f"k{n}", derive_noise.WIDEST_ALIKE, 0.003)]
    known = derive_noise.class_means(usual)
    assert len(known) == 9
    assert derive_noise.class_means([*usual, *pair("argmax[m=1]", 0.08, 0.056)]) == known


def test_the_newest_timing_of_a_metric_counts(derive_noise: ModuleType) -> None:
    def line(metric: str, timing: str) -> object:
        return derive_noise.Line("h", timing, metric, "kernel", "graph", "gang", 1e-5, 5, 1e-3, 0.02)

    some = [line("a", "x"), line("b", "x"), line("a", "y"), line("a", "y")]
    assert [(each.metric, each.timing) for each in derive_noise.newest(some)] == [("a", "y"), ("a", "y"), ("b", "x")]


@pytest.mark.parametrize(("scale", "df"), [(0.0015, 3.0), (0.0015, 6.0), (0.003, 10.0)])
def test_the_law_of_sessions_is_found_in_simulated_classes(derive_noise: ModuleType, scale: float, df: float) -> None:
    draw, laws = np.random.default_rng(2), []
    for _ in range(12):
        own = scale**2 * df / draw.chisquare(df, 100)
        seen = (own + 1e-7) * draw.chisquare(2, 100) / 2
        laws.append(derive_noise.session_law([(Variance(float(value), 2.0), 1e-7) for value in seen]))

    middle = sorted(law.df for law in laws)[6]
    assert 0.5 * df < middle < 1.7 * df
    assert fmean(law.scale for law in laws) == pytest.approx(scale, rel=0.1)
    assert sum(law.heaviest[1] <= df for law in laws) >= 9


def test_the_level_of_a_stack_is_no_noise_of_its_starts(derive_noise: ModuleType) -> None:
    """Two sets of equal scatter, one of a stack that is half as fast."""
    one = derive_noise.Starts("GPU 0", (0.0, 0.01, 0.02))
    slower = derive_noise.Starts("GPU 0", (1.0, 1.01, 1.02))
    found = derive_noise.derived([], [one, slower])[derive_noise.SERVER_STARTS]
    assert found.process_sd == pytest.approx(0.01)
    assert found.process_source.startswith("6 starts in 2 sets of one TPOT each, on GPU 0")


def test_few_metrics_say_little_of_tails(derive_noise: ModuleType) -> None:
    law = derive_noise.session_law([(Variance(1e-6, 1.0), 1e-8)] * 3)
    assert law.df == pytest.approx(derive_noise.USUAL_DF, rel=0.35)
