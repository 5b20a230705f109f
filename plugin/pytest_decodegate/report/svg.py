"""Small pictures as inline SVG: they take their colours from the page, so that light, dark and paper fit.

Drawn by hand and not by a plotting library: a page with a hundred of them is written again after each metric, colours
have to follow the reader's theme, and a gate's host installs nothing for it. Every number is escaped by markupsafe.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

WIDTH, HEIGHT = 360, 220
LEFT, RIGHT, TOP, BOTTOM = 54, 12, 12, 36
"""Margins of a chart, for its labels."""

COLOURS = 6
"""Classes c0 to c5 of the page; further series differ by their dashes."""

MOST_TICKS = 5


@dataclass(frozen=True, slots=True)
class PlotLine:
    """A series of a chart: points in order of x. dashed: as a base is drawn. joined: by lines between its points."""

    name: str
    points: tuple[tuple[float, float], ...]
    colour: int = 0
    dashed: bool = False
    joined: bool = True

    @property
    def kind(self) -> str:
        """The classes that draw it, in the chart and in its legend."""
        return f"c{self.colour % COLOURS}{' dashed' if self.dashed else ''}"


@dataclass(frozen=True, slots=True)
class PlotMark:
    """A sign at a point, with what it says on hover and to screen readers."""

    x: float
    y: float
    text: str


@dataclass(frozen=True, slots=True)
class PlotAxis:
    """The scale of a plot. low, high: ends of what is shown. logarithmic: in powers of two."""

    low: float
    high: float
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """Where `value` lies: 0 at the low end and 1 at the high one, never outside of them."""
        low, high, value = (math.log2(each) if self.logarithmic else each for each in (self.low, self.high, value))
        return min(1.0, max(0.0, (value - low) / (high - low))) if high > low else 0.5


def number(value: float) -> str:
    """A coordinate in as few characters as two decimals need."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def ticks(low: float, high: float) -> list[float]:
    """At most MOST_TICKS round numbers between `low` and `high`."""
    if not high > low:
        return [low]

    rough = (high - low) / (MOST_TICKS - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [step * count for count in range(first, math.floor(high / step + 1e-9) + 1)]


def forest(interval: tuple[float, float] | None, change: float, band: float, widest: float) -> Markup:
    """An interval against its band, worse to the right; widest: the change at either edge. All are fractions."""
    axis = PlotAxis(-widest, widest)

    def x(value: float) -> str:
        return number(200 * axis.place(value))

    drawn = [
        Markup('<rect class="band" x="{}" y="0" width="{}" height="20"/>').format(
            x(-band), number(200 * (axis.place(band) - axis.place(-band)))
        ),
        Markup('<line class="zero" x1="{0}" x2="{0}" y1="0" y2="20"/>').format(x(0.0)),
        Markup('<line class="limit" x1="{0}" x2="{0}" y1="0" y2="20"/>').format(x(band)),
    ]
    if interval is not None:
        low, high = map(x, interval)
        drawn.append(Markup('<line class="interval" x1="{}" x2="{}" y1="10" y2="10"/>').format(low, high))
    drawn.append(Markup('<line class="point" x1="{0}" x2="{0}" y1="4" y2="16"/>').format(x(change)))
    return _stretched("forest", 200, 20, drawn)


def strip(rows: Sequence[Sequence[tuple[float, float, float]]]) -> Markup:
    """Processes as ticks, their samples' middle half as bars: (low, value, high) each; one row a side, newest last."""
    every = [value for row in rows for process in row for value in process]
    axis = PlotAxis(min(every), max(every))
    drawn = [part for number_, row in enumerate(rows) for part in _strip_row(row, axis, number_, len(rows))]
    return _stretched("strip", 200, 20, drawn)


def _strip_row(row: Sequence[tuple[float, float, float]], axis: PlotAxis, at: int, rows: int) -> Iterable[Markup]:
    """Two paths: a bar and a tick for each process, in as few characters as that takes."""
    height = 20 / rows
    middle = number(height * (at + 0.5))
    side = "new" if at == rows - 1 else "base"
    places = [tuple(number(4 + 192 * axis.place(value)) for value in process) for process in row]
    bars = "".join(f"M{low} {middle}H{high}" for low, _, high in places if low != high)
    ends = number(height * (at + 0.1)), number(height * (at + 0.9))
    marks = "".join(f"M{value} {ends[0]}V{ends[1]}" for _, value, _ in places)
    if bars:
        yield Markup('<path class="middle" d="{}"/>').format(bars)
    yield Markup('<path class="process {}" d="{}"/>').format(side, marks)


def spark(levels: Sequence[float]) -> Markup:
    """Levels over time as a line, the newest marked."""
    axis = PlotAxis(min(levels), max(levels))
    step = 192 / max(1, len(levels) - 1)
    places = [(4 + step * at, 26 - 22 * axis.place(level)) for at, level in enumerate(levels)]
    line = " ".join(f"{number(x)},{number(y)}" for x, y in places)
    x, y = places[-1]
    drawn = [
        Markup('<polyline class="past" points="{}"/>').format(line),
        Markup('<line class="point" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/>').format(
            number(x), number(y - 3), number(y + 3)
        ),
    ]
    return _stretched("spark", 200, 30, drawn)


def _stretched(kind: str, width: int, height: int, parts: Iterable[Markup]) -> Markup:
    """A picture that fills its cell, whatever its shape; the numbers stand beside it as text, so it is hidden."""
    return Markup(
        '<svg class="{}" viewBox="0 0 {} {}" preserveAspectRatio="none" aria-hidden="true" focusable="false">{}</svg>'
    ).format(kind, width, height, Markup("").join(parts))


def chart(
    name: str,
    lines: Sequence[PlotLine],
    *,
    labels: tuple[str, str],
    logarithmic: bool = True,
    from_zero: bool = True,
    marks: Sequence[PlotMark] = (),
) -> Markup:
    """Lines over x with axes and a description for screen readers. labels: of x and of y, with their units."""
    xs = sorted({x for line in lines for x, _ in line.points})
    ys = [y for line in lines for _, y in line.points]
    horizontal = PlotAxis(xs[0], xs[-1], logarithmic)
    room = (max(ys) - min(ys)) * 0.1 or max(ys) * 0.05
    vertical = PlotAxis(0.0 if from_zero else max(0.0, min(ys) - room), max(ys) + room)
    frame = _Frame(horizontal, vertical)
    shown = xs if logarithmic else ticks(horizontal.low, horizontal.high)
    drawn = [*frame.axes(_thinned(shown), labels), *map(frame.line, lines), *map(frame.mark, marks)]
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, HEIGHT, _described(name, lines, marks), Markup("").join(drawn)
    )


def bars(name: str, rows: Sequence[tuple[str, Sequence[tuple[str, str, float]]]]) -> Markup:
    """Stacked bars on one scale, a row each: (name of the part, its colour, its length) in order."""
    most = max(sum(length for *_, length in parts) for _, parts in rows)
    drawn = [part for at, (side, parts) in enumerate(rows) for part in _bar(side, parts, most, 8 + 40 * at)]
    height = 40 * len(rows) + 8
    said = "; ".join([name, *(f"{side}: {sum(length for *_, length in parts):.3f} ms" for side, parts in rows)])
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, height, said, Markup("").join(drawn)
    )


def _bar(side: str, parts: Sequence[tuple[str, str, float]], most: float, y: int) -> Iterable[Markup]:
    scale = (WIDTH - LEFT - 70) / most if most else 0.0
    reached = 0.0
    yield Markup('<text x="{}" y="{}" class="end">{}</text>').format(LEFT - 6, y + 19, side)
    for name, colour, length in parts:
        if length:
            yield Markup(
                '<rect x="{}" y="{}" width="{}" height="30" fill="{}"><title>{}: {:.3f} ms</title></rect>'
            ).format(number(LEFT + scale * reached), y, number(scale * length), colour, name, length)
            reached += length

    yield Markup('<text x="{}" y="{}">{:.3f} ms</text>').format(number(LEFT + scale * reached + 6), y + 19, reached)


def _thinned(values: Sequence[float]) -> Sequence[float]:
    """Few enough that their labels do not touch."""
    every = -(-len(values) // 7)
    return values[::every]


def _described(name: str, lines: Sequence[PlotLine], marks: Sequence[PlotMark]) -> str:
    parts = [f"{line.name}: from {line.points[0][1]:.3g} to {line.points[-1][1]:.3g}" for line in lines]
    return "; ".join([name, *parts, *(mark.text for mark in marks)])


@dataclass(frozen=True, slots=True)
class _Frame:
    horizontal: PlotAxis
    vertical: PlotAxis

    def x(self, value: float) -> str:
        return number(LEFT + (WIDTH - LEFT - RIGHT) * self.horizontal.place(value))

    def y(self, value: float) -> str:
        return number(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * self.vertical.place(value))

    def axes(self, shown: Sequence[float], labels: tuple[str, str]) -> Iterable[Markup]:
        for value in ticks(self.vertical.low, self.vertical.high):
            y = self.y(value)
            yield Markup('<line class="grid" x1="{}" x2="{}" y1="{y}" y2="{y}"/>').format(LEFT, WIDTH - RIGHT, y=y)
            yield Markup('<text x="{}" y="{}" class="end" dy="4">{:.4g}</text>').format(LEFT - 6, y, value)
        for value in shown:
            at = self.x(value)
            yield Markup('<text x="{}" y="{}" class="mid">{}</text>').format(at, HEIGHT - BOTTOM + 15, _short(value))
        yield Markup('<text x="{}" y="{}" class="mid">{}</text>').format(
            (LEFT + WIDTH - RIGHT) // 2, HEIGHT - 5, labels[0]
        )
        yield Markup('<text class="mid" transform="translate(11 {}) rotate(-90)">{}</text>').format(
            (TOP + HEIGHT - BOTTOM) // 2, labels[1]
        )

    def line(self, line: PlotLine) -> Markup:
        points = " ".join(f"{self.x(x)},{self.y(y)}" for x, y in line.points)
        dots = Markup("").join(
            Markup('<circle class="{}" cx="{}" cy="{}" r="2.5"><title>{}: {}: {:.4g}</title></circle>').format(
                line.kind, self.x(x), self.y(y), line.name, _short(x), y
            )
            for x, y in line.points
        )
        joined = Markup('<polyline class="{}" points="{}"/>').format(line.kind, points) if line.joined else Markup("")
        return joined + dots

    def mark(self, mark: PlotMark) -> Markup:
        x, y = (float(each) for each in (self.x(mark.x), self.y(mark.y)))
        points = f"{number(x - 5)},{number(y - 12)} {number(x + 5)},{number(y - 12)} {number(x)},{number(y - 4)}"
        return Markup('<polygon class="mark" points="{}"><title>{}</title></polygon>').format(points, mark.text)


def _short(value: float) -> str:
    """As "8", "14 k" or "2 M": what stands below an axis."""
    for scale, name in ((2**20, " M"), (2**10, " k")):
        if value >= scale:
            return f"{value / scale:.3g}{name}"

    return f"{value:.3g}"
