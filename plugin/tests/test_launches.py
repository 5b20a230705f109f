"""What ranks cost: which launch counts, and when it is told."""

from __future__ import annotations

from pytest_decodegate.session.launches import Launch, Launches


class Session:
    """A clock that stands until it is moved, and the launches that were announced."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.announced: list[Launch] = []
        self.launches = Launches(self.announced.append, lambda: self.now)

    def launch(self, world_size: int, gangs: int, seconds: float) -> None:
        self.now += seconds
        self.launches.ready(world_size, gangs, seconds)


def test_a_launch_is_told_once_from_the_asking_to_the_first_verdict() -> None:
    session = Session()
    session.launch(8, 5, 14.0)
    assert session.announced == []
    for _ in range(3):
        session.now += 46.0
        session.launches.judged(8)

    assert session.announced == [Launch(world_size=8, gangs=5, ready_seconds=14.0, verdict_seconds=60.0)]
    assert session.launches.lines() == ["launch of 5 x 8 ranks: ready after 14.0 s, the first verdict after 60.0 s"]


def test_the_largest_launch_before_the_verdict_counts_and_none_after_it() -> None:
    session = Session()
    for gangs in (1, 4, 2):
        session.launch(2, gangs, float(gangs))
    session.launches.judged(2)
    session.launch(2, 10, 10.0)
    session.launches.judged(2)
    assert session.announced == [Launch(2, 4, 4.0, 6.0)]


def test_world_sizes_are_told_apart_and_by_size() -> None:
    session = Session()
    session.launch(8, 5, 14.0)
    session.launch(1, 2, 5.0)
    session.launches.judged(1)
    session.launches.judged(4)
    assert session.launches.lines() == [
        "launch of 2 x 1 rank: ready after 5.0 s, the first verdict after 5.0 s",
        "launch of 5 x 8 ranks: ready after 14.0 s",
    ]
