"""Concurrency doubled until throughput stops growing: where the plateau begins, and where the knee is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from ..cause import Finding
from ..gate.text.quantity import format_value
from ..metric import Json, Level, Replicate
from ..report.plot import plot
from .load import WARM_UP_SECONDS, ClosedLoop
from .source import Taken
from .window_source import WindowSource

if TYPE_CHECKING:
    from ..serving.server import Server
    from .source import Progress
    from .window import Load, Window

FLAT: Final = 0.05
"""A doubling of the concurrency that brings less than this, as a fraction of the throughput, brings nothing."""

MOST_STREAMS: Final = 128
_COLUMNS = 7  # of the plot, for each concurrency


@dataclass(frozen=True, slots=True)
class Point:
    """One window of the sweep. tpot_s: median over requests, nan if none could be timed. broken: rules it broke."""

    concurrency: int
    output_tok_s: float
    tpot_s: float
    broken: tuple[Finding, ...] = ()


def concurrencies(most: int = MOST_STREAMS) -> tuple[int, ...]:
    """1, 2, 4, ... up to `most`."""
    return tuple(2**power for power in range(most.bit_length()))


def is_flat(points: Sequence[Point]) -> bool:
    """Whether the last two doublings each brought less than FLAT; one alone may be a window's noise."""
    gains = [after.output_tok_s / before.output_tok_s - 1 for before, after in pairwise(points)]
    return len(gains) >= 2 and max(gains[-2:]) < FLAT


def plateau(points: Sequence[Point]) -> Point:
    """Where the plateau begins: the lowest concurrency whose throughput is within FLAT of the highest."""
    highest = max(point.output_tok_s for point in points)
    return next(point for point in points if point.output_tok_s >= (1 - FLAT) * highest)


def knee(points: Sequence[Point]) -> Point | None:
    """Where more streams begin to cost each stream more than they bring; None without a bend.

    Kneedle (Satopaa et al., ICDCSW 2011) on throughput over concurrency: both scaled to 0..1, the point that lies
    farthest above the straight line from the first to the last.
    """
    first, last = points[0], points[-1]
    rise = max(point.output_tok_s for point in points) - first.output_tok_s
    if len(points) < 3 or rise <= 0:
        return None

    def above(point: Point) -> float:
        gained = (point.output_tok_s - first.output_tok_s) / rise
        return gained - (point.concurrency - first.concurrency) / (last.concurrency - first.concurrency)

    best = max(points, key=above)
    return best if above(best) > FLAT else None


def explore(load: Load, window: Callable[[Load], Window], *, most: int = MOST_STREAMS) -> list[Point]:
    """Points from 1 stream on, until two doublings brought nothing or `most` streams are reached.

    window: runs one at the load it is given; that load measures two requests per stream, at least `load.requests`.
    """
    points: list[Point] = []
    for concurrency in concurrencies(most):
        asked = replace(load, concurrency=concurrency, requests=max(load.requests, 2 * concurrency))
        found = window(asked)
        tpot_s = statistics.median(found.tpot_s) if found.tpot_s else math.nan
        points.append(Point(concurrency, found.output_tok_s, tpot_s, found.broken))
        if is_flat(points):
            break

    return points


def sweep_lines(points: Sequence[Point]) -> list[str]:
    """The sweep as lines of text: a plot of the throughput (P where the plateau begins, K the knee) and a table."""
    begins, bend = plateau(points), knee(points)
    marks = ["P" if point is begins else "K" if point is bend else "*" for point in points]
    wide = [value for point in points for value in [point.output_tok_s] * _COLUMNS]
    lines = plot(wide, [mark for mark in marks for _ in range(_COLUMNS)], "tok/s", ())
    indent = " " * (lines[0].index("|") + 1)
    streams = "".join(f"{point.concurrency:^{_COLUMNS}}" for point in points).rstrip()
    tpots = "".join(f"{_milliseconds(point.tpot_s):^{_COLUMNS}}" for point in points).rstrip()
    return [*lines, f"{indent}{streams}  streams", f"{indent}{tpots}  ms a token", said(points)]


def said(points: Sequence[Point]) -> str:
    """The outcome in a sentence."""
    begins, bend = plateau(points), knee(points)
    level = format_value(begins.output_tok_s, "tok/s")
    where = f"the plateau begins at {begins.concurrency} streams ({level})"
    if not is_flat(points):
        where = f"no plateau up to {points[-1].concurrency} streams ({format_value(points[-1].output_tok_s, 'tok/s')})"

    return where + (f", the knee is at {bend.concurrency}" if bend else ", and there is no knee")


def _milliseconds(seconds: float) -> str:
    return "-" if math.isnan(seconds) else f"{seconds * 1e3:.1f}"


class SweepSource:
    """A Source of output tokens per second where the plateau begins: one replicate per window there.

    The sweep only chooses the concurrency, so that a lucky window of it counts no more than another.
    at: makes a source of windows at a load. wrong: how the server's answers are wrong, or None; nothing is swept then.
    """

    level: Level = "window"

    def __init__(
        self,
        name: str,
        server: Server,
        load: Load,
        *,
        most: int,
        at: Callable[[Load], WindowSource],
        progress: Progress,
        wrong: str | None = None,
        warm_up_seconds: float = WARM_UP_SECONDS,
    ) -> None:
        self._name = name
        self._server = server
        self._load = load
        self._most = most
        self._at = at
        self._progress = progress
        self._wrong = wrong
        self._warm_up_seconds = warm_up_seconds
        self._points: list[Point] = []
        self._windows = at(load)

    def _contract(self, windows: Taken) -> dict[str, Json]:
        """What is sent at every concurrency, and the rule by which the plateau is found."""
        kept = {name: value for name, value in windows.contract.items() if name not in ("concurrency", "requests")}
        return {**kept, "rule": f"first of 1, 2, 4 ... {self._most} streams within {FLAT:.0%} of the highest"}

    def _facts(self, windows: Taken) -> dict[str, Json]:
        """The whole curve, plateau and knee, and what was seen in the windows on the plateau."""
        bend = knee(self._points)
        curve: list[Json] = [_json(point) for point in self._points]
        return {
            **windows.facts,
            "sweep": curve,
            "plateau_concurrency": plateau(self._points).concurrency,
            "knee_concurrency": bend.concurrency if bend else None,
        }

    def take(self, count: int) -> Taken:
        """Sweep at the first call; then `count` more windows where the plateau begins."""
        if self._wrong:
            return Taken(self.level, wrong=self._wrong)
        if not self._points:
            self._sweep()

        windows = self._windows.take(count)
        return replace(
            windows,
            replicates=tuple(map(_of_throughput, windows.replicates)),
            contract=self._contract(windows),
            facts=self._facts(windows),
            notes=(Finding(said(self._points)), *windows.notes),
        )

    def _sweep(self) -> None:
        self._points = explore(self._load, self._window, most=self._most)
        self._progress.say("\n".join([f"{self._name}: output tokens per second", *sweep_lines(self._points)]))
        streams = plateau(self._points).concurrency
        self._windows = self._at(
            replace(self._load, concurrency=streams, requests=max(self._load.requests, 2 * streams))
        )

    def _window(self, load: Load) -> Window:
        self._progress.tick(f"{self._name}: {load.concurrency} streams")
        loop = ClosedLoop(self._server, load)
        loop.warm_up(self._warm_up_seconds, lambda waited: self._progress.tick(f"{self._name}: warming up, {waited}"))
        return loop.window()


def _of_throughput(replicate: Replicate) -> Replicate:
    rate = replicate.facts["output_tok_s"]
    assert isinstance(rate, float)
    return Replicate((rate,), replicate.facts)


def _json(point: Point) -> Json:
    tpot_s = None if math.isnan(point.tpot_s) else point.tpot_s
    return {**asdict(point), "tpot_s": tpot_s, "broken": list(point.broken)}
