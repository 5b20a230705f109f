"""The noise that stands in for hosts without sessions of their own: every number comes from the data beside it."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from pytest_decodegate.gate.stats.noise import HETEROGENEITY_DF, session_variance

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def derive_noise(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("derive_noise")
    sys.modules.pop("derive_noise")


def test_what_is_shipped_is_what_the_data_give(derive_noise: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert derive_noise.main([]) == 0
    shipped = json.loads(capsys.readouterr().out)
    assert shipped["kernel/graph/gang"]["process_df"] == 1.2
    assert shipped["serving/host/window"]["session_source"].startswith("assumed")


def test_a_number_that_was_changed_by_hand_is_found(
    derive_noise: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    edited = tmp_path / "noise.json"
    edited.write_text(derive_noise.SHIPPED.read_text().replace("0.0025", "0.0010"))
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
    assert session_variance([(between, share)], HETEROGENEITY_DF) > 0


def test_a_stored_baseline_gives_its_sessions(derive_noise: ModuleType, tmp_path: Path) -> None:
    from stack_baselines import baseline, session

    from pytest_decodegate.baseline.benchmark_json import dumps

    stored = baseline(1, session(1), session(2))
    path = tmp_path / "stored.json"
    path.write_bytes(dumps(stored))
    lines = list(derive_noise.of_baseline(path, "here", "x"))
    assert [(line.metric, line.host, line.processes) for line in lines] == [("gemm", "here", 5)] * 2
    assert lines[0].sd > 0
