"""The streams of a window, on a clock that jumps from end to end of answers, and at a server of known pace."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_decodegate.client.client import Client
from pytest_decodegate.client.paced import paced
from pytest_decodegate.client.stream import Exchange
from pytest_decodegate.errors import ServerError
from pytest_decodegate.measure import streams as streams_module
from pytest_decodegate.measure.streams import Streams
from pytest_decodegate.measure.window import Load


class JumpingLoop(asyncio.SelectorEventLoop):
    """A loop whose time goes on only when nothing else is left to do."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1.0
        selector: Any = self._selector  # type: ignore[attr-defined]
        look = selector.select

        def jump(timeout: float | None) -> Any:
            self.now_s += timeout or 0.0
            return look(0)

        selector.select = jump

    def time(self) -> float:
        return self.now_s


class IdealClient:
    """Answers a token a step, after a prefill; `scatter` makes single answers slower or faster."""

    def __init__(self, loop: JumpingLoop, step_s: float, prefill_s: float, scatter: float, seed: int) -> None:
        self._loop = loop
        self._step_s, self._prefill_s, self._scatter = step_s, prefill_s, scatter
        self._random = random.Random(seed)

    async def complete(self, prompt: Sequence[int], *, output_tokens: int) -> Exchange:
        assert list(prompt) == [1, 2, 3]
        sent_s = self._loop.time()
        seconds = self._prefill_s + output_tokens * self._step_s
        await asyncio.sleep(seconds * (1 + self._scatter * self._random.uniform(-1, 1)))
        return Exchange(sent_s, ((self._loop.time(), b""),), output_tokens)


def ended_s(exchange: Exchange) -> float:
    return exchange.pieces[-1][0]


def run_ideally(
    load: Load, *, step_s: float = 0.01, prefill_s: float = 0.0, scatter: float = 0.0, seed: int = 0
) -> Streams:
    """Streams of a window that an ideal server answered."""
    loop = JumpingLoop()
    client: Any = IdealClient(loop, step_s, prefill_s, scatter, seed)
    found = Streams(client, load, lambda: [1, 2, 3], lambda: round(1e6 * loop.now_s))
    try:
        with mock.patch.object(streams_module, "time", SimpleNamespace(monotonic=loop.time)):
            loop.run_until_complete(found.run())
    finally:
        loop.close()

    return found


def everything(found: Streams) -> list[Exchange]:
    return [*found.ramp, *found.measured, *found.company]


def check_full(found: Streams, load: Load) -> None:
    """From the first measured answer's beginning to the last one's end, as many are open as the load asks for."""
    spans = [(each.sent_s, ended_s(each)) for each in everything(found)]
    for moment_s in (ended_s(each) for each in found.measured):
        assert sum(sent_s < moment_s <= end_s for sent_s, end_s in spans) == load.concurrency


LOADS = st.builds(
    Load,
    concurrency=st.integers(1, 40),
    prompt_tokens=st.just(3),
    output_tokens=st.integers(8, 128),
    requests=st.integers(1, 60),
)


@settings(max_examples=60, deadline=None)
@given(LOADS, st.floats(1e-3, 0.1), st.floats(0, 3), st.floats(0, 0.2), st.integers(0, 99))
def test_what_is_measured_begins_after_the_ramp_and_is_never_alone(
    load: Load, step_s: float, prefill_steps: float, scatter: float, seed: int
) -> None:
    found = run_ideally(load, step_s=step_s, prefill_s=prefill_steps * step_s, scatter=scatter, seed=seed)
    assert [each.asked_tokens for each in found.measured] == [load.output_tokens] * load.requests
    assert sorted(each.asked_tokens for each in found.ramp) == sorted(load.ramp)
    begins_s, ends_s = max(map(ended_s, found.ramp)), max(map(ended_s, found.measured))
    assert min(each.sent_s for each in found.measured) >= begins_s
    assert found.log_marks == [round(1e6 * begins_s), round(1e6 * ends_s)]
    check_full(found, load)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 4), st.integers(32, 128), st.floats(0, 3))
def test_answers_begin_evenly_spread(concurrency: int, rounds: int, tokens: int, prefill_steps: float) -> None:
    load = Load(concurrency, 3, tokens, rounds * concurrency)
    found = run_ideally(load, step_s=1.0, prefill_s=prefill_steps)
    answer_s = tokens + prefill_steps
    begun = sorted(each.sent_s for each in found.measured)
    assert all(after - before <= answer_s / concurrency + 1 + prefill_steps + 1e-6 for before, after in pairwise(begun))
    together = max(sum(abs(other - one) < 0.5 for other in begun) for one in begun)
    assert together <= -(-concurrency // tokens) + 1


@pytest.mark.parametrize(("concurrency", "requests"), [(1, 8), (2, 8), (4, 12), (8, 24), (16, 32), (32, 64), (64, 128)])
def test_a_window_takes_about_as_long_as_with_cohorts(concurrency: int, requests: int) -> None:
    """Before, it took one round as a ramp, those measured, and one for company."""
    load = Load(concurrency, 3, 128, requests)
    found = run_ideally(load, step_s=1.0, prefill_s=2.0)
    took = max(map(ended_s, everything(found))) - 1
    rounds = requests / concurrency + (1 if concurrency == 1 else 2)
    assert took <= (rounds + 1 / 4) * 130


def test_company_that_ends_too_early_is_followed_by_more() -> None:
    """A server that becomes much slower when the last answers are being measured."""
    load = Load(4, 3, 64, 8)
    loop = JumpingLoop()

    class Slowing(IdealClient):
        async def complete(self, prompt: Sequence[int], *, output_tokens: int) -> Exchange:
            if output_tokens == load.output_tokens and len(found.measured) >= 3:
                await asyncio.sleep(2.0)

            return await super().complete(prompt, output_tokens=output_tokens)

    client: Any = Slowing(loop, 0.01, 0.0, 0.0, 0)
    found = Streams(client, load, lambda: [1, 2, 3], lambda: 0)
    try:
        with mock.patch.object(streams_module, "time", SimpleNamespace(monotonic=loop.time)):
            loop.run_until_complete(found.run())
    finally:
        loop.close()

    assert len(found.company) > 8
    ends_s = max(map(ended_s, found.measured))
    assert sum(each.sent_s < ends_s <= ended_s(each) for each in everything(found)) >= 1


def test_a_request_that_fails_ends_the_window() -> None:
    class Failing(IdealClient):
        async def complete(self, prompt: Sequence[int], *, output_tokens: int) -> Exchange:
            found = await super().complete(prompt, output_tokens=output_tokens)
            if self._loop.now_s > 2:
                raise ServerError("it is gone")

            return found

    loop = JumpingLoop()
    client: Any = Failing(loop, 0.01, 0.0, 0.0, 0)
    try:
        with pytest.raises(ExceptionGroup) as caught:
            loop.run_until_complete(Streams(client, Load(4, 3, 64, 8), lambda: [1, 2, 3], lambda: 0).run())
    finally:
        loop.close()

    assert caught.group_contains(ServerError, match="it is gone")


def test_real_streams_stay_spread_at_a_real_server() -> None:
    """Of four, a quarter of an answer apart; on busy cores some begin late, and half of that is kept by the median."""
    load = Load(4, 3, 40, 12)
    step_s = 0.005
    with paced(step_s) as server:

        async def run() -> Streams:
            async with Client(server.endpoint, stall_seconds=30.0) as client:
                found = Streams(client, load, lambda: [1, 2, 3], time.monotonic_ns)
                await found.run()
                return found

        found = uvloop.run(run())

    assert len(found.measured) == load.requests
    begun = sorted(each.sent_s for each in found.measured)
    apart = sorted(after - before for before, after in pairwise(begun))
    assert apart[len(apart) // 2] == pytest.approx(load.output_tokens * step_s / load.concurrency, rel=0.5)
    assert min(begun) >= max(map(ended_s, found.ramp))
