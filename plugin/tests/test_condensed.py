"""What a file keeps of a recording: six digits of the values, summaries of the rest, and no samples."""

from __future__ import annotations

import difflib
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import GEMM, H200, OLD, measured
from stored import kept
from strategies import baselines, json_values

from pytest_decodegate.baseline.benchmark_json import dumps
from pytest_decodegate.baseline.condensed import MEDIANS, condensed, rounded
from pytest_decodegate.baseline.reader import load
from pytest_decodegate.baseline.samples import sidecar
from pytest_decodegate.baseline.schema import Baseline, Session, StoredMetric
from pytest_decodegate.baseline.store import Store
from pytest_decodegate.machine.clocks import clock_shift
from pytest_decodegate.metric import Json, Measurement, Replicate

SHIPPED = Path(__file__).parents[2] / "baselines"


def recorded(*facts: dict[str, Json], telemetry: dict[str, Json] | None = None) -> Session:
    """The session as a file keeps it of replicates with these facts."""
    replicates = tuple(Replicate((1.23456789e-5,), one) for one in facts)
    session = Session("s1", "2026-01-01T00:00:00+00:00", "gang", replicates, telemetry or {})
    return condensed(StoredMetric(GEMM, (session,))).sessions[0]


def test_the_clock_of_every_sample_is_left_to_the_sidecar() -> None:
    session = recorded({"clock_mhz": 1980.0, "sample_mhz": [1980.0, None, 1979.0]})
    assert session.telemetry[MEDIANS] == {"clock_mhz": 1980}
    assert all("sample_mhz" not in path.read_text() for path in SHIPPED.glob("*/*.json"))


@settings(max_examples=60, deadline=None)
@given(one=baselines())
def test_condensing_again_changes_nothing(one: Baseline) -> None:
    assert kept(kept(one)) == kept(one)


@given(value=st.floats(1e-12, 1e12))
def test_a_value_keeps_six_digits(value: float) -> None:
    session = Session("s1", "", "gang", (Replicate((value,)),))
    (found,) = condensed(StoredMetric(GEMM, (session,))).sessions[0].values
    assert found == pytest.approx(value, rel=5.1e-6)
    assert float(f"{found:.6g}") == found


@given(value=json_values)
def test_rounding_keeps_everything_but_digits(value: Json) -> None:
    assert rounded(rounded(value)) == rounded(value)
    assert json.dumps(rounded(value)).count("[") == json.dumps(value).count("[")


@given(values=st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=7))
def test_of_numbers_the_median_over_replicates_is_kept(values: list[float]) -> None:
    facts: list[dict[str, Json]] = [{"hot": value} for value in values]
    found = recorded(*facts).telemetry[MEDIANS]
    assert isinstance(found, dict)
    assert found["hot"] == pytest.approx(statistics.median(values), rel=1e-4)


def test_lists_and_objects_of_numbers_are_condensed_place_by_place() -> None:
    facts: list[dict[str, Json]] = [
        {"ranks": [1.0, 10.0], "itl": {"p50": 3.0}, "formula": "v2", "odd": "a", "uneven": [1], "flag": True},
        {"ranks": [2.0, 30.0], "itl": {"p50": 5.0}, "formula": "v2", "odd": "b", "uneven": [1, 2], "flag": True},
        {"ranks": [9.0, 20.0], "itl": {"p50": 4.0}, "formula": "v2", "odd": "a", "uneven": [], "flag": True},
    ]
    session = recorded(*facts)
    assert session.telemetry[MEDIANS] == {
        "ranks": [2, 20],
        "itl": {"p50": 4},
        "formula": "v2",
        "odd": ["a", "b", "a"],
        "uneven": [[1], [1, 2], []],
        "flag": True,
    }
    assert [replicate.facts for replicate in session.replicates] == [{}, {}, {}]


def test_what_the_gate_reads_of_stored_replicates_stays_with_each() -> None:
    facts: list[dict[str, Json]] = [{"answers": [["{}"]], "hot": 1.0}, {"speculation": {"length": 2.5}, "hot": 2.0}]
    session = recorded(*facts)
    assert [replicate.facts for replicate in session.replicates] == [
        {"answers": [["{}"]]},
        {"speculation": {"length": 2.5}},
    ]


def watched(mhz: float, *, reasons: dict[str, Json] | None = None) -> dict[str, Json]:
    spread: dict[str, Json] = {"min": mhz - 10, "median": mhz, "max": mhz + 10}
    return {
        "gpu": "GPU 0",
        "bus_id": "0000:17:00.0",
        "pcie": "gen 5 x16",
        "pcie_most": "gen 5 x16",
        "samples": 30,
        "sm_clock_mhz": spread,
        "memory_clock_mhz": spread,
        "temperature_c": spread,
        "power_w": spread,
        "reasons": reasons or {},
        "unverifiable_processes": [],
    }


def report(*gpus: Json) -> dict[str, Json]:
    quiet: dict[str, Json] = {"sampler_errors": {}, "sampler_stuck": False, "steal_share": 0.0, "load_1m": 3.5}
    return {"telemetry": [{"gpus": list(gpus), **quiet}]}


def test_the_clock_watch_is_summed_up() -> None:
    idle = watched(345, reasons={"gpu_idle": 1.0})
    capped = {**watched(1700, reasons={"sw_power_cap": 0.5}), "pcie": "gen 1 x16"}
    telemetry = recorded({}, telemetry=report(watched(1980), idle, capped)).telemetry["telemetry"]
    sensors = {"sm_clock_mhz": {"median": 1980}, "temperature_c": {"max": 1990}, "power_w": {"median": 1980}}
    assert telemetry == [
        {
            "load_1m": 3.5,
            "gpus": [
                {"samples": 30, **sensors},
                {"samples": 30, "reasons": {"gpu_idle": 1}},
                {
                    "samples": 30,
                    "reasons": {"sw_power_cap": 0.5},
                    "sm_clock_mhz": {"median": 1700},
                    "temperature_c": {"max": 1710},
                    "power_w": {"median": 1700},
                    "pcie": "gen 1 x16",
                    "pcie_most": "gen 5 x16",
                },
            ],
        }
    ]


@given(old=st.integers(300, 2000), new=st.integers(300, 2000), idle=st.sampled_from([0.0, 0.5, 1.0]))
def test_clocks_differ_as_they_did_before_they_were_summed_up(old: int, new: int, idle: float) -> None:
    full = report(watched(old, reasons={"gpu_idle": idle} if idle else {}))
    run = report(watched(new))
    assert clock_shift([recorded({}, telemetry=full).telemetry], [run]) == clock_shift([full], [run])


@given(strange=st.dictionaries(st.sampled_from(["telemetry", "gpus"]), json_values))
def test_telemetry_of_other_tools_is_no_problem(strange: dict[str, Any]) -> None:
    recorded({}, telemetry=strange)
    recorded({}, telemetry={"telemetry": [strange]})


def test_the_samples_lie_beside_the_file_and_their_absence_harms_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store(tmp_path / "baselines")
    path = store.record(OLD, H200, "vllm", measured(), "s1")
    assert '"samples"' not in path.read_text()
    (line,) = sidecar(path).read_text().splitlines()
    samples = [[1e-5, 1e-5 * 1.01], [1e-5 * 1.02]]
    assert json.loads(line) == {"metric": "gemm", "unit": "s", "session": "s1", "samples": samples}
    assert "*.samples.jsonl\n" in (store.root / ".gitignore").read_text()

    before = load(path)
    sidecar(path).unlink()
    assert load(path) == before
    store.record(OLD, H200, "vllm", measured(), "s2")
    assert [json.loads(one)["session"] for one in sidecar(path).read_text().splitlines()] == ["s2"]
    assert len(load(path).metrics["gemm"].sessions) == 2


def test_a_gitignore_of_the_user_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store(tmp_path / "baselines")
    store.root.mkdir()
    (store.root / ".gitignore").write_text("mine\n")
    store.record(OLD, H200, "vllm", measured(), "s1")
    assert (store.root / ".gitignore").read_text() == "mine\n"


METRICS = 113


def of_a_run(session: str, factor: float) -> dict[str, Measurement]:
    """As many metrics as a perf run has, of five replicates with what kernels have as facts."""
    found = {}
    for number in range(METRICS):
        metric = replace(GEMM, name=f"gemm[n={number}]", contract={"clock": "cuda_event", "kernels": {f"k{number}": 1}})
        values = [factor * 1e-5 * (1 + number / 100 + i / 1000) for i in range(5)]
        replicates = tuple(Replicate((value, value * 1.01) * 15, {"hot": value * 3}) for value in values)
        found[metric.name] = Measurement(metric, replicates, "gang", report(watched(1980 + number % 3)))

    return found


def test_a_new_session_of_a_whole_run_is_a_diff_that_can_be_reviewed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two sessions of a run's real size, recorded metric by metric as a run does it: that takes five seconds."""
    monkeypatch.chdir(tmp_path)
    store = Store(tmp_path / "baselines")
    texts = []
    for session, factor in (("s1", 1.0), ("s2", 1.01)):
        for measurement in of_a_run(session, factor).values():
            path = store.record(OLD, H200, "vllm", measurement, session)
        texts.append(path.read_text().splitlines())

    diff = difflib.unified_diff(texts[0], texts[1], n=0, lineterm="")
    changed = [line for line in diff if line.startswith(("+ ", "- "))]
    assert METRICS < len(changed) < 200
    # Every line of a metric is a new one: what was recorded before is not touched.
    assert sum('"fullname"' in line and line.startswith("-") for line in changed) <= 1
    assert path.stat().st_size < 2 * METRICS * 1000


def test_the_shipped_files_can_be_reviewed() -> None:
    files = sorted(SHIPPED.glob("*/*.json"))
    assert files
    for path in files:
        baseline = load(path)
        sessions = sum(len(stored.sessions) for stored in baseline.metrics.values())
        assert path.stat().st_size < 30_000 + 1_600 * sessions
        assert len(path.read_text().splitlines()) < 3 * sessions + 40 + len(baseline.log)


def test_the_commit_is_that_of_the_session_not_of_the_last_write(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    told = {"id": "a" * 40, "time": None, "author_time": None, "dirty": True, "project": "x", "branch": "main"}
    monkeypatch.setattr("pytest_benchmark.utils.get_commit_info", lambda: told)
    store = Store(tmp_path / "baselines")
    path = store.record(OLD, H200, "vllm", measured(), "s1")
    told = {**told, "id": "b" * 40, "dirty": False}
    store.record(OLD, H200, "vllm", measured(), "s2")
    other = replace(GEMM, name="other")
    third = replace(GEMM, name="third")
    store.record(OLD, H200, "vllm", measured(third), "s1")  # whose code was loaded at its beginning
    told = {**told, "dirty": True}
    store.record(OLD, H200, "vllm", measured(other), "s2")
    told = {**told, "id": "c" * 40}
    store.edit(path, lambda one: (one, "nothing"), who="x", why="y")

    found = load(path).metrics
    commits = [(session.commit["id"], session.commit["dirty"]) for session in found["gemm"].sessions]
    assert commits == [("a" * 40, True), ("b" * 40, False)]
    assert found["other"].sessions[0].commit == found["gemm"].sessions[1].commit
    assert found["third"].sessions[0].commit == found["gemm"].sessions[0].commit
    assert json.loads(path.read_text())["commit_info"]["id"] == "b" * 40
    assert dumps(load(path)) == path.read_bytes()
