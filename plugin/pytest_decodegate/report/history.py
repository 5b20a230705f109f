"""The stored sessions of metrics over time as one HTML file: levels, change points, and what changed in the stack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..baseline.history import Series
from ..gate.stats.changepoints import change_points, newest, step
from ..gate.text.quantity import format_percent, format_value
from .charts import Chart
from .html import rendered
from .svg import PlotLine, PlotMark, chart


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """A session at which the level of a metric changed: by how much, if for the worse, and what changed with it."""

    session: str
    recorded: str
    change: str
    is_worse: bool
    coincides: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SeriesStory:
    """A metric over its sessions as the page shows it. rows: a line of the table for each session, oldest first."""

    title: str
    said: str
    picture: Chart | None
    changes: tuple[ChangePoint, ...]
    rows: tuple[tuple[str, ...], ...]


HEADER = ("session", "recorded", "file", "value", "change")


def page(found: Sequence[Series], pattern: str, command: str) -> str:
    """The whole file, series with change points first; everything in it is escaped. command: repeats it."""
    stories = sorted(map(_story, found), key=lambda story: -len(story.changes))
    changes = sum(len(story.changes) for story in stories)
    said = f"{len(stories)} series, {changes} change point(s)"
    return rendered("history.html.j2", pattern=pattern, said=said, stories=stories, header=HEADER, command=command)


def _story(series: Series) -> SeriesStory:
    points = change_points(series.levels)
    metric = series.metric
    return SeriesStory(
        title=f"{metric.name} on {series.machine_class}",
        said=f"{_level(series)} in the newest of {len(series.points)} session(s), {metric.better} is better; "
        f"{_newest(series, points)}",
        picture=_chart(series, points) if len(series.points) > 1 else None,
        changes=tuple(_change(series, points, index) for index in points),
        rows=tuple(_rows(series)),
    )


def _level(series: Series) -> str:
    return format_value(series.points[-1].value, series.metric.unit)


def _newest(series: Series, points: Sequence[int]) -> str:
    found = newest(series.levels, max([series.accepted, *points]))
    if found is None:
        return "too few sessions on this level to say whether the newest is as expected"

    distance = format_percent(series.metric.change(found.distance))
    return f"the newest is {distance} from the level before it, {'un' if found.unexpected else 'as '}expected"


def _chart(series: Series, points: Sequence[int]) -> Chart:
    """Seconds, or units a second, against the number of the session; a mark at each change point."""
    metric = series.metric
    scale, unit = (1e6, "us") if metric.unit == "s" else (1.0, metric.unit)
    values = tuple((float(at), scale * point.value) for at, point in enumerate(series.points, start=1))
    marks = [PlotMark(*values[index], f"change point at session {index + 1}") for index in points]
    line = PlotLine(metric.name, values)
    picture = chart(metric.name, [line], labels=("session", unit), logarithmic=False, from_zero=False, marks=marks)
    return Chart(metric.name, picture)


def _change(series: Series, points: Sequence[int], index: int) -> ChangePoint:
    moved = step(series.levels, points, index)
    session = series.points[index].session
    change = format_percent(series.metric.change(moved))
    return ChangePoint(session.id, session.recorded[:16].replace("T", " "), change, moved > 0, series.coincides(index))


def _rows(series: Series) -> Iterator[tuple[str, ...]]:
    levels = series.levels
    for index, point in enumerate(series.points):
        moved = format_percent(point.metric.change(levels[index] - levels[index - 1])) if index else ""
        yield (
            point.session.id,
            point.session.recorded[:16].replace("T", " "),
            point.baseline.path.name,
            format_value(point.value, point.metric.unit),
            f"{moved}{', accepted' if point.accepted else ''}",
        )
