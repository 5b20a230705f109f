"""The charts of a report: TPOT against streams, collectives against bytes and ranks, clocks and temperatures."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from markupsafe import Markup

from ..gate.evidence.bandwidth import CROSSINGS
from ..gate.result import Result
from ..gate.verdict import UNFIT, Judgement
from ..metric import Json
from ..profile.categories import Category
from ..profile.ledger import Ledger, Part, Time, ledger, parts
from .profile import COLOURS
from .scaling import without_world
from .svg import PlotLine, PlotMark, bars, chart

_STEP: Final = re.compile(r"decode_step\[tp=(?P<ranks>\d+),m=(?P<tokens>\d+)\]")
_STREAMS: Final = re.compile(r"(?P<before>.*\[(?:.*,)?)c=(?P<streams>\d+)(?P<after>[\],].*)")

KNEE: Final = 1.5
"""Growth of the throughput below which a doubling of the streams is past the knee: half of the perfect gain."""

MOST_LINES: Final = 12
IDLE: Final = frozenset({"gpu_idle", "none", "applications_clocks_setting"})
"""Reasons of a clock that limit no work."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture with its title and what to know of it.

    legend: names of lines with the classes that colour them. swatches: names of areas with their colours.
    """

    title: str
    picture: Markup
    legend: tuple[tuple[str, str], ...] = ()
    note: str = ""
    swatches: tuple[tuple[str, str], ...] = ()


def charts(results: Sequence[Result]) -> list[Chart]:
    """Those for which there are at least two points, in the order in which they are read."""
    fit = [result for result in results if result.judgement.verdict not in UNFIT]
    return [*_steps(fit), *_by_streams(fit), *_by_bytes(fit), *_by_ranks(fit), *_clocks(results)]


def knee(points: Sequence[tuple[float, float]]) -> float | None:
    """The streams from which on doubling them adds less than half again to the throughput; None if it never does.

    points: (streams, seconds per token) in order of streams. Between points that are no doubling, growth is taken
    per doubling.
    """
    for (streams, tpot), (more, slower) in pairwise(points):
        growth = (more / slower) / (streams / tpot)
        if growth < KNEE ** _doublings(streams, more):
            return streams

    return None


def _steps(results: Sequence[Result]) -> Iterator[Chart]:
    """The decode steps that the metrics add up to: kernel time by category, before and now."""
    judgements = {result.name: result.judgement for result in results}
    for name in judgements:
        if match := _STEP.fullmatch(name):
            needed = parts(int(match["ranks"]), int(match["tokens"]))
            sides = {"base": _times(needed, judgements, "base"), "now": _times(needed, judgements, "measured")}
            known = {side: times for side, times in sides.items() if times}
            if known:
                yield _step_chart(name, {side: ledger(needed, times) for side, times in known.items()})


def _times(needed: Sequence[Part], judgements: Mapping[str, Judgement], side: str) -> dict[str, Time]:
    """The time of every part on one side; {} where one is not known."""
    found = {part.metric: judgements[part.metric].numbers for part in needed if part.metric in judgements}
    levels = {name: getattr(numbers, side) for name, numbers in found.items()}
    whole = all(levels.get(part.metric) is not None for part in needed)
    return {name: Time(level) for name, level in levels.items()} if whole else {}


def _step_chart(name: str, steps: Mapping[str, Ledger]) -> Chart:
    rows = [
        (side, [(category.label, COLOURS[category], 1e3 * step.of(category)) for category in Category])
        for side, step in steps.items()
    ]
    used = [row for row in zip(*(found for _, found in rows), strict=True) if any(part[2] for part in row)]
    swatches = ((f"{row[0][0]} {' -> '.join(f'{part[2]:.3f}' for part in row)} ms", row[0][1]) for row in used)
    return Chart(f"{name}: kernel time by category", bars(name, rows), swatches=tuple(swatches))


def _doublings(streams: float, more: float) -> float:
    return math.log2(more / streams)


def _by_streams(results: Sequence[Result]) -> Iterator[Chart]:
    found: dict[str, list[tuple[float, Result]]] = {}
    for result in results:
        if result.judgement.metric.unit == "s" and (match := _STREAMS.fullmatch(result.name)):
            found.setdefault(f"{match['before']}c{match['after']}", []).append((float(match["streams"]), result))

    for name, points in found.items():
        points.sort(key=lambda point: point[0])
        lines = _both(points, 1e3)
        if lines:
            yield _knee_chart(name, lines)


def _knee_chart(name: str, lines: Sequence[PlotLine]) -> Chart:
    at = knee(lines[-1].points)
    tpot = dict(lines[-1].points)
    marks = [PlotMark(at, tpot[at], f"knee at {at:g} streams")] if at is not None else []
    said = (
        f"knee at {at:g} streams: beyond it, doubling the streams gives less than {KNEE:g}x the throughput"
        if at is not None
        else f"no knee up to {lines[-1].points[-1][0]:g} streams: each doubling gives at least {KNEE:g}x the throughput"
    )
    title = f"{name}: time per token against concurrency"
    picture = chart(title, lines, labels=("streams", "ms per token"), marks=marks)
    return Chart(title, picture, _legend(lines), said)


def _both(points: Sequence[tuple[float, Result]], scale: float) -> list[PlotLine]:
    """The base dashed and what was measured, each where it has at least two points; [] without the latter."""
    sides = (
        ("base", [(x, result.judgement.numbers.base) for x, result in points]),
        ("measured", [(x, result.judgement.numbers.measured) for x, result in points]),
    )
    lines = []
    for name, values in sides:
        known = tuple((x, scale * value) for x, value in dict(values).items() if value is not None)
        if len(known) > 1:
            lines.append(PlotLine(name, known, colour=len(sides) - 1 if name == "base" else 0, dashed=name == "base"))

    return lines if lines and lines[-1].name == "measured" else []


def _legend(lines: Iterable[PlotLine]) -> tuple[tuple[str, str], ...]:
    return tuple((line.name, line.kind) for line in lines)


def _by_bytes(results: Sequence[Result]) -> Iterator[Chart]:
    yield from _collectives(results, "bytes", "world_size", "rank(s)", "bytes (nccl-tests)")


def _by_ranks(results: Sequence[Result]) -> Iterator[Chart]:
    yield from _collectives(results, "world_size", "bytes", "bytes", "ranks")


def _collectives(results: Sequence[Result], along: str, fixed: str, unit: str, label: str) -> Iterator[Chart]:
    """For each collective its time along one field of the contract; one line for each path and value of the other."""
    found: dict[str, dict[str, dict[float, float]]] = {}
    for result in results:
        contract, measured = result.judgement.metric.contract, result.judgement.numbers.measured
        collective, x, other = contract.get("collective"), contract.get(along), contract.get(fixed)
        if measured is None or not isinstance(collective, str) or collective not in CROSSINGS:
            continue
        if isinstance(x, int | float) and isinstance(other, int | float) and x > 0:
            path = without_world(result.name).partition("[")[0]
            by_line = found.setdefault(collective, {})
            by_line.setdefault(f"{path}, {other:,.0f} {unit}", {})[float(x)] = measured * 1e6

    for collective, by_line in found.items():
        several = {name: points for name, points in by_line.items() if len(points) > 1}
        lines = [
            PlotLine(name, tuple(sorted(points.items())), colour=at, dashed=at >= MOST_LINES // 2)
            for at, (name, points) in enumerate(list(several.items())[:MOST_LINES])
        ]
        if lines:
            title = f"{collective} against {'size' if along == 'bytes' else 'world size'}"
            left = len(several) - len(lines)
            note = f"{left} more lines are in the table" if left else ""
            yield Chart(title, chart(title, lines, labels=(label, "us per call")), _legend(lines), note)


def _clocks(results: Sequence[Result]) -> Iterator[Chart]:
    """The SM clock and the temperature of each GPU along the run, in the order of the metrics."""
    for field, end, label, title in (
        ("sm_clock_mhz", "median", "MHz", "SM clock along the run"),
        ("temperature_c", "max", "°C", "temperature along the run"),
    ):
        lines, marks = _telemetry(results, field, end)
        if lines:
            picture = chart(
                title, lines, labels=("metric, in order", label), logarithmic=False, from_zero=False, marks=marks
            )
            note = f"marked: the clock was limited beside {len(marks)} of the points" if marks else "nothing limited it"
            yield Chart(title, picture, _legend(lines), note if field == "sm_clock_mhz" else "")


def _telemetry(results: Sequence[Result], field: str, end: str) -> tuple[list[PlotLine], list[PlotMark]]:
    points: dict[int, list[tuple[float, float]]] = {}
    marks = []
    for at, result in enumerate(results, start=1):
        for number, gpu in enumerate(result.gpus):
            value = _value(gpu, field, end)
            if value is None or not isinstance(gpu, Mapping):
                continue

            points.setdefault(number, []).append((float(at), value))
            if limits := _limits(gpu):
                marks.append(PlotMark(float(at), value, f"{result.name}, GPU {number}: {', '.join(limits)}"))

    several = [(number, tuple(found)) for number, found in sorted(points.items()) if len(found) > 1]
    lines = [PlotLine(f"GPU {number}", found, colour=number, joined=False) for number, found in several]
    return lines, marks if lines else []


def _value(gpu: Json, field: str, end: str) -> float | None:
    spread = gpu.get(field) if isinstance(gpu, Mapping) else None
    value = spread.get(end) if isinstance(spread, Mapping) else None
    return float(value) if isinstance(value, int | float) else None


def _limits(gpu: Mapping[str, Json]) -> list[str]:
    """What held the clock down beside a metric, by its reasons and by what the GPU counted."""
    found = (gpu.get(field) for field in ("reasons", "limited_s"))
    limits = [(name, much) for each in found if isinstance(each, Mapping) for name, much in each.items()]
    active = (name for name, much in limits if isinstance(much, int | float) and much > 0)
    return [name for name in dict.fromkeys(active) if name not in IDLE]
