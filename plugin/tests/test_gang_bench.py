from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import gang_tasks
import pytest

from pytest_decodegate.errors import GangError, RankDied
from pytest_decodegate.gang import protocol
from pytest_decodegate.gang.controller import GangOptions
from pytest_decodegate.gang.logs import Marks
from pytest_decodegate.measure import bench as bench_module
from pytest_decodegate.measure.bench import Bench


class ScriptedGang:
    """A gang without processes: it fails when told to."""

    started: ClassVar[list[str]] = []
    start_errors: ClassVar[list[GangError]] = []

    def __init__(self, world_size: int, options: GangOptions, *, name: str) -> None:
        self.name = name
        self.cause: GangError | None = None
        self.closed = False

    def spawn(self) -> None:
        self.started.append(f"spawn {self.name}")

    def connect(self, on_wait: object) -> None:
        self.started.append(f"connect {self.name}")

    def ready(self) -> None:
        self.started.append(f"ready {self.name}")
        if self.start_errors:
            raise self.start_errors.pop(0)

    def check(self) -> bool:
        return self.cause is None

    def break_with(self, text: str) -> None:
        self.cause = RankDied(text)

    def marks(self) -> Marks:
        return {(0, "stdout"): 100}

    def output_since(self, marks: Marks) -> list[tuple[int, str, str]]:
        return [(0, "stdout", f"after {marks.get((0, 'stdout'), 0)}")]

    def kill(self, error: BaseException) -> None:
        self.started.append(f"kill {self.name}")

    def dismiss(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: list[str]) -> Bench:
    monkeypatch.setattr(bench_module, "Gang", ScriptedGang)
    monkeypatch.setattr(ScriptedGang, "started", [])
    monkeypatch.setattr(ScriptedGang, "start_errors", [])
    return Bench(2, GangOptions(log_root=tmp_path), progress=said.append)


def break_one(bench: Bench, text: str) -> None:
    gangs: list[Any] = list(bench.gangs(1))
    gangs[0].break_with(text)


def test_gangs_start_together_and_are_kept(bench: Bench, said: list[str]) -> None:
    first = bench.gangs(2)
    steps = ("spawn", "connect", "ready")
    assert ScriptedGang.started == [f"{step} {name}" for step in steps for name in ("w2-1", "w2-2")]
    assert bench.gangs(1) == first[:1]
    assert bench.gangs(3)[:2] == first
    assert len(ScriptedGang.started) == 9
    assert said == ["starting 2 x 2 ranks", "starting 1 x 2 ranks"]


def test_what_a_start_cost_is_told_of_those_that_started_and_only_then(bench: Bench, tmp_path: Path) -> None:
    told: list[tuple[int, float]] = []
    timed = Bench(8, GangOptions(log_root=tmp_path), progress=lambda _: None, on_ready=lambda *it: told.append(it))
    ScriptedGang.start_errors.append(RankDied("at the start"))
    with pytest.raises(RankDied):
        timed.gangs(5)
    assert told == []

    timed.gangs(5)
    timed.gangs(5)
    ((gangs, seconds),) = told
    assert gangs == 5
    assert seconds >= 0


def test_a_broken_gang_is_replaced_twice_and_then_the_first_cause_is_raised(bench: Bench) -> None:
    for text in ("first cause", "second cause"):
        break_one(bench, text)
        bench.gangs(1)

    break_one(bench, "third cause")
    before = list(ScriptedGang.started)
    for _ in range(2):
        with pytest.raises(GangError, match=r"broke 3 times.*\n.*first cause"):
            bench.gangs(1)

    assert ScriptedGang.started == before


def test_closing_a_bench_between_failures_does_not_forget_them(bench: Bench) -> None:
    # As after each hang on a GPU, which is asked whether it still works with nobody else on it.
    for number in range(3):
        gangs: list[Any] = list(bench.gangs(2))
        for gang in gangs:
            gang.break_with(f"cause {number}")
        bench.close()

    with pytest.raises(GangError, match=r"broke 3 times.*\n.*cause 0"):
        bench.gangs(1)


def test_closing_a_bench_whose_gangs_work_counts_nothing(bench: Bench) -> None:
    for _ in range(5):
        assert len(bench.gangs(2)) == 2
        bench.close()


def test_gangs_that_break_together_count_once(bench: Bench, said: list[str]) -> None:
    for number in (1, 2):
        gangs: list[Any] = list(bench.gangs(5))
        for gang in gangs[:4]:
            gang.break_with(f"cause {number} of {gang.name}")

    assert len(bench.gangs(5)) == 5
    assert said.count("gang w2-4 broke and is replaced") == 1
    gangs = list(bench.gangs(5))
    gangs[0].break_with("third")
    with pytest.raises(GangError, match=r"broke 3 times.*\n.*cause 1 of w2-1"):
        bench.gangs(5)


def test_a_gang_is_called_replaced_only_if_it_is(bench: Bench, said: list[str]) -> None:
    gangs: list[Any] = list(bench.gangs(3))
    for gang in gangs[:2]:
        gang.break_with("gone")

    said.clear()
    assert bench.gangs(1) == gangs[2:]
    assert said == []
    bench.gangs(2)
    break_one(bench, "second")
    bench.gangs(2)
    break_one(bench, "third")
    said.clear()
    with pytest.raises(GangError):
        bench.gangs(2)

    assert said == []


def test_a_start_that_fails_is_raised_not_repeated_and_leaves_no_gang(bench: Bench) -> None:
    ScriptedGang.start_errors.append(RankDied("no torch"))
    with pytest.raises(RankDied, match="no torch"):
        bench.gangs(3)

    assert [step for step in ScriptedGang.started if step.startswith("ready")] == ["ready w2-1"]
    assert [gang.name for gang in bench.gangs(1)] == ["w2-4"]


def test_five_gangs_that_fail_to_start_count_as_one_failure(bench: Bench) -> None:
    for _ in range(3):
        ScriptedGang.start_errors.append(RankDied("no torch"))
        with pytest.raises(RankDied):
            bench.gangs(5)

    with pytest.raises(GangError, match="broke 3 times"):
        bench.gangs(5)


def test_output_is_told_once_also_of_a_gang_that_is_gone(bench: Bench) -> None:
    break_one(bench, "gone")
    bench.gangs(1)
    assert bench.output() == [("stdout rank 0 of w2-1", "after 0"), ("stdout rank 0 of w2-2", "after 0")]
    assert bench.output() == [("stdout rank 0 of w2-2", "after 100")]


def test_close_ends_every_gang(bench: Bench) -> None:
    gangs: list[Any] = list(bench.gangs(2))
    bench.close()
    assert all(gang.closed for gang in gangs)


def test_two_real_gangs_live_side_by_side_in_their_own_environments_and_leave_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NCCL_DEBUG", raising=False)
    waited: list[str] = []
    bench = Bench(1, GangOptions(log_root=tmp_path / "logs", env={"STACK": "b"}), progress=waited.append)
    try:
        gangs = bench.gangs(2)
        pending = [gang.submit(gang_tasks.environment) for gang in gangs]
        environments = [answer.result()[0] for answer in pending]
        for gang in gangs:
            gang.run(gang_tasks.leave_with_others, str(tmp_path), gang.name, 2, deadline_seconds=60)
    finally:
        bench.close()

    assert [found["STACK"] for found in environments] == ["b", "b"]
    assert [found.get("NCCL_DEBUG") for found in environments] == [None, None]  # only the gang that is not timed has it
    assert len({found[protocol.GANG_ID] for found in environments}) == 2
    assert len({gang.hellos[0].pid for gang in gangs}) == 2
    assert waited[0] == "starting 2 x 1 ranks"
    # Each rank has left only once the other was leaving; alone, it would have been ended by its deadline.
    assert sorted(path.name for path in tmp_path.glob("*.met")) == ["w1-1.met", "w1-2.met"]


def test_a_rank_starts_with_the_standard_library_only() -> None:
    heavy = {"torch", "numpy", "pytest", "msgspec", "scipy", "vllm", "pynvml"}
    code = f"import sys, pytest_decodegate.gang.worker; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
