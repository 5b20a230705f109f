"""`decodegate history`: the sessions of a metric over time, where its level changed, and with which stack."""

from __future__ import annotations

import argparse
import difflib
import json
import math
import shlex
import string
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadInput
from ..gate.text.quantity import format_percent, format_value
from ..metric import literal_brackets

if TYPE_CHECKING:
    from ..baseline.history import Series, SeriesPoint
    from ..baseline.store import Store
    from ..gate.stats.changepoints import Newest
    from ..metric import Json, Metric

HEADER = ("", "#", "recorded", "file", "session", "value", "spread", "change")


def add(commands: Any) -> None:
    """Register the command with the subparsers `commands`."""
    parser = commands.add_parser("history", help="show a metric over its stored sessions, and where its level changed")
    parser.add_argument("metric", metavar="METRIC", help="name of a metric, or a pattern: 'tpot[c=1]', 'tpot*'")
    parser.add_argument("--machine", metavar="CLASS", help="machine class (default: all that are stored)")
    parser.add_argument("--baselines", type=Path, default=Path("baselines"), help="folder of stored baselines")
    parser.add_argument("--format", choices=("table", "json"), default="table", help="table and plot, or strict JSON")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write all of it as an HTML page there")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from ..baseline.store import Store

    found = _find(Store(options.baselines), options.machine, options.metric)
    if options.output is not None:
        _write(options, found)
    elif options.format == "json":
        document = {"metric": options.metric, "series": [_as_json(series) for series in found]}
        print(json.dumps(document, indent=1, allow_nan=False))
    else:
        print("\n\n".join("\n".join(_lines(series)) for series in found))

    return 0


def _find(store: Store, machine: str | None, metric: str) -> list[Series]:
    from ..baseline.history import series

    known: list[str] = []
    found: list[Series] = []
    pattern = literal_brackets(metric)
    for machine_class in [machine] if machine is not None else store.classes():
        baselines = store.load_all(machine_class)
        names = dict.fromkeys(name for baseline in baselines for name in baseline.metrics)
        known.extend(names)
        found.extend(each for name in names if fnmatchcase(name, pattern) for each in series(baselines, name))

    if not found:
        near = difflib.get_close_matches(metric, set(known), n=3, cutoff=0.4) or sorted(set(known))[:3]
        where = store.folder(machine) if machine is not None else store.root
        raise BadInput(f"{where}: no stored session of metric {metric!r}; known: {', '.join(near) or 'none'}")

    return found


def _write(options: argparse.Namespace, found: Sequence[Series]) -> None:
    """The page; raises BadInput where it is wanted in a form that no suffix names, or cannot be written."""
    if options.output.suffix.lower() not in (".html", ".htm"):
        raise BadInput(f"-o {options.output}: the history is written as a page; name a file that ends in .html")

    from ..profile.documents import replace_whole
    from ..redaction import redact_arguments
    from ..report.history import page

    shown = page(found, options.metric, shlex.join(redact_arguments(options.typed)))
    try:
        replace_whole(options.output, shown.encode())
    except OSError as error:
        raise BadInput(f"{options.output}: cannot be written: {error.strerror}; name another file with -o") from error

    print(f"{len(found)} series written to {options.output}")


def _lines(series: Series) -> Iterator[str]:
    from ..gate.stats.changepoints import change_points, newest
    from ..report.plot import plot
    from ..report.table import table

    metric, levels = series.metric, series.levels
    points = change_points(levels)
    letters = _letters(series.points)
    files = len(set(letters))
    sessions = f"{len(levels)} session(s), {files} file(s)"
    yield f"{metric.name} on {series.machine_class}: {sessions}; {metric.better} is better"
    yield from table([HEADER, *_rows(series, points, letters)])
    yield ""
    yield from plot([point.value for point in series.points], letters, metric.unit, points)
    yield ""
    for index in points:
        yield from _change(series, points, index)
    if not points:
        yield "no change point: no two stretches of sessions differ in level for sure"

    yield _last(newest(levels, max([series.accepted, *points])), series.metric)


def _rows(series: Series, points: Sequence[int], letters: str) -> Iterator[tuple[str, ...]]:
    levels = series.levels
    for index, point in enumerate(series.points):
        yield (
            f"{'>' if index in points else ' '}{letters[index]}",
            str(index + 1),
            point.session.recorded[:16].replace("T", " ") or "-",
            point.baseline.path.name,
            point.session.id,
            format_value(point.value, point.metric.unit),
            "-" if point.spread is None else format_percent(point.spread, signed=False),
            (format_percent(point.metric.change(levels[index] - levels[index - 1])) if index else "-")
            + (", accepted" if point.accepted else ""),
        )


def _letters(points: Sequence[SeriesPoint]) -> str:
    """One letter a file, in the order in which files come up."""
    files = dict.fromkeys(point.baseline.path for point in points)
    letter = {path: string.ascii_letters[index % len(string.ascii_letters)] for index, path in enumerate(files)}
    return "".join(letter[point.baseline.path] for point in points)


def _change(series: Series, points: Sequence[int], index: int) -> Iterator[str]:
    from ..gate.stats.changepoints import step

    moved = step(series.levels, points, index)
    change = format_percent(series.metric.change(moved))
    worse = "worse" if moved > 0 else "better"
    yield f"change point at session {index + 1} ({series.points[index].session.id}): {change}, {worse}"
    found = series.coincides(index)
    yield from (f"  coincides with {line}" for line in found)
    if not found:
        yield "  nothing stored differs there: look at the code under test, the cooling and the load of this host"


def _last(found: Newest | None, metric: Metric) -> str:
    from ..gate.stats.changepoints import LEAST_HISTORY

    if found is None:
        return f"newest session: fewer than {LEAST_HISTORY} before it on this level, too few to say what is expected"

    inside = "unexpected: outside of" if found.unexpected else "as expected: within"
    distance = format_percent(metric.change(found.distance))
    width = format_percent(math.expm1(found.half_width), signed=False)
    return f"newest session: {distance} from the {found.history} before it, {inside} their 99 % interval of +-{width}"


def _as_json(series: Series) -> Mapping[str, Json]:
    from ..gate.stats.changepoints import change_points, newest, step

    levels, metric = series.levels, series.metric
    points = change_points(levels)
    last = newest(levels, max([series.accepted, *points]))
    return {
        "metric": metric.name,
        "machine_class": series.machine_class,
        "unit": metric.unit,
        "better": metric.better,
        "identity": metric.identity,
        "level": series.points[0].session.level,
        "sessions": [_point_json(point) for point in series.points],
        "change_points": [
            {
                "session": series.points[index].session.id,
                "change": metric.change(step(levels, points, index)),
                "coincides": list(series.coincides(index)),
            }
            for index in points
        ],
        "newest": None if last is None else _newest_json(last, metric),
    }


def _newest_json(last: Newest, metric: Metric) -> Json:
    return {
        "change": metric.change(last.distance),
        "half_width": math.expm1(last.half_width),
        "unexpected": last.unexpected,
        "history": last.history,
    }


def _point_json(point: SeriesPoint) -> Json:
    return {
        "id": point.session.id,
        "recorded": point.session.recorded or None,
        "file": point.baseline.path.name,
        "label": point.baseline.label,
        "value": point.value,
        "spread": point.spread,
        "processes": len(point.session.values),
        "accepted": point.accepted,
    }
