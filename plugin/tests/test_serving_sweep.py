import asyncio
import math
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from scripted import STREAM, ScriptedServer, answer

from pytest_decodegate.machine.watch import Telemetry
from pytest_decodegate.measure.sweep import (
    FLAT,
    Point,
    SweepSource,
    concurrencies,
    explore,
    is_flat,
    knee,
    plateau,
    said,
    sweep_lines,
)
from pytest_decodegate.measure.window import Load, Window
from pytest_decodegate.measure.window_source import WindowSource
from pytest_decodegate.metric import Metric
from pytest_decodegate.reference.protocol import ServerWork
from pytest_decodegate.reference.two_stacks import TwoStacks
from pytest_decodegate.serving.server import attach

LOAD = Load(concurrency=1, prompt_tokens=16, output_tokens=5, requests=2)
STEP_S = 0.01
CAPACITIES = st.integers(1, 128)


def served(concurrency: int, capacity: float) -> Point:
    """A point of a server that gives `capacity` streams a token every step, and shares that among more."""
    tpot_s = STEP_S * max(1.0, concurrency / capacity)
    return Point(concurrency, concurrency / tpot_s, tpot_s)


def curve(capacity: float, most: int = 128) -> list[Point]:
    def window(load: Load) -> Window:
        point = served(load.concurrency, capacity)
        return Window((point.tpot_s,) * load.requests, (0.1,), point.output_tok_s, ())

    return explore(LOAD, window, most=most)


def test_concurrencies_double() -> None:
    assert concurrencies(128) == (1, 2, 4, 8, 16, 32, 64, 128)
    assert concurrencies(100) == (1, 2, 4, 8, 16, 32, 64)


@given(st.sampled_from([2, 4, 8, 16, 32]))
def test_plateau_and_knee_are_at_the_capacity(capacity: int) -> None:
    points = curve(capacity)
    assert is_flat(points)
    assert points[-1].concurrency == 4 * capacity
    assert plateau(points).concurrency == capacity
    bend = knee(points)
    assert bend
    assert bend.concurrency == capacity


@given(st.floats(1, 32))
def test_the_plateau_begins_at_the_first_power_of_two_that_fills_any_capacity(capacity: float) -> None:
    begins = plateau(curve(capacity)).concurrency
    assert begins / capacity >= 1 - FLAT
    assert begins / 2 < capacity


@given(CAPACITIES, st.floats(1e-3, 1e3))
def test_units_make_no_difference(capacity: int, factor: float) -> None:
    points = curve(capacity)
    scaled = [replace(point, output_tok_s=point.output_tok_s * factor) for point in points]
    assert plateau(scaled).concurrency == plateau(points).concurrency
    bends = [found.concurrency if (found := knee(some)) else None for some in (points, scaled)]
    assert bends[0] == bends[1]


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=8))
def test_any_curve_has_a_plateau_within_the_limit_and_can_be_told(rates: list[float]) -> None:
    points = [Point(2**power, rate, math.nan) for power, rate in enumerate(rates)]
    begins = plateau(points)
    assert begins.output_tok_s >= (1 - FLAT) * max(rates)
    assert all(point.output_tok_s < (1 - FLAT) * max(rates) for point in points[: points.index(begins)])
    assert knee(points) in (None, *points)
    assert sweep_lines(points)[-1] == said(points)


def test_one_flat_doubling_does_not_end_the_sweep() -> None:
    rates = [100.0, 101.0, 200.0, 400.0]
    points = [Point(2**power, rate, 0.01) for power, rate in enumerate(rates)]
    assert not is_flat(points[:2])
    assert not is_flat(points)
    assert is_flat([*points, Point(16, 404.0, 0.01), Point(32, 390.0, 0.01)])


def test_a_straight_line_has_neither() -> None:
    points = curve(1000)
    assert len(points) == 8
    assert knee(points) is None
    assert said(points) == "no plateau up to 128 streams (12800 tok/s), and there is no knee"


def test_the_plot_marks_plateau_and_knee() -> None:
    lines = sweep_lines(curve(4))
    assert "PPPPPPP" in "\n".join(lines)
    assert lines[-1] == "the plateau begins at 4 streams (400 tok/s), the knee is at 4"
    assert lines[-3].split() == ["1", "2", "4", "8", "16", "streams"]
    assert "10.0" in lines[-2]


NOBODY: Any = None


def watch() -> Any:
    return nullcontext(SimpleNamespace(report=lambda: Telemetry((), {})))


def sweep(scripted: ScriptedServer, said_lines: list[str], wrong: str | None = None) -> SweepSource:
    server = attach(scripted.url)
    progress: Any = SimpleNamespace(tick=lambda text: None, say=said_lines.append)

    def at(load: Load) -> WindowSource:
        return WindowSource("throughput", server, load, watch=watch, progress=progress)

    return SweepSource("throughput", server, LOAD, most=64, at=at, progress=progress, wrong=wrong)


def test_a_server_whose_answers_are_wrong_is_not_swept(scripted: ScriptedServer) -> None:
    taken = sweep(scripted, [], wrong="the answers differ").take(3)
    assert (taken.replicates, taken.wrong) == ((), "the answers differ")
    assert scripted.prompts == []
    assert "sweep" not in taken.facts


def test_a_server_of_known_capacity(scripted: ScriptedServer) -> None:
    capacity = 2
    slots = asyncio.Semaphore(capacity)

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=STREAM)
        await response.prepare(request)
        *tokens, usage, end = answer((await request.json())["max_tokens"])
        for piece in tokens:
            async with slots:
                await asyncio.sleep(0.008)
            await response.write(piece)

        await response.write(usage + end)
        return response

    scripted.completion = handle
    said_lines: list[str] = []
    taken = sweep(scripted, said_lines).take(1)
    (replicate,) = taken.replicates
    points = taken.facts["sweep"]
    assert isinstance(points, list)
    rates = [point["output_tok_s"] for point in points if isinstance(point, dict)]
    assert len(rates) < len(concurrencies(64))  # the plateau ended it
    assert isinstance(rates[0], float)
    # Capacity is two streams: how exactly it comes out depends on who else uses these cores.
    assert 0.5 * capacity < replicate.value / rates[0] < 1.5 * capacity
    assert taken.broken == ()
    assert "concurrency" not in taken.contract
    assert taken.contract["rule"] == "first of 1, 2, 4 ... 64 streams within 5% of the highest"
    assert taken.notes[0].startswith("the plateau begins at ")
    assert said_lines[0].startswith("throughput: output tokens per second\n")


def test_servers_of_two_stacks_are_not_swept(scripted: ScriptedServer) -> None:
    metric = Metric.of("throughput_plateau", "serving", unit="tok/s")
    work = ServerWork(metric, attach(scripted.url), LOAD)
    with pytest.raises(pytest.skip.Exception, match=r"with --perf-base .* none is swept"):
        TwoStacks.measure_plateau(NOBODY, work, most=4)

    assert scripted.prompts == []
