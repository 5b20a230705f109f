"""Replicates from gangs: what is said while they are set up, and what happens to gangs when something goes wrong."""

from __future__ import annotations

import math
import re
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import gang_tasks
import pytest
from scripted_gangs import Said, ScriptedBench, ScriptedGang, source

from pytest_decodegate.errors import RankDied, RankRaised
from pytest_decodegate.gang.controller import GangOptions
from pytest_decodegate.measure import gang_source as source_module
from pytest_decodegate.measure.bench import Bench
from pytest_decodegate.process import processes
from pytest_decodegate.workloads.runtime.rank import Examined, Opened
from pytest_decodegate.workloads.runtime.timing import Traffic

TAG = "SOURCE_TEST_TAG"
GRACE_SECONDS = 1.0
INTERRUPT_SECONDS = 5.0
SLACK_SECONDS = 4.0


@pytest.fixture
def log() -> list[str]:
    return []


# --- what is said while replicates are set up


def test_the_set_up_is_told_with_the_notes_of_ranks(log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "TICK_SECONDS", 0.0)
    said = Said()
    gangs = ScriptedBench(ScriptedGang("a", log, turns=0), ScriptedGang("b", log, turns=1), ScriptedGang("c", log))
    with source(gangs, said) as measured:
        measured.take(2)
        set_up = list(said.lines)
        measured.take(1)

    assert set_up[:4] == [
        "nap: setting up and checking numbers on 2 replicates",
        "nap: rank 0: weights done",
        "nap: 1 of 2 replicates set up and checked, 0 s",
        "nap: 2 of 2 replicates set up and checked, 0 s",
    ]
    assert "nap: 3 of 3 replicates set up and checked, 0 s" in said.lines


# --- a clock that is none


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_replicate_whose_clock_is_broken_is_named_and_left_out(log: list[str], bad: float) -> None:
    broken = ScriptedGang("w2-2", log, samples=(1.0, bad))
    with source(ScriptedBench(ScriptedGang("w2-1", log), broken)) as measured:
        replicates = measured.take(2).replicates

    assert [replicate.samples for replicate in replicates] == [(1.0,) * 5]
    assert [line.partition(";")[0] for line in measured.taken.broken] == [
        f"replicate 2: rank 1 of w2-2 took a sample of {bad!r} s"
    ]


def test_no_replicate_is_left_when_every_clock_stands_still(log: list[str]) -> None:
    with source(ScriptedBench(*(ScriptedGang(name, log, samples=(0.0, 0.0)) for name in "ab"))) as measured:
        assert measured.take(2).replicates == ()

    assert [line.partition(":")[0] for line in measured.taken.broken] == ["replicate 1", "replicate 2"]


# --- what ran, and whether it can have taken so little time


def test_the_kernels_become_part_of_the_contract(log: list[str]) -> None:
    opened = Opened(None, contract={"mode": "graph"})
    with source(ScriptedBench(*(ScriptedGang(name, log, opened=opened) for name in "ab"))) as measured:
        measured.take(2)

    assert measured.taken.contract == {"mode": "graph", "kernels": {"gemm": 1}}
    assert measured.taken.broken == ()


def test_how_nccl_does_it_is_asked_once_and_becomes_part_of_the_contract(log: list[str]) -> None:
    opened = Opened(None, contract={"library": "nccl"})
    bench = ScriptedBench(*(ScriptedGang(name, log, opened=opened) for name in "abc"))
    with source(bench) as measured:
        measured.take(2)
        measured.take(1)

    assert bench.asked == ["nap"]
    assert measured.taken.contract == {"library": "nccl", "nccl_algorithm": "RING", "kernels": {"gemm": 1}}
    assert measured.taken.facts["nccl"] == {"transports": ["P2P/CUMEM"]}


def test_nccl_is_not_asked_about_what_does_not_use_it(log: list[str]) -> None:
    bench = ScriptedBench(ScriptedGang("a", log, opened=Opened(None, contract={"library": "gloo"})))
    with source(bench) as measured:
        measured.take(1)

    assert bench.asked == []
    assert "nccl" not in measured.taken.facts


def test_ranks_are_not_compared_unless_all_of_them_have_a_part_of_their_own(log: list[str]) -> None:
    gangs = [ScriptedGang(name, log, own=([], [1.3] * 20)) for name in "ab"]
    with source(ScriptedBench(*gangs)) as measured:
        (replicate, _) = measured.take(2).replicates

    assert "own_medians" not in replicate.facts
    assert measured.taken.notes == ()


def test_a_rank_that_ran_another_kernel_breaks_a_rule(log: list[str]) -> None:
    on_gpu = Opened(None, contract={"clock": "cuda_event"})
    other = ScriptedGang("b", log, opened=on_gpu, kernels=({"gemm": 1}, {"gemm": 1, "cast": 2}))
    with source(ScriptedBench(ScriptedGang("a", log, opened=on_gpu), other)) as measured:
        measured.take(2)

    assert measured.taken.broken == (
        "replicate 2, rank 1 ran other kernels than the first: a kernel appeared: cast, 2 a call",
    )


@pytest.mark.parametrize(("cache", "broken"), [("cold", 1), ("hot", 0)])
def test_a_time_below_the_floor_is_refused_where_memory_is_promised(log: list[str], cache: str, broken: int) -> None:
    opened = Opened(None, contract={"cache": cache}, traffic=Traffic(bytes=4e12, flops=1e12))
    gang = ScriptedGang("a", log, opened=opened, found=Examined(2e12, 0.25, None))
    with source(ScriptedBench(gang)) as measured:
        (replicate,) = measured.take(1).replicates

    assert replicate.facts["memory_share"] == pytest.approx(2.0)
    assert replicate.facts["flop_s"] == pytest.approx(1e12)
    assert replicate.facts["hot_over_cold"] == pytest.approx(0.25)
    assert len([line for line in measured.taken.broken if "faster than memory allows" in line]) == broken


def test_a_rank_that_is_slow_in_every_gang_is_named_and_its_times_are_kept(log: list[str]) -> None:
    slow = ([1.0] * 20, [1.3] * 20)
    gangs = [ScriptedGang(name, log, own=slow) for name in "abc"]
    with source(ScriptedBench(*gangs)) as measured:
        (replicate, _) = measured.take(2).replicates
        assert [note.partition(" takes")[0] for note in measured.taken.notes] == ["STRAGGLER: rank 1"]
        measured.take(1)

    assert replicate.facts["own_medians"] == [1.0, 1.3]
    assert list(measured.taken.notes) == measured.taken.facts["stragglers"]
    assert len(measured.taken.notes) == 1  # said of all gangs, and not once for each look
    assert measured.taken.broken == ()


def test_four_ranks_are_kept_in_a_table_and_two_only_when_one_is_apart(log: list[str]) -> None:
    calm, slow = [1.0] * 20, [1.3] * 20
    for own, told in [((calm, calm), 0), ((calm, slow), 2), ((calm,) * 4, 4)]:
        gangs = [ScriptedGang(name, log, own=own) for name in "ab"]
        with source(ScriptedBench(*gangs)) as measured:
            measured.take(2)

        ranks = measured.taken.facts.get("ranks", [])
        assert isinstance(ranks, list)
        assert len(ranks) == told


def test_the_longest_sleep_that_a_rank_needed_is_a_fact_of_the_replicate(log: list[str]) -> None:
    gang = ScriptedGang("a", log, found=Examined(None, None, None, align_cycles=800_000))
    with source(ScriptedBench(gang)) as measured:
        (replicate,) = measured.take(1).replicates

    assert replicate.facts["align_cycles"] == 800_000
    assert measured.taken.notes == ()


def test_what_more_gangs_do_not_confirm_is_taken_back(log: list[str]) -> None:
    slow, equal = ([1.0] * 20, [1.3] * 20), ([1.0] * 20, [1.0] * 20)
    gangs = [ScriptedGang(str(number), log, own=own) for number, own in enumerate((slow, slow, equal))]
    with source(ScriptedBench(*gangs)) as measured:
        measured.take(2)
        measured.take(1)

    assert measured.taken.notes == ()
    assert "stragglers" not in measured.taken.facts


# --- leaving it


def test_an_error_in_closing_does_not_hide_what_failed_before(log: list[str]) -> None:
    gangs = [ScriptedGang(name, log, closing=RankDied(f"{name} in close_workload()")) for name in "ab"]
    gangs[1].opening = RankRaised("the real cause")
    with pytest.raises(RankRaised, match="the real cause"), source(ScriptedBench(*gangs)) as measured:
        measured.take(2)

    assert log == ["give up a", "give up b", "close a", "close b"]


def test_an_error_in_closing_is_raised_if_nothing_failed_before(log: list[str]) -> None:
    gangs = [ScriptedGang(name, log, closing=RankDied(f"{name} in close_workload()")) for name in "ab"]
    with pytest.raises(RankDied, match="a in close_workload"), source(ScriptedBench(*gangs)) as measured:
        measured.take(2)

    assert log == ["close a", "close b"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interruption_kills_all_gangs_at_once_and_asks_none(log: list[str], error: type[BaseException]) -> None:
    with pytest.raises(error), source(ScriptedBench(*(ScriptedGang(name, log) for name in "ab"))) as measured:
        measured.take(2)
        raise error

    assert log == ["kill a", "kill b", "end a", "end b"]


def test_a_verdict_is_no_reason_to_kill_a_gang(log: list[str]) -> None:
    with pytest.raises(pytest.fail.Exception), source(ScriptedBench(ScriptedGang("a", log))) as measured:
        measured.take(1)
        pytest.fail("REGRESSED")

    assert log == ["give up a", "close a"]


# --- the same on real gangs


@pytest.fixture(scope="module")
def tag() -> str:
    return uuid.uuid4().hex


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, tag: str) -> Iterator[Bench]:
    options = GangOptions(log_root=tmp_path_factory.mktemp("gangs"), env={TAG: tag}, grace_seconds=GRACE_SECONDS)
    bench = Bench(1, options, progress=lambda _: None)
    yield bench
    bench.close()
    assert processes.tagged(TAG, tag) == []


def test_a_gang_that_is_busy_when_another_fails_is_dropped_after_the_grace(bench: Bench, tmp_path: Path) -> None:
    bench.gangs(2)
    heard: list[float] = []
    with (
        pytest.raises(RankRaised, match=r"rank 0 of w1-\d raised ValueError in open_workload\(\): the real cause"),
        source(bench, workload=gang_tasks.fail_on_one_gang, folder=str(tmp_path)) as measured,
    ):
        try:
            measured.take(2)
        finally:
            heard.append(time.monotonic())

    assert time.monotonic() - heard[0] < GRACE_SECONDS + SLACK_SECONDS
    (cause,) = [str(gang.cause) for gang in measured._gangs if gang.cause]
    assert re.sub(r"w1-\d", "W", cause) == (
        "gang 'W' was still busy with open_workload() 1 s after it was given up, and ended; "
        "before that: RankRaised: rank 0 of W raised ValueError in open_workload(): the real cause"
    )


def test_ctrl_c_while_gangs_are_set_up_ends_them_within_seconds(bench: Bench, tag: str) -> None:
    def interrupt(text: str) -> None:
        if text == "nap: rank 0: weights 1/9":
            interrupted.append(time.monotonic())
            raise KeyboardInterrupt

    interrupted: list[float] = []
    bench.gangs(2)
    with pytest.raises(KeyboardInterrupt), source(bench, Said(then=interrupt), gang_tasks.never_ready) as measured:
        measured.take(2)

    assert time.monotonic() - interrupted[0] < INTERRUPT_SECONDS + SLACK_SECONDS
    assert processes.tagged(TAG, tag) == []
