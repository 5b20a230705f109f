"""One bad process of many: found by a rule that knows no distribution, named, and never hidden by advice."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from stored import MACHINE, STACK, baseline

from pytest_decodegate.baseline.schema import Baseline, Session, StoredMetric
from pytest_decodegate.baseline.selection import Selection, contrast
from pytest_decodegate.cause import Cause, Finding
from pytest_decodegate.compare.pairs import compare_baselines
from pytest_decodegate.compare.standing import Terms
from pytest_decodegate.gate.decision import decide_all
from pytest_decodegate.gate.evidence.apart import GAPS, SHARE, STORED, apart, apart_findings
from pytest_decodegate.gate.pairs import Contrast, Side, judge_pairs
from pytest_decodegate.gate.result import Result
from pytest_decodegate.gate.stats.rules import Settlement
from pytest_decodegate.gate.text.advice import WIDEST_BAND, advice
from pytest_decodegate.gate.text.explain import explain
from pytest_decodegate.gate.verdict import Basis, Judgement, Verdict, judge, with_apart
from pytest_decodegate.machine.provenance import Difference, Provenance
from pytest_decodegate.metric import Json, Level, Measurement, Metric, Replicate

CPU = Metric("c5", "s", "cpu", 0.5, {"clock": "perf_counter"})
NARROW = replace(CPU, tolerance=0.2)
STEADY = tuple(200e-6 * (1 + 0.002 * step) for step in (0, 1, -1, 2, -2, 1, 0, -1, 2))
ONE_SLOW = (3.2e-3, *STEADY)

some_logs = st.lists(st.floats(-20, 20), max_size=24)
leasts = st.floats(0.001, 1.0)


@given(some_logs, leasts)
def test_few_are_apart_and_farther_from_all_others_than_these_from_each_other(logs: list[float], least: float) -> None:
    found = apart(logs, least)
    assert len(found) <= len(logs) // SHARE
    if found:
        others = [value for place, value in enumerate(logs) if place not in found]
        far = max(least, GAPS * (max(others) - min(others)))
        assert all(abs(logs[place] - other) > far for place in found for other in others)


@given(some_logs, leasts, st.randoms(use_true_random=False))
def test_the_order_of_processes_is_no_matter(logs: list[float], least: float, chance: random.Random) -> None:
    order = list(range(len(logs)))
    chance.shuffle(order)
    found = apart([logs[place] for place in order], least)
    assert sorted(logs[order[place]] for place in found) == sorted(logs[place] for place in apart(logs, least))


@given(some_logs, leasts)
def test_faster_is_found_like_slower(logs: list[float], least: float) -> None:
    assert apart([-value for value in logs], least) == apart(logs, least)


@given(
    st.lists(st.floats(0, 1), min_size=3, max_size=20),
    st.floats(1.01, 20),
    leasts,
    st.sampled_from((-1, 1)),
    st.integers(0, 20),
)
def test_one_that_is_far_enough_is_found_wherever_it_comes(
    others: list[float], factor: float, least: float, sign: int, place: int
) -> None:
    spread = max(others) - min(others)
    edge = max(others) if sign > 0 else min(others)
    far = edge + sign * (factor * max(least, GAPS * spread) + 1e-9)
    place = min(place, len(others))
    assert apart([*others[:place], far, *others[place:]], least) == (place,)


@given(st.floats(-5, 5), st.floats(0.5, 5), st.integers(2, 8))
def test_two_modes_are_no_bad_process(level: float, between: float, each: int) -> None:
    assert apart([level] * each + [level + between] * each, 0.02) == ()


def test_chance_seldom_makes_one() -> None:
    """Of five normal values whose scatter is as large as the band, 1 % hold one; of ten, fewer."""
    chance = random.Random(3)

    def share(count: int) -> float:
        trials = [apart([chance.gauss(0, 1) for _ in range(count)], 1e-6) for _ in range(4000)]
        return statistics.fmean(bool(found) for found in trials)

    assert share(5) < 0.03
    assert share(10) < 0.01


def replicates(values: Sequence[float], facts: Mapping[str, Json] | None = None) -> tuple[Replicate, ...]:
    return tuple(Replicate((value, value * 1.00001), facts or {}) for value in values)


def measured(
    values: Sequence[float], metric: Metric = CPU, level: Level = "gang", facts: Mapping[str, Json] | None = None
) -> Measurement:
    return Measurement(metric, replicates(values), level, facts or {})


def file(*sessions: Sequence[float], path: str = "0001_base.json", metric: Metric = CPU) -> Baseline:
    stored = (
        Session(f"s{n}", f"2026-01-0{n}T00:00:00+00:00", "gang", replicates(one)) for n, one in enumerate(sessions, 1)
    )
    return baseline(StoredMetric(metric, tuple(stored)), path=path)


def selected(*sessions: Sequence[float], metric: Metric = CPU) -> Selection:
    return contrast(file(*sessions, metric=metric), Provenance(MACHINE, STACK, {}), (), metric.name)


def test_one_slow_process_is_the_reason_and_no_band_is_advised() -> None:
    judgement = judge(measured(ONE_SLOW), selected(STEADY))
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.reasons[0] == "replicate 1 took 3.20 ms, the others 199 us to 201 us"
    assert judgement.reasons[1].startswith("without it this is PASS, +0.0")
    assert {reason.cause for reason in judgement.reasons} == {Cause.PROCESS_APART}
    assert judgement.settlement is None
    said = explain(judgement)
    assert "next: run again: a process that does not come back was chance" in said
    assert "band of 2" not in said
    assert "replicates would have settled" not in said


def test_a_stored_session_with_one_is_named_and_can_be_dropped() -> None:
    judgement = judge(measured(STEADY, NARROW), selected(ONE_SLOW, metric=NARROW))
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.reasons[0] == "stored session s1: replicate 1 took 3.20 ms, the others 199 us to 201 us"
    assert judgement.reasons[0].about == STORED
    assert any("decodegate baselines prune" in line for line in advice(judgement))
    assert not any("decodegate baselines prune" in line for line in advice(judge(measured(ONE_SLOW), selected(STEADY))))


def test_noise_that_is_there_without_it_too_is_advised_on_without_it() -> None:
    """One stored session on shared cores resolves no 10 %, with and without the process; its band is not 253 %."""
    metric = replace(CPU, tolerance=0.1)
    judgement = judge(measured(ONE_SLOW, metric), selected(STEADY, metric=metric))
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.reasons[1].startswith("without it this is INCONCLUSIVE, +0.0")
    assert judgement.settlement is not None
    assert judgement.settlement.tolerance is not None
    assert judgement.settlement.tolerance < 0.5
    assert advice(judgement)[-1].startswith("even without it: a band of ")


def test_where_nothing_is_open_it_is_a_note() -> None:
    slow = judge(measured([3 * value for value in STEADY] + [9.6e-3]), selected(STEADY))
    fine = judge(measured((100e-6, *STEADY)), selected(STEADY))
    bare = judge(measured(ONE_SLOW), Selection(Path("baselines")))
    assert [judgement.verdict for judgement in (slow, fine, bare)] == ["REGRESSED", "PASS", "NO_BASELINE"]
    for judgement in (slow, bare):
        assert [note.cause for note in judgement.notes] == [Cause.PROCESS_APART]
    assert fine.notes == ("replicate 1 took 100 us, the others 199 us to 201 us",)


@given(st.floats(1.6, 30), st.integers(0, 9))
def test_it_never_passes_nor_regresses_by_one_process_alone(factor: float, place: int) -> None:
    """Software that makes one process of ten slow is not shown to be harmless, and one process shows no more."""
    values = [*STEADY[:place], 200e-6 * factor, *STEADY[place:]]
    judgement = judge(measured(values), selected(STEADY, STEADY))
    assert judgement.verdict is not Verdict.IMPROVED
    assume(judgement.verdict is not Verdict.PASS)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert any(reason.startswith(f"replicate {place + 1} took ") for reason in judgement.reasons)


def with_note(verdict: Verdict) -> Judgement:
    return Judgement(CPU, verdict, Basis("gang", 10), notes=(Finding("replicate 1", Cause.PROCESS_APART),))


def test_a_verdict_that_they_alone_decide_is_none() -> None:
    """A base that one slow process lifts lets a slower run pass; one of a fast process makes an equal run regress."""
    stands = {
        (verdict, rest): with_apart(with_note(verdict), partial(with_note, rest)).verdict is verdict
        for verdict in Verdict
        for rest in (Verdict.PASS, Verdict.IMPROVED, Verdict.REGRESSED, Verdict.INCONCLUSIVE)
    }
    for (verdict, rest), stood in stands.items():
        agree = not verdict.judged or verdict is Verdict.INCONCLUSIVE or verdict.passes == rest.passes
        assert stood == agree, (verdict, rest)

    silent = replace(with_note(Verdict.PASS), notes=())
    assert with_apart(silent, lambda: pytest.fail("nothing was left out")) is silent


def test_a_rate_is_given_and_answers_are_no_times() -> None:
    rate = Metric("rate", "tok/s", "serving", 0.03)
    (found,) = apart_findings(measured([80.0, 81.0, 80.5, 40.0], rate))
    assert found == "replicate 4 gave 40.0 tok/s, the others 80.0 tok/s to 81.0 tok/s"
    assert apart_findings(measured([80.0, 81.0, 80.5, 40.0], Metric("answers", "%", "quality", 0.02))) == ()


RANKS: list[Json] = [{"rank": 0, "gpu": "GPU 4 (GPU-a)"}, {"rank": 1, "gpu": "GPU 6 (GPU-b)"}]
WATCHED: list[Json] = [{"gpus": [{"gpu": "GPU 3 (GPU-c)"}]}]


@pytest.mark.parametrize(
    ("process", "facts", "where"),
    [
        ({"rank_medians": [4e-4, 2e-4]}, {}, "; its rank 0 took 2.00x the other ranks' time"),
        ({"rank_medians": [4e-4, 4e-4]}, {"ranks": RANKS}, ""),
        (
            {"rank_medians": [4e-4, 4e-4], "own_medians": [1e-5, 1.5e-5]},
            {"ranks": RANKS},
            "; its rank 1 (on GPU 6 (GPU-b)) took 1.50x the other ranks' time",
        ),
        ({"rank_medians": [4e-4]}, {"telemetry": WATCHED}, " (on GPU 3 (GPU-c))"),
        ({"rank_medians": [4e-4]}, {"telemetry": [{"gpus": [{"gpu": "a"}, {"gpu": "b"}]}]}, ""),
        ({"rank_medians": "?"}, {"telemetry": [7], "ranks": {}}, ""),
    ],
)
def test_its_rank_and_gpu_are_named_where_they_are_known(
    process: Mapping[str, Json], facts: Mapping[str, Json], where: str
) -> None:
    run = measured(ONE_SLOW, facts=facts)
    run = replace(run, replicates=(replace(run.replicates[0], facts=process), *run.replicates[1:]))
    assert apart_findings(run) == (f"replicate 1 took 3.20 ms, the others 199 us to 201 us{where}",)


def test_two_stacks_name_the_side_and_leave_out_the_pair() -> None:
    nccl = Difference("nccl", "2.28.3", "2.28.9", declarable=True)
    judgement = judge_pairs(Side(measured((*STEADY, 200e-6))), Side(measured(ONE_SLOW)), Contrast((nccl,)), 1)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.reasons[0] == "candidate: replicate 1 took 3.20 ms, the others 199 us to 201 us"
    assert judgement.reasons[1].startswith("without it this is PASS")
    (ground,) = decide_all([Result("t.py::test", judgement)]).grounds
    assert "replicate 1 took 3.20 ms" in ground.text
    assert "wider band" not in ground.text


@pytest.mark.parametrize(
    ("base", "new", "whose"), [(ONE_SLOW, STEADY, "of the reference"), (STEADY, ONE_SLOW, "of the new file")]
)
def test_compare_names_the_session(base: Sequence[float], new: Sequence[float], whose: str) -> None:
    sides = file(base, metric=NARROW), file(new, path="0002_new.json", metric=NARROW)
    (judgement,) = compare_baselines(*sides, Terms()).judgements
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.reasons[0].startswith(f"session {whose} s1: replicate 1 took 3.20 ms")


# --- advice is never absurd


def open_metric(settlement: Settlement, level: Level = "gang") -> Judgement:
    return Judgement(CPU, Verdict.INCONCLUSIVE, Basis(level, 5), settlement=settlement)


@given(st.floats(0.001, 10), st.none() | st.integers(6, 30), st.none() | st.integers(2, 10))
def test_no_band_is_advised_that_gates_nothing(tolerance: float, more: int | None, sessions: int | None) -> None:
    lines = advice(open_metric(Settlement(more, sessions, tolerance)))
    assert any("would have passed, if you accept that loss" in line for line in lines) == (tolerance <= WIDEST_BAND)
    assert lines


@pytest.mark.parametrize(
    ("fields", "advised"),
    [
        ([("level", "server", "window")], "measure it as it was recorded, with --perf-server-restarts; *"),
        ([("level", "window", "server")], "measure it as it was recorded, without --perf-server-restarts; *"),
        ([("level", "server", "window"), ("contract.model", "a", "b")], "the name now stands for another measurement*"),
        ([("level", "gang", "window")], "the name now stands for another measurement*"),
    ],
)
def test_a_baseline_of_starts_asks_for_starts(fields: list[tuple[str, str, str]], advised: str) -> None:
    another = tuple(Difference(*field, declarable=False) for field in fields)
    (line,) = advice(Judgement(CPU, Verdict.CONFOUNDED, Basis("window", 5), another=another))
    assert fnmatch(line, advised)


def test_restarts_of_a_server_are_what_makes_more_of_them() -> None:
    lines = advice(open_metric(Settlement(7, None, 0.1), "server"))
    assert lines[0] == "7 replicates would have settled it: `--perf-server-restarts 7`"
