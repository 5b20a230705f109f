"""Pairs of gangs without processes: the order of turns, whose fault a failure is, and what the base has measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_gangs import PLAN, ScriptedBench, ScriptedGang, Watched, source

from pytest_decodegate.errors import DecodegateError, RankDied, RankRaised
from pytest_decodegate.measure.paired_source import PairBench, PairSource, StackFailed, abba
from pytest_decodegate.workloads.runtime import rank
from pytest_decodegate.workloads.runtime.rank import Opened


@dataclass(eq=False)
class Gang(ScriptedGang):
    """A scripted gang that notes its samplings and fails at the `fails_at`-th."""

    fails_at: int = -1
    sampled: int = field(default=0, init=False)

    def run(self, function: object, key: str, count: int = 0, *, deadline_seconds: float) -> list[Any]:
        if function is rank.take_samples:
            self.log.append(f"sample {self.name}")
            self.sampled += 1
            if self.sampled == self.fails_at:
                raise RankDied(f"{self.name} died")

        return super().run(function, key, count, deadline_seconds=deadline_seconds)


@dataclass
class BrokenBench:
    error: BaseException = field(default_factory=lambda: RankDied("no torch"))

    def gangs(self, count: int) -> list[ScriptedGang]:
        raise self.error


def skipping() -> BrokenBench:
    return BrokenBench(pytest.skip.Exception("no module named pynccl"))


def pairs(base: object, candidate: object) -> PairSource:
    watch: Any = Watched
    return PairSource(source(base), source(candidate), plan=PLAN, watch=watch, on_turn=lambda *_: None)


def gangs(log: list[str], side: str, count: int = 2, **fields: Any) -> ScriptedBench:
    return ScriptedBench(*(Gang(f"{side}{n}", log, **fields) for n in range(count)))


@pytest.fixture
def log() -> list[str]:
    return []


@given(st.integers(1, 30))
def test_every_pair_is_measured_as_a_b_b_a_and_no_side_is_always_first(count: int) -> None:
    there = abba(count)
    both = there + there[::-1]
    for pair in range(count):
        sides = [side for side, number in both if number == pair]
        assert sides in (["base", "candidate", "candidate", "base"], ["candidate", "base", "base", "candidate"])

    first = [side for side, _ in there[::2]]
    assert first == ["base" if pair % 2 == 0 else "candidate" for pair in range(count)]


def test_replicates_come_back_to_their_side_in_the_order_of_pairs(log: list[str]) -> None:
    base = ScriptedBench(Gang("b0", log, samples=(1.0, 2.0)), Gang("b1", log, samples=(3.0, 1.0)))
    candidate = ScriptedBench(Gang("c0", log, samples=(4.0, 4.0)), Gang("c1", log, samples=(5.0, 1.0)))
    with pairs(base, candidate) as measured:
        old, new = (side.replicates for side in measured.take(2))

    assert [one.value for one in old] == [2.0, 3.0]
    assert [one.value for one in new] == [4.0, 5.0]
    turns = [line.removeprefix("sample ") for line in log if line.startswith("sample")]
    assert turns == ["b0", "c0", "c1", "b1"] * 2  # warm-up, then one round
    assert [line for line in log if line.startswith("close")] == ["close c0", "close c1", "close b0", "close b1"]


def test_nothing_is_timed_while_numbers_are_wrong(log: list[str]) -> None:
    wrong = gangs(log, "c", opened=Opened("off by 0.3"))
    with pairs(gangs(log, "b"), wrong) as measured:
        assert not any(side.replicates for side in measured.take(2))

    assert measured.base.taken.wrong is None
    assert measured.candidate.taken.wrong == "replicate 1, rank 0: off by 0.3; rank 1: off by 0.3"
    assert not any(line.startswith("sample") for line in log)


def test_a_base_that_is_wrong_is_not_compared_with(log: list[str]) -> None:
    with pairs(gangs(log, "b", opened=Opened("off")), BrokenBench()) as measured:
        assert not any(side.replicates for side in measured.take(2))

    assert measured.base.taken.wrong is not None


@pytest.mark.parametrize("opening", [None, RankRaised("ImportError: no vllm")])
def test_the_base_is_measured_alone_if_the_candidate_cannot_start_or_set_up(
    log: list[str], opening: DecodegateError | None
) -> None:
    candidate = BrokenBench() if opening is None else gangs(log, "c", opening=opening)
    with pytest.raises(StackFailed) as raised, pairs(gangs(log, "b", samples=(1.0, 2.0)), candidate) as measured:
        measured.take(2)

    assert (raised.value.side, [one.value for one in raised.value.base]) == ("candidate", [2.0, 2.0])
    assert str(raised.value) == (
        "the candidate failed: RankDied: no torch"
        if opening is None
        else "the candidate failed: RankRaised: ImportError: no vllm"
    )
    assert "close b0" in log


def test_what_only_the_candidate_skips_is_lost_and_not_skipped(log: list[str]) -> None:
    with pytest.raises(StackFailed) as raised, pairs(gangs(log, "b", samples=(1.0, 2.0)), skipping()) as measured:
        measured.take(2)

    assert "GangError: it skips what the base can do: no module named pynccl" in str(raised.value)
    assert (raised.value.side, [one.value for one in raised.value.base]) == ("candidate", [2.0, 2.0])


def test_what_the_base_skips_is_skipped_because_nothing_can_be_compared(log: list[str]) -> None:
    with pytest.raises(pytest.skip.Exception, match="no module"), pairs(skipping(), gangs(log, "c")) as measured:
        measured.take(2)

    assert log == []


def test_what_the_base_has_measured_is_kept_when_the_candidate_dies_between_turns(log: list[str]) -> None:
    candidate = ScriptedBench(Gang("c0", log), Gang("c1", log, fails_at=2))
    with pytest.raises(StackFailed) as raised, pairs(gangs(log, "b", samples=(1.0, 3.0)), candidate) as measured:
        measured.take(2)

    assert raised.value.side == "candidate"
    assert [one.value for one in raised.value.base] == [3.0]  # b1's turn had not come
    assert isinstance(raised.value.error, RankDied)


@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_base_that_fails_is_blamed_itself(log: list[str], fails_at: int) -> None:
    with pytest.raises(StackFailed) as raised, pairs(gangs(log, "b", fails_at=fails_at), gangs(log, "c")) as measured:
        measured.take(2)

    assert raised.value.side == "base"


def test_both_stacks_leave_together(log: list[str]) -> None:
    class Bench:
        def __init__(self, name: str) -> None:
            self.name = name

        def dismiss(self) -> None:
            log.append(f"dismiss {self.name}")

        def close(self) -> None:
            log.append(f"end {self.name}")

        def output(self) -> list[tuple[str, str]]:
            return [(f"stdout of {self.name}", "text")]

    benches: tuple[Any, Any] = (Bench("base"), Bench("candidate"))
    bench = PairBench(*benches)
    assert bench.output() == [("stdout of base", "text"), ("stdout of candidate", "text")]
    bench.close()
    assert log == ["dismiss base", "dismiss candidate", "end base", "end candidate"]
