"""TTFT, times between tokens and throughput: of TPOT's own windows, shown always and gated where a band is given."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from scripted import STREAM, ScriptedServer, answer

from pytest_decodegate.baseline.reader import load
from pytest_decodegate.cause import Cause
from pytest_decodegate.gate.pairs import Contrast
from pytest_decodegate.gate.verdict import Verdict
from pytest_decodegate.measure.answers import NoLogprobs
from pytest_decodegate.measure.beside_tpot import QUANTITIES, KeptWindows, SameWindows
from pytest_decodegate.measure.source import Taken
from pytest_decodegate.measure.window import Load
from pytest_decodegate.metric import BESIDE_TPOT, Json, Level, Metric, Replicate
from pytest_decodegate.reference.servers_in_turn import Budget, Servers, ServersInTurn
from pytest_decodegate.report.rates import line, rates

TTFT, ITL_P50, ITL_P99, RATE = QUANTITIES
TPOT = Metric.of("tpot[c=8]", "serving")


def facts(ttft_s: float = 0.2, rate: float = 400.0) -> dict[str, Json]:
    return {"ttft_median_s": ttft_s, "itl_s": {"p50": 0.02, "p99": 0.03}, "output_tok_s": rate}


@dataclass
class Windows:
    """A source of TPOT whose window number n has a TTFT of n seconds; asked: counts that it was asked for."""

    level: Level = "window"
    asked: list[int] = field(default_factory=list)
    wrong: str | None = None

    def take(self, count: int) -> Taken:
        self.asked.append(count)
        windows = [Replicate((0.02,), facts(float(number))) for number in range(1, sum(self.asked) + 1)]
        return Taken("window", () if self.wrong else tuple(windows), {"formula": "tpot"}, wrong=self.wrong)


@pytest.mark.parametrize(
    ("tpot", "name"),
    [("tpot[c=8]", "ttft[c=8]"), ("tpot_cpu[c=1]", "ttft_cpu[c=1]"), ("mine", "ttft_of_mine"), ("a_tpot", "a_ttft")],
)
def test_names_follow_that_of_the_tpot(tpot: str, name: str) -> None:
    assert TTFT.name(tpot) == name
    metric = TTFT.metric(Metric.of(tpot, "cpu"), 0.07)
    assert (metric.name, metric.unit, metric.kind, metric.tolerance) == (name, "s", "cpu", 0.07)


def test_each_quantity_is_read_from_its_fact() -> None:
    assert [quantity.of(facts()) for quantity in QUANTITIES] == [0.2, 0.02, 0.03, 400.0]
    assert RATE.metric(TPOT, 0.1).better == "higher"
    assert tuple(quantity.stem for quantity in QUANTITIES) == BESIDE_TPOT


@pytest.mark.parametrize("seen", [{}, {"itl_s": None}, {"itl_s": {"p50": 0.0}}, {"itl_s": {"p50": "x"}}, {"itl_s": 3}])
def test_what_a_window_does_not_tell_breaks_a_rule(seen: dict[str, Json]) -> None:
    taken = ITL_P50.taken(Taken("window", (Replicate((0.02,), facts()), Replicate((0.02,), seen))))
    (reason,) = taken.broken
    assert (len(taken.replicates), reason.cause) == (1, Cause.WINDOW)
    assert str(reason).startswith("1 of 2 windows do not tell it")


def test_the_contract_is_that_of_the_windows_with_a_formula_of_its_own() -> None:
    windows = Taken("window", (Replicate((0.02,), facts()),), {"concurrency": 8, "formula": "tpot"})
    assert TTFT.taken(windows).contract == {"concurrency": 8, "formula": "ttft_median_v1"}


@given(first=st.integers(1, 10), counts=st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_windows_are_used_in_order_and_more_are_asked_for_only_when_none_is_left(first: int, counts: list[int]) -> None:
    source = Windows()
    kept = KeptWindows(source)
    kept.take(first)
    beside = SameWindows(kept, TTFT)
    for place, count in enumerate(counts):
        taken = beside.take(count)
        wanted = sum(counts[: place + 1])
        assert [replicate.value for replicate in taken.replicates] == [float(number + 1) for number in range(wanted)]
        assert sum(source.asked) == max(first, wanted)


def test_a_server_that_answers_wrongly_is_not_asked_again() -> None:
    source = Windows(wrong="backwards")
    kept = KeptWindows(source)
    kept.take(5)
    assert SameWindows(kept, TTFT).take(5).wrong == "backwards"
    assert source.asked == [5]


@dataclass
class Given:
    """A source that gives one window."""

    taken: Taken
    level: Level = "window"

    def take(self, count: int) -> Taken:
        assert count == 1
        return self.taken


class NoAnswers:
    """A source of no answers at all."""

    level: Level = "window"

    def take(self, count: int) -> Taken:
        raise NoLogprobs("no logprobs here")


def test_two_stacks_are_compared_by_the_same_windows() -> None:
    started: list[str] = []

    def window(name: str, server: Any, load: Load) -> Given:
        started.append(server.side)
        ttft_s = (0.3 if server.side == "candidate" else 0.2) * (1 + 0.001 * (len(started) % 3))
        return Given(Taken("window", (Replicate((0.02 * (1 + 0.001 * (len(started) % 3)),), facts(ttft_s)),)))

    answers: Any = lambda _: NoAnswers()  # noqa: E731 - typed as a source of answers
    start: Any = lambda side: SimpleNamespace(side=side, compiled=False)  # noqa: E731 - stands for its server
    servers = Servers(start, window, answers, lambda _: None)
    load = Load(1, 4, 4, 2)
    in_turn = ServersInTurn(servers, Contrast(), Budget(6, 6, 1e9), {TPOT.name: load}, lambda _: None)
    assert in_turn.judgement(TPOT, load).verdict is Verdict.PASS
    before = len(started)
    judged = in_turn.beside(TPOT.name, TTFT.metric(TPOT, 0.05), TTFT)
    assert judged.judgement.verdict is Verdict.REGRESSED
    assert judged.judgement.numbers.change == pytest.approx(0.5, abs=0.01)
    assert in_turn.beside(TPOT.name, RATE.metric(TPOT, 0.05), RATE).judgement.verdict is Verdict.PASS
    assert len(started) == before, "no window was added"


def test_they_are_said_beside_the_verdict() -> None:
    achieved = rates([Replicate((0.02,), facts())])
    assert line(achieved) == "TTFT 200 ms, between tokens 20.0 ms (p99 30.0 ms), 400 tok/s"


TESTS = """
    import pytest
    from pytest_decodegate.metric import Metric
    from pytest_decodegate.measure.window import Load


    @pytest.mark.perf(tolerance="90%")
    def test_tpot(perf, server):
        perf.measure_tpot(Metric.of("tpot[c=1]", "serving"), server, Load(1, 8, 4, 5))
"""
RUN = ("-v", "-m", "perf", "--perf-replicates=3", "--perf-max-replicates=3")
WINDOW = 1 + 5
"""Requests of a window at concurrency 1: a ramp and the measured ones."""

INI = "[pytest]\nperf_tolerance =\n    ttft[c=1] = 60%\n    output_rate* = 80%\n    * = 90%\n"


def slow_to_start(first_s: float) -> Any:
    """Answers whose first token takes `first_s`, and each other 10 ms."""

    async def handle(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(first_s)
        response = web.StreamResponse(headers=STREAM)
        await response.prepare(request)
        for piece in answer():
            await response.write(piece)
            await asyncio.sleep(0.01)

        return response

    return handle


@pytest.fixture
def run(pytester: pytest.Pytester, scripted: ScriptedServer) -> Callable[..., pytest.RunResult]:
    scripted.completion = slow_to_start(0.02)
    pytester.makepyfile(TESTS)
    return lambda *more: pytester.runpytest(*RUN, f"--perf-server={scripted.url}", *more)


def test_without_a_band_they_are_shown_and_gate_nothing(
    pytester: pytest.Pytester, run: Callable[..., pytest.RunResult]
) -> None:
    pytester.makeini("[pytest]\nperf_tolerance =\n    * = 90%\n")
    result = run("--perf-record", "--perf-report=report")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["tpot*NO_BASELINE*; TTFT * ms, between tokens * ms (p99 * ms), * tok/s; recorded *"])
    result.stdout.fnmatch_lines(["beside * TTFT * between tokens *", "tpot[[]c=1] * ms * tok/s"])
    result.stdout.no_fnmatch_line("ttft*")
    for name in ("report.md", "report.html"):
        text = (pytester.path / "report" / name).read_text()
        assert re.search(r"beside tpot.*: TTFT .* ms, between tokens .* ms \(p99 .* ms\), .* tok/s", text), name


def test_a_band_gates_them_from_the_windows_of_the_tpot(
    pytester: pytest.Pytester, scripted: ScriptedServer, run: Any
) -> None:
    """Nine windows, three of which confirm the slowdown: what they take is all that it costs."""
    pytester.makeini(INI)
    run("--perf-record").assert_outcomes(passed=1)
    (path,) = (pytester.path / "baselines").rglob("*.json")
    recorded = load(path).metrics
    assert set(recorded) == {"tpot[c=1]", "ttft[c=1]", "output_rate[c=1]"}
    assert recorded["ttft[c=1]"].metric.tolerance == 0.6
    assert recorded["ttft[c=1]"].metric.contract["formula"] == "ttft_median_v1"
    assert len(scripted.prompts) == 1 + 3 * WINDOW, "one warm-up, and no window for TTFT"

    scripted.completion = slow_to_start(0.08)
    slower = run()
    slower.assert_outcomes(failed=1)
    slower.stdout.fnmatch_lines(["tpot[[]c=1]: PASS: *", "ttft[[]c=1]: REGRESSED: *"])
    assert slower.ret == pytest.ExitCode.TESTS_FAILED


def test_a_server_that_fails_leaves_no_metric_out(
    pytester: pytest.Pytester, scripted: ScriptedServer, run: Any
) -> None:
    async def dead(_: web.Request) -> web.StreamResponse:
        return web.Response(status=503, text="the engine is dead")

    pytester.makeini(INI)
    scripted.completion = dead
    result = run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["tpot[[]c=1]: INVALID: *", "ttft[[]c=1]: INVALID: *", "output_rate[[]c=1]: INVALID: *"]
    )


def test_they_can_be_chosen_by_name(pytester: pytest.Pytester, run: Callable[..., pytest.RunResult]) -> None:
    pytester.makeini(INI)
    declares = 'perf(metric="tpot[c=1]", tolerance'
    pytester.makepyfile(test_declared=TESTS.replace("perf(tolerance", declares), test_other=TESTS)
    result = run("--perf-only=ttft[c=1]", "--collect-only", "-qq")
    result.stdout.fnmatch_lines(["test_declared.py::test_tpot", "1/3 tests collected *"])
    assert run("--perf-only=ttft[c=2]").ret == pytest.ExitCode.USAGE_ERROR
