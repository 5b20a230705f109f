"""Precedence of the verdicts, and what each of them says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_decodegate.baseline.schema import Baseline, Session, StoredMetric
from pytest_decodegate.baseline.selection import Selection, contrast
from pytest_decodegate.cause import Cause, Finding
from pytest_decodegate.client.stream import TPOT_FORMULA
from pytest_decodegate.gate.text.advice import advice
from pytest_decodegate.gate.text.explain import explain
from pytest_decodegate.gate.verdict import Judgement, Verdict, judge
from pytest_decodegate.machine.provenance import Provenance
from pytest_decodegate.metric import Json, Level, Measurement, Metric, Replicate

MOE = Metric("marlin_moe[m=8]", "s", "kernel", 0.02, {"clock": "cuda_event", "graph": True})
TPOT = Metric("decode[c=8]", "tok/s", "serving", 0.03)
OLD = Provenance({"gpus": [{"name": "H200", "power_limit_w": 700}]}, {"nccl": "2.28.3", "env:NCCL_PROTO": "LL"}, {})
NEW = replace(OLD, stack={"nccl": "2.28.9", "env:NCCL_PROTO": "LL128"})
FOLDER = Path("baselines/NVIDIA-H200-x2-NVLink")
QUIET = (1.0, 1.001, 0.999, 1.002, 0.998)
NOISY = (1.0, 1.05, 0.95, 1.02, 0.97)
THROTTLED = Finding("throttled", Cause.THROTTLING)


def replicates(value: float, factors: Sequence[float] = QUIET) -> tuple[Replicate, ...]:
    return tuple(Replicate((value * factor, value * factor * 1.0001)) for factor in factors)


def measured(metric: Metric, value: float, factors: Sequence[float] = QUIET, level: Level = "gang") -> Measurement:
    return Measurement(metric, replicates(value, factors), level)


def stored(metric: Metric, value: float, sessions: int = 1, level: Level = "gang") -> StoredMetric:
    recorded = (
        Session(f"s{number}", "2026-01-01T00:00:00+00:00", level, replicates(value)) for number in range(sessions)
    )
    return StoredMetric(metric, tuple(recorded))


def selected(*metrics: StoredMetric, new: Provenance = OLD, declared: Sequence[str] = ()) -> Selection:
    path = FOLDER / "0001_vllm-0.26.0.json"
    baseline = Baseline(path, "NVIDIA-H200-x2-NVLink", "vllm-0.26.0", OLD, {one.metric.name: one for one in metrics})
    return contrast(baseline, new, declared)


SELECTED = selected(stored(MOE, 78.1e-6))


@pytest.mark.parametrize(
    ("value", "factors", "verdict"),
    [
        (78.2e-6, QUIET, Verdict.PASS),
        (70.0e-6, QUIET, Verdict.IMPROVED),
        (86.0e-6, QUIET, Verdict.REGRESSED),
        (79.0e-6, NOISY, Verdict.INCONCLUSIVE),
    ],
)
def test_statistics_decide_when_nothing_stands_against_it(
    value: float, factors: Sequence[float], verdict: Verdict
) -> None:
    judgement = judge(measured(MOE, value, factors), SELECTED)

    assert judgement.verdict == verdict
    assert judgement.numbers.measured == pytest.approx(value, rel=4e-3)
    assert judgement.numbers.base == pytest.approx(78.1e-6, rel=1e-3)
    assert judgement.numbers.change == pytest.approx(value / 78.1e-6 - 1, abs=4e-3)
    assert judgement.numbers.lo is not None
    assert judgement.numbers.hi is not None
    assert judgement.numbers.lo < value / 78.1e-6 - 1 < judgement.numbers.hi
    assert (judgement.basis.replicates, judgement.basis.sessions, judgement.numbers.confidence) == (5, 1, 0.925)


def test_a_rate_that_falls_is_a_regression() -> None:
    judgement = judge(measured(TPOT, 75.0), selected(stored(TPOT, 82.4)))

    assert judgement.verdict == Verdict.REGRESSED
    assert judgement.numbers.change == pytest.approx(75.0 / 82.4 - 1, abs=2e-3)
    assert judgement.numbers.base == pytest.approx(82.4, rel=1e-3)


def test_each_verdict_gives_way_to_the_one_before_it() -> None:
    confounded = selected(stored(replace(MOE, unit="B/s"), 1.0), new=NEW)
    no_metric = selected(stored(TPOT, 80.0), new=NEW)
    slow = measured(MOE, 1.0)

    assert judge(slow, no_metric, invalid=[THROTTLED], wrong="rank 0 differs").verdict == Verdict.WRONG_RESULT
    assert judge(slow, no_metric, invalid=[THROTTLED]).verdict == Verdict.INVALID
    assert judge(slow, no_metric).verdict == Verdict.NO_BASELINE
    assert judge(slow, confounded).verdict == Verdict.CONFOUNDED
    assert judge(slow, SELECTED).verdict == Verdict.REGRESSED
    assert [verdict for verdict in Verdict if verdict.passes] == [Verdict.PASS, Verdict.IMPROVED]


def test_samples_can_make_a_measurement_invalid() -> None:
    frozen = replace(measured(MOE, 78e-6), replicates=(Replicate((78e-6,) * 30),) * 5)
    judgement = judge(frozen, SELECTED, invalid=[Finding("GPU 1: hardware thermal slowdown", Cause.THROTTLING)])

    assert judgement.verdict == Verdict.INVALID
    assert judgement.reasons[0] == "GPU 1: hardware thermal slowdown"
    assert len(judgement.reasons) == 6


def test_a_wrong_result_needs_no_time() -> None:
    judgement = judge(Measurement(MOE, (), "gang"), Selection(FOLDER), wrong="relative error 0.4")

    assert (judgement.verdict, judgement.numbers.measured) == (Verdict.WRONG_RESULT, None)


@pytest.mark.parametrize(
    ("base", "reason"),
    [
        (replace(MOE, unit="B/s"), "unit: 'B/s' in the baseline, 's' now"),
        (replace(MOE, kind="cpu"), "kind: 'cpu' in the baseline, 'kernel' now"),
        (
            replace(MOE, contract={"clock": "perf_counter", "graph": True}),
            "contract.clock: 'perf_counter' in the baseline, 'cuda_event' now",
        ),
        (replace(MOE, contract={"clock": "cuda_event"}), "contract.graph: absent in the baseline, True now"),
    ],
)
def test_another_measurement_under_the_same_name_confounds(base: Metric, reason: str) -> None:
    judgement = judge(measured(MOE, 78e-6), selected(stored(base, 78e-6)))

    assert judgement.verdict == Verdict.CONFOUNDED
    assert judgement.reasons == (reason,)
    assert "record it again with `pytest -m perf --perf-record=all`" in advice(judgement)[0]


def test_an_older_formula_is_another_measurement_and_says_why() -> None:
    now = replace(TPOT, contract={"formula": TPOT_FORMULA})
    before = replace(TPOT, contract={"formula": "tpot_client_v1"})
    judgement = judge(measured(now, 80.0), selected(stored(before, 80.0)))
    assert judgement.verdict == Verdict.CONFOUNDED
    (reason,) = judgement.reasons
    assert reason.startswith("contract.formula: 'tpot_client_v1' in the baseline, 'tpot_client_v2' now; the older one")


@pytest.mark.parametrize("field", ["clock_version", "workload_version", "places"])
def test_another_way_of_timing_is_another_measurement_and_says_so(field: str) -> None:
    now = replace(MOE, contract={**MOE.contract, field: 2})
    judgement = judge(measured(now, 78e-6), selected(stored(MOE, 78e-6)))
    assert judgement.verdict == Verdict.CONFOUNDED
    said = f"contract.{field}: 'absent' in the baseline, 2 now; the code times it in another way since"
    assert judgement.reasons[0].replace("absent in", "'absent' in").startswith(said)


def test_replicates_of_another_level_confound() -> None:
    judgement = judge(measured(MOE, 78e-6), selected(stored(MOE, 78e-6, level="process")))
    assert judgement.reasons == ("level: 'process' in the baseline, 'gang' now",)


def test_a_new_band_is_no_new_measurement() -> None:
    assert judge(measured(replace(MOE, tolerance=0.2), 86e-6), SELECTED).verdict == Verdict.PASS


def test_undeclared_differences_name_the_command_that_declares_them() -> None:
    judgement = judge(measured(MOE, 78e-6), selected(stored(MOE, 78e-6), new=NEW, declared=["nccl"]))

    assert judgement.verdict == Verdict.CONFOUNDED
    assert judgement.reasons == ("env:NCCL_PROTO: LL -> LL128",)
    assert "`pytest -m perf --perf-change nccl,env:NCCL_PROTO`" in advice(judgement)[0]


def test_hashes_are_declared_by_their_component() -> None:
    new = replace(OLD, stack={**OLD.stack, "nccl_sha256": "ab12"})
    judgement = judge(measured(MOE, 78e-6), selected(stored(MOE, 78e-6), new=new))

    assert advice(judgement)[0].endswith("`pytest -m perf --perf-change nccl`")


def test_a_machine_that_changed_cannot_be_declared() -> None:
    new = replace(OLD, machine={"gpus": [{"name": "H200", "power_limit_w": 500}]})
    judgement = judge(measured(MOE, 78e-6), selected(stored(MOE, 78e-6), new=new))

    assert judgement.reasons == ("gpus[0].power_limit_w: 700 -> 500",)
    assert advice(judgement)[0].startswith("gpus[0].power_limit_w cannot be declared")


def test_declared_changes_are_listed_and_judged() -> None:
    selection = selected(stored(MOE, 78e-6), new=NEW, declared=["nccl", "env:NCCL_PROTO"])
    judgement = judge(measured(MOE, 90e-6), selection)

    assert judgement.verdict == Verdict.REGRESSED
    assert judgement.changed == ("nccl: 2.28.3 -> 2.28.9", "env:NCCL_PROTO: LL -> LL128")


def test_peers_are_the_other_metrics_of_the_class() -> None:
    noisy = StoredMetric(
        replace(MOE, name="peer"), (Session("s0", "2026-01-01T00:00:00+00:00", "gang", replicates(1, NOISY)),)
    )
    alone = judge(measured(MOE, 78e-6), selected(stored(MOE, 78e-6)))
    with_peer = judge(measured(MOE, 78e-6), selected(stored(MOE, 78e-6), noisy))
    others = (replace(noisy.metric, kind="collective"), replace(noisy.metric, contract={"mode": "eager"}))
    of_others = [
        judge(measured(MOE, 78e-6), selected(stored(MOE, 78e-6), replace(noisy, metric=other))) for other in others
    ]

    assert alone.numbers.hi is not None
    assert with_peer.numbers.hi is not None
    assert (with_peer.numbers.standard_error or 0) > 1.01 * (alone.numbers.standard_error or 0)
    assert [judgement.numbers.hi for judgement in of_others] == [alone.numbers.hi] * 2


def text(judgement: Judgement) -> str:
    explained = explain(judgement)
    assert all(len(line) < 200 for line in explained.splitlines())
    return explained


def test_regressed_says_what_how_much_how_sure_against_what_and_what_next() -> None:
    judgement = judge(measured(MOE, 86e-6), SELECTED)
    lines = text(judgement).splitlines()

    assert lines[0].startswith("marlin_moe[m=8]: REGRESSED: worse by more than the band of 2 %: +10.1 % [+")
    assert lines[1] == "  86.0 us now, 78.1 us in the baseline; lower is better"
    ends = "5 % beyond its worse end, 2.5 % beyond the better"
    assert lines[2] == f"  92.5 % interval ({ends}) from 5 replicates (fresh gangs) against 1 session"
    assert lines[3].startswith("  one baseline session cannot show how much sessions differ; 0.30 % is taken until")
    assert lines[4] == "  baseline: baselines/NVIDIA-H200-x2-NVLink/0001_vllm-0.26.0.json"
    assert lines[5] == "  next: nothing in the provenance differs, so run once more"


def test_regressed_after_a_declared_change_suspects_the_change() -> None:
    selection = selected(stored(MOE, 78e-6), new=NEW, declared=["nccl", "env:NCCL_PROTO"])
    explained = text(judge(measured(MOE, 90e-6), selection))

    assert "changed: nccl: 2.28.3 -> 2.28.9" in explained
    assert "next: undo the declared changes one at a time" in explained


def test_pass_is_short_of_advice() -> None:
    explained = text(judge(measured(MOE, 78.1e-6), SELECTED))

    assert "PASS: +" in explained
    assert "stays inside the band of 2 %" in explained
    assert "next:" not in explained


def test_several_sessions_assume_nothing_aloud() -> None:
    explained = text(judge(measured(MOE, 78.1e-6), selected(stored(MOE, 78e-6, sessions=4))))

    assert "against 4 sessions" in explained
    assert "assumed" not in explained


def test_improved_asks_for_suspicion_and_how_to_keep_it() -> None:
    same_stack = text(judge(measured(MOE, 70e-6), SELECTED))
    declared = selected(stored(MOE, 78e-6), new=NEW, declared=["nccl", "env:NCCL_PROTO"])
    new_stack = text(judge(measured(MOE, 70e-6), declared))

    assert "IMPROVED: better by more than 2 %: -10.4 %" in same_stack
    assert "be suspicious first" in same_stack
    assert "`decodegate baselines accept` makes it gate" in same_stack
    assert "`pytest -m perf --perf-record=all` writes a new file" in new_stack


def test_inconclusive_says_what_would_settle_it() -> None:
    explained = text(judge(measured(MOE, 79.22e-6), SELECTED))

    assert "INCONCLUSIVE: " in explained
    assert "next: 1 more baseline session(s) of the old stack would have settled it" in explained
    assert "next: a band of 2.1 % would have passed" in explained


def test_inconclusive_counts_replicates_when_processes_are_noisy() -> None:
    explained = text(judge(measured(MOE, 78.1e-6, (0.98, 1.024)), SELECTED))

    assert re.search(r"next: \d+ replicates would have settled it: `--perf-replicates \d+`", explained)


def test_inconclusive_says_when_measuring_more_cannot_settle_it() -> None:
    explained = text(judge(measured(MOE, 79.65e-6), SELECTED))

    assert "neither 30 replicates nor 10 baseline sessions would have settled it" in explained


def test_no_baseline_says_where_it_looked_and_how_to_record() -> None:
    no_file = text(judge(measured(MOE, 78.1e-6), Selection(FOLDER)))
    no_metric = text(judge(measured(TPOT, 82.4), SELECTED))

    assert "NO_BASELINE: measured 78.1 us, with nothing to compare it with" in no_file
    assert f"- {FOLDER} has no metric 'marlin_moe[m=8]'" in no_file
    assert "`pytest -m perf --perf-record=missing`" in no_file
    assert "measured 82.4 tok/s" in no_metric
    assert "0001_vllm-0.26.0.json has no metric 'decode[c=8]'" in no_metric


def test_confounded_lists_what_differs() -> None:
    explained = text(judge(measured(MOE, 78.1e-6), selected(stored(MOE, 78e-6), new=NEW)))

    first = explained.splitlines()[0]
    assert "CONFOUNDED: measured 78.1 us, against 78.0 us, a change of +0.13 % [" in first
    assert first.endswith("(+ is worse), not judged: more than the declared change differs from the baseline")
    assert "- nccl: 2.28.3 -> 2.28.9" in explained


def test_invalid_and_wrong_result_say_why() -> None:
    invalid = text(
        judge(measured(MOE, 78.1e-6), SELECTED, invalid=[Finding("GPU 0: foreign process 4711", Cause.STRANGER)])
    )
    wrong = text(judge(Measurement(MOE, (), "gang"), SELECTED, wrong="rank 1: relative error 0.31, allowed 0.01"))

    assert "INVALID: measured 78.1 us, against 78.1 us, a change of +0.00 % [" in invalid
    assert "not judged: the measurement broke a rule" in invalid
    assert "- GPU 0: foreign process 4711" in invalid
    assert "WRONG_RESULT: the numbers are wrong, so the speed was not looked at" in wrong
    assert "- rank 1: relative error 0.31, allowed 0.01" in wrong
    assert "next: mend the result first" in wrong


def test_windows_of_one_server_say_what_they_cannot_see() -> None:
    explained = text(judge(measured(TPOT, 82.4, level="window"), selected(stored(TPOT, 82.4, level="window"))))

    assert "windows of one server cannot see what a restart" in explained


def test_several_looks_are_admitted() -> None:
    explained = text(judge(measured(MOE, 78.1e-6), SELECTED, looks=2))
    # Two looks at one session share most of their noise: stricter than one (92.5 %), less than looks apart (95.5 %).
    ends = "5 % beyond its worse end, 2.5 % beyond the better over 2 looks"
    (confidence,) = re.findall(rf"([\d.]+) % interval \({ends}\)", explained)
    assert 92.6 < float(confidence) < 95.4


# --- what ran

SWAPPED = "a kernel appeared: humming, 2 a call"


def ran(metric: Metric, **fields: Json) -> Metric:
    return replace(metric, contract={**metric.contract, **fields})


def test_a_swapped_kernel_without_a_declared_change_is_another_measurement() -> None:
    known = selected(stored(ran(MOE, kernels={"marlin": 2}), 78.1e-6))
    judgement = judge(measured(ran(MOE, kernels={"humming": 2}), 78.1e-6), known)

    assert judgement.verdict == Verdict.CONFOUNDED
    assert judgement.reasons == (SWAPPED, "a kernel is gone: marlin, 2 a call before")


def test_a_swapped_kernel_under_a_declared_change_is_named_while_the_time_decides() -> None:
    declared = ["nccl", "env:NCCL_PROTO"]
    known = selected(stored(ran(MOE, kernels={"marlin": 2}, backend="MARLIN"), 78.1e-6), new=NEW, declared=declared)
    judgement = judge(measured(ran(MOE, kernels={"humming": 2}, backend="HUMMING"), 78.1e-6), known)

    assert judgement.verdict == Verdict.PASS
    assert SWAPPED in judgement.notes
    assert "backend changed: MARLIN -> HUMMING" in judgement.notes
    assert f"note: {SWAPPED}" in explain(judgement)


def test_a_file_that_does_not_know_the_kernels_is_no_other_measurement() -> None:
    judgement = judge(measured(ran(MOE, kernels={"marlin": 2}), 78.1e-6), SELECTED)
    assert (judgement.verdict, judgement.notes) == (Verdict.PASS, ())
