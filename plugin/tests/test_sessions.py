"""Sessions that accumulate in the store, and what a judgement makes of one, of five, and of an outdated one."""

from __future__ import annotations

import math
import subprocess
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from stack_baselines import GEMM, H200, NCCL, baseline, measured, run_of, session
from stored import kept

from pytest_decodegate.baseline.benchmark_json import dumps
from pytest_decodegate.baseline.reader import load
from pytest_decodegate.baseline.store import Store
from pytest_decodegate.gate.text.explain import explain
from pytest_decodegate.gate.verdict import Verdict, judge
from pytest_decodegate.machine.provenance import Provenance
from pytest_decodegate.metric import Measurement, Metric


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Store:
    monkeypatch.chdir(tmp_path)
    return Store(tmp_path / "baselines", lock_seconds=5)


def record(store: Store, run: Provenance, name: str, measurement: Measurement | None = None) -> Path:
    return store.record(run, H200, "stack", measurement or measured(), name)


def test_a_regression_of_a_recorded_stack_is_found_and_explained(store: Store) -> None:
    record(store, run_of(), "old")
    record(store, NCCL, "new", measured(1.2e-5))

    told = explain(judge(measured(1.2e-5), store.select(H200, NCCL, {"nccl"}, "gemm")))

    assert "gemm: REGRESSED: worse by more than the band of 2 %: +20.0 %" in told
    assert "0001_stack.json\n  - the only one that differs from this stack only in what was declared (nccl)" in told
    assert "- newer, left out: 0002_stack.json (this very stack)" in told


def test_the_files_that_a_session_writes_do_not_make_its_commit_dirty(store: Store, tmp_path: Path) -> None:
    """The baselines lie in the repository whose commit a session names."""
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    for step in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *step], cwd=tmp_path, check=True)

    other = replace(measured(), metric=Metric.of("other", "kernel"))
    found = [load(record(store, run_of(), "one", each)) for each in (measured(), other)][-1].metrics
    commits = [stored.sessions[0].commit for stored in found.values()]
    assert len(commits) == 2
    assert [commit["dirty"] for commit in commits] == [False, False]


CARDS = ("GPU-a", "GPU-b")


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (run_of(*CARDS, vbios=["96.00", "97.00"]), "vbios[1]: absent -> 97.00"),
        (replace(run_of(*CARDS), machine={**run_of().machine, "power_limit_w": 600}), "power_limit_w: 700 -> 600"),
        (run_of("GPU-a", "GPU-c"), "gpus[1].uuid: GPU-b -> GPU-c"),
    ],
    ids=["new VBIOS", "power limit", "GPU swapped"],
)
def test_a_baseline_older_than_the_machine_is_confounded_until_it_is_recorded_again(
    store: Store, run: Provenance, said: str
) -> None:
    record(store, run_of(*CARDS), "before")

    judgement = judge(measured(), store.select(H200, run, (), "gemm"))
    assert judgement.verdict == Verdict.CONFOUNDED
    assert said in judgement.reasons

    record(store, run, "after")
    assert judge(measured(), store.select(H200, run, (), "gemm")).verdict == Verdict.PASS


def test_five_sessions_narrow_the_interval(store: Store) -> None:
    widths = []
    for count, value in enumerate((1e-5, 1.004e-5, 0.997e-5, 1.002e-5, 0.999e-5), start=1):
        record(store, run_of(), f"s{count}", measured(value))
        judgement = judge(measured(), store.select(H200, run_of(), (), "gemm"))
        assert judgement.basis.sessions == count
        assert judgement.numbers.hi is not None
        assert judgement.numbers.lo is not None
        widths.append(math.log1p(judgement.numbers.hi) - math.log1p(judgement.numbers.lo))

    assert widths[4] < 0.85 * widths[0]
    assert fmean(widths[3:]) < fmean(widths[:2])


def test_one_session_says_what_it_cannot_see_and_what_stands_in(store: Store) -> None:
    record(store, run_of(), "s1")
    said = "one baseline session cannot show how much sessions differ; 0.30 % is taken until then (assumed: as for its"

    assert said in explain(judge(measured(), store.select(H200, run_of(), (), "gemm")))
    record(store, run_of(), "s2")
    assert said not in explain(judge(measured(), store.select(H200, run_of(), (), "gemm")))


@pytest.mark.parametrize("changed", [replace(GEMM, unit="B/s"), replace(GEMM, contract={"clock": "perf_counter"})])
def test_what_measures_something_else_loses_no_session(store: Store, changed: Metric) -> None:
    record(store, run_of(), "s1")
    record(store, run_of(), "s1", measured(metric=replace(GEMM, name="other")))
    record(store, run_of(), "s2", measured(metric=changed))
    record(store, run_of(), "s3", measured(metric=changed))
    record(store, run_of(), "s4")
    record(store, run_of(), "s4", measured(metric=replace(GEMM, name="other")))
    record(store, run_of(), "s4", measured(metric=replace(GEMM, name="third")))

    first, second = store.load_all(H200)
    assert [one.id for one in first.metrics["gemm"].sessions] == ["s1", "s4"]
    assert [one.id for one in second.metrics["gemm"].sessions] == ["s2", "s3"]
    assert [one.id for one in first.metrics["other"].sessions] == ["s1", "s4"]
    assert list(first.metrics) == ["gemm", "other"]
    assert list(second.metrics) == ["gemm", "third"]


def test_the_last_recorded_meaning_of_a_name_is_compared(store: Store) -> None:
    changed = replace(GEMM, contract={"clock": "perf_counter"})
    record(store, run_of(), "s1")
    second = record(store, run_of(), "s2", measured(metric=changed))

    selection = store.select(H200, run_of(), (), "gemm")
    assert selection.baseline is not None
    assert selection.baseline.path == second
    assert judge(measured(metric=changed), selection).verdict == Verdict.PASS


def test_a_file_that_changes_is_read_again_and_one_that_goes_is_left_out(store: Store) -> None:
    path = record(store, run_of(), "s1")
    other = record(store, NCCL, "s1")
    assert len(store.load_all(H200)) == 2
    again = Store(store.root)
    record(again, run_of(), "s2")

    assert [len(one.metrics["gemm"].sessions) for one in store.load_all(H200)] == [2, 1]
    assert store.load_all(H200)[0] is store.load_all(H200)[0]
    other.unlink()
    assert [one.path for one in store.load_all(H200)] == [path]


def test_a_file_removed_while_the_folder_is_read_is_left_out(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    path = record(store, run_of(), "s1")
    gone = path.with_name("0009_merged.json")
    monkeypatch.setattr(store, "files", lambda _: [path, gone])

    assert [one.path for one in store.load_all(H200)] == [path]


def test_a_baseline_file_round_trips_through_the_folder(store: Store) -> None:
    written = baseline(1, session(1), root=store.root / H200)
    written.path.parent.mkdir(parents=True)
    written.path.write_bytes(dumps(written))

    assert store.load_all(H200) == [kept(written)]
    assert store.classes() == [H200]
