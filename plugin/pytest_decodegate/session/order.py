"""The order of perf tests: the cheap ones first, so that the run's time for open metrics settles as many as it can."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from typing import TYPE_CHECKING

from ..settings.markers import declared_metrics

if TYPE_CHECKING:
    import pytest


def cheap_first(items: list[pytest.Item], seconds: Mapping[str, float]) -> None:
    """Sort the perf tests among `items`, in place: files by what a test of theirs costs, then the tests in each file.

    seconds: what metrics took when they were recorded, by name. Tests of unknown cost count like the middle one; where
    no cost is known the order stays. Other tests stay where they are.
    """
    places = [place for place, item in enumerate(items) if item.get_closest_marker("perf")]
    perf_items = [items[place] for place in places]
    known = {item: found for item in perf_items if (found := _seconds(item, seconds)) is not None}
    if known:
        for place, item in zip(places, sorted(perf_items, key=_key(perf_items, known)), strict=True):
            items[place] = item


def _seconds(item: pytest.Item, seconds: Mapping[str, float]) -> float | None:
    """In whole seconds: less than that is no reason to leave the order in which they were written."""
    return max((round(seconds[name]) for name in declared_metrics(item).names if name in seconds), default=None)


def _key(
    perf_items: list[pytest.Item], known: Mapping[pytest.Item, float]
) -> Callable[[pytest.Item], tuple[float, int, float]]:
    """Sorts files by their middle cost, and keeps each together: its fixtures are set up once."""
    typical = median(known.values())
    files: dict[object, list[float]] = {}
    for item in perf_items:
        files.setdefault(item.path, []).append(known.get(item, typical))

    costs = {path: (median(each), turn) for turn, (path, each) in enumerate(files.items())}
    return lambda item: (*costs[item.path], known.get(item, typical))
