"""A server that is started again and again serves all open metrics in each life; a failure stays with its metric."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from pytest_decodegate.cause import Finding
from pytest_decodegate.errors import ServerError, ServerHung
from pytest_decodegate.measure.source import Taken
from pytest_decodegate.measure.window import Load
from pytest_decodegate.metric import Json, Replicate
from pytest_decodegate.reference.restarts import Restarts

LOADS = {f"tpot[c={streams}]": Load(streams, 8, 8, 8) for streams in (1, 8, 64)}
ONE, EIGHT, MANY = LOADS


@dataclass
class Life:
    """One life of the server. dead: it ended."""

    number: int
    dead: bool = False

    def ended(self) -> ServerError | None:
        return ServerError("it ended") if self.dead else None


@dataclass
class Host:
    """A server whose n-th life takes n ms a token at every load. fails_at: (life, metric) whose window fails, and
    whether that ends the server. broken: likewise, windows that broke a rule. backends: of a life, where it says one.
    """

    fails_at: dict[tuple[int, str], tuple[ServerError, bool]] = field(default_factory=dict)
    broken: set[tuple[int, str]] = field(default_factory=set)
    backends: dict[int, str] = field(default_factory=dict)
    lives: list[Any] = field(default_factory=list)
    windows: list[tuple[int, str]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    rehearsed: list[tuple[int, str]] = field(default_factory=list)
    loads: dict[str, Load] = field(default_factory=lambda: dict(LOADS))

    def fresh(self) -> Any:
        self.lives.append(Life(len(self.lives) + 1))
        return self.lives[-1]

    def rehearse(self, name: str, server: Any, load: Load) -> None:
        assert load == LOADS.get(name, load)
        if server.number not in [life for life, _ in self.rehearsed]:
            self.rehearsed.append((server.number, name))

    def source(self, name: str, server: Any, load: Load) -> Any:
        host = self

        class Window:
            level = "window"

            def take(self, count: int) -> Taken:
                assert count == 1
                return host.window(name, server)

        assert load == LOADS.get(name, load)
        return Window()

    def window(self, name: str, life: Life) -> Taken:
        if life.dead:
            raise ServerError("nothing answers")

        self.windows.append((life.number, name))
        if failure := self.fails_at.get((life.number, name)):
            error, life.dead = failure
            raise error

        facts: dict[str, Json] = {"telemetry": [{"life": life.number}], "server_starts": 1}
        contract: dict[str, Json] = {"backend": self.backends.get(life.number, "marlin")}
        if (life.number, name) in self.broken:
            return Taken("window", (), contract, facts, broken=(Finding("a token was lost"),))

        return Taken("window", (Replicate((life.number / 1000,)),), contract, facts)

    def restarts(self) -> Restarts:
        return Restarts(self.fresh, self.rehearse, self.source, lambda: self.loads, self.said.append)


def values(taken: Taken) -> list[float]:
    return [replicate.value for replicate in taken.replicates]


def test_three_starts_are_three_for_all_metrics_of_a_run() -> None:
    host = Host()
    restarts, running = host.restarts(), host.fresh()
    taken = [restarts.source(name, running, load).take(3) for name, load in LOADS.items()]
    assert len(host.lives) == 3, "the server that ran already is the first start"
    assert host.windows == [(life, name) for life in (1, 2, 3) for name in LOADS]
    assert [values(each) for each in taken] == [[0.001, 0.002, 0.003]] * 3
    assert {each.level for each in taken} == {"server"}
    reports = [{"life": 1}, {"life": 2}, {"life": 3}]
    assert taken[0].facts == {"server_starts": 3, "telemetry": reports}
    assert host.rehearsed == [(life, ONE) for life in (1, 2, 3)], "the first window of a life does not count"
    assert host.said[1] == "start 2 of the server: tpot[c=1] 2.00 ms, tpot[c=8] 2.00 ms, tpot[c=64] 2.00 ms"


def test_a_metric_sees_as_many_starts_as_it_asked_for_and_fresh_ones_when_it_asks_again() -> None:
    host = Host()
    restarts, running = host.restarts(), host.fresh()
    one = restarts.source(ONE, running, LOADS[ONE])
    one.take(2)
    assert values(one.take(2)) == [0.001, 0.002, 0.003, 0.004], "a change is confirmed"
    eight = restarts.source(EIGHT, host.lives[-1], LOADS[EIGHT])
    assert values(eight.take(2)) == [0.001, 0.002], "its first look is at as many starts as that of the first metric"
    assert values(eight.take(2)) == [0.001, 0.002, 0.003, 0.004]
    assert len(host.lives) == 4
    assert values(eight.take(1))[-1] == 0.005
    assert (5, ONE) not in host.windows, "a metric that is over is not measured again"
    assert (5, MANY) in host.windows


def test_a_test_that_runs_again_sees_other_starts() -> None:
    host = Host()
    restarts, running = host.restarts(), host.fresh()
    assert values(restarts.source(ONE, running, LOADS[ONE]).take(2)) == [0.001, 0.002]
    assert values(restarts.source(ONE, host.lives[-1], LOADS[ONE]).take(2)) == [0.003, 0.004]
    eight = restarts.source(EIGHT, host.lives[-1], LOADS[EIGHT])
    assert values(eight.take(4)) == [0.001, 0.002, 0.003, 0.004]


def test_a_metric_that_no_test_declared_is_measured_alone() -> None:
    host = Host()
    restarts, running = host.restarts(), host.fresh()
    restarts.source("tpot[c=1,layers=8]", running, Load(1, 8, 8, 8)).take(2)
    assert host.windows == [(1, "tpot[c=1,layers=8]"), (2, "tpot[c=1,layers=8]")]
    deep = host.fresh()  # of another depth
    restarts.source(ONE, deep, LOADS[ONE]).take(1)
    assert host.windows[2:] == [(3, name) for name in LOADS]


def test_a_failure_is_that_of_its_metric_and_a_server_that_lives_serves_the_others() -> None:
    failure = ServerError("one token was lost")
    host = Host(fails_at={(1, EIGHT): (failure, False)})
    restarts, running = host.restarts(), host.fresh()
    assert len(restarts.source(ONE, running, LOADS[ONE]).take(2).replicates) == 2
    with pytest.raises(ServerError, match="one token was lost"):
        restarts.source(EIGHT, running, LOADS[EIGHT]).take(2)

    assert len(restarts.source(MANY, running, LOADS[MANY]).take(2).replicates) == 2
    assert host.windows == [(1, ONE), (1, EIGHT), (1, MANY), (2, ONE), (2, MANY)]
    assert values(restarts.source(EIGHT, host.lives[-1], LOADS[EIGHT]).take(1)) == [0.003], "of a test that runs again"


def test_a_server_that_a_metric_ended_is_asked_nothing_more() -> None:
    host = Host(fails_at={(1, EIGHT): (ServerError("out of memory"), True)})
    restarts, running = host.restarts(), host.fresh()
    assert values(restarts.source(ONE, running, LOADS[ONE]).take(2)) == [0.001, 0.002]
    with pytest.raises(ServerError, match="out of memory"):
        restarts.source(EIGHT, running, LOADS[EIGHT]).take(2)

    assert values(restarts.source(MANY, host.lives[-1], LOADS[MANY]).take(2)) == [0.002, 0.003]
    assert (1, MANY) not in host.windows


def test_the_metric_that_is_asked_for_waits_while_another_ends_the_first_server() -> None:
    host = Host(fails_at={(1, ONE): (ServerError("out of memory"), True)})
    restarts, running = host.restarts(), host.fresh()
    assert values(restarts.source(MANY, running, LOADS[MANY]).take(1)) == [0.002]
    assert host.said[0] == "start 1 of the server: no window"


def test_a_server_that_hangs_ends_the_run_at_once() -> None:
    host = Host(fails_at={(1, EIGHT): (ServerHung("no token for 900 s"), False)})
    restarts, running = host.restarts(), host.fresh()
    with pytest.raises(ServerHung):
        restarts.source(ONE, running, LOADS[ONE]).take(2)

    assert len(host.lives) == 1


def test_a_window_that_broke_a_rule_is_not_repeated_and_hinders_no_other_metric() -> None:
    host = Host(broken={(1, EIGHT)})
    restarts, running = host.restarts(), host.fresh()
    assert restarts.source(ONE, running, LOADS[ONE]).take(2).sound
    taken = restarts.source(EIGHT, running, LOADS[EIGHT]).take(2)
    assert (taken.replicates, taken.broken) == ((), ("a token was lost",))
    assert (2, EIGHT) not in host.windows


def test_starts_that_compute_otherwise_are_no_one_stack() -> None:
    host = Host(backends={2: "triton"})
    taken = host.restarts().source(ONE, host.fresh(), LOADS[ONE]).take(2)
    assert taken.broken == ("replicates of one stack differ in backend: marlin, then triton",)
