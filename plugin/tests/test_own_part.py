"""A rank's own part: what is in it and what is not."""

from __future__ import annotations

import pytest

from pytest_decodegate.workloads.collectives import own_part as module
from pytest_decodegate.workloads.collectives.own_part import own_part

pytest.importorskip("torch", reason="the local work is a copy of torch's")


class Stopped:
    """A clock that only work and waiting move."""

    def __init__(self) -> None:
        self.now = 0.0

    def take(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Stopped:
    stopped = Stopped()
    monkeypatch.setattr("time.perf_counter", lambda: stopped.now)
    return stopped


def test_waiting_for_others_is_no_part_of_it(clock: Stopped) -> None:
    waits: list[float] = []

    def collective() -> None:
        waits.append(clock.now)
        clock.take(100.0)

    assert own_part(collective, cuda=False, work=lambda: clock.take(0.25), rounds=4) == [0.25] * 4
    assert len(waits) == 4


def test_rounds_are_told_one_by_one(clock: Stopped) -> None:
    lengths = iter([9.0, 1.0, 2.0, 4.0])  # the first only warms up
    assert own_part(lambda: None, cuda=False, work=lambda: clock.take(next(lengths)), rounds=3) == [1.0, 2.0, 4.0]


def test_the_copy_of_the_host_takes_time_and_every_round_has_its_collective() -> None:
    made: list[None] = []
    taken = own_part(lambda: made.append(None), cuda=False)
    assert len(taken) == len(made) == module.ROUNDS
    assert min(taken) > 0
