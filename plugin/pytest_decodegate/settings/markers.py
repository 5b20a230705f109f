"""The markers of perf tests: perf and world_size, checked when tests are collected."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from ..errors import BadInput


def check_markers(items: Iterable[pytest.Item]) -> None:
    """Raise UsageError for the first perf test whose marker cannot be used."""
    try:
        for item in items:
            marker_tolerance(item)
    except BadInput as error:
        raise pytest.UsageError(str(error)) from error


def marker_tolerance(item: pytest.Item) -> float | None:
    """The band of the nearest perf marker that gives one; raises BadInput for anything else in a perf marker."""
    bands = [_perf_marker(item.nodeid, marker) for marker in item.iter_markers("perf")]
    return next((band for band in bands if band is not None), None)


def marker_extended(item: pytest.Item) -> bool:
    """Whether a perf marker of the item says extended=True; `marker_tolerance` has checked the markers."""
    return any(marker.kwargs.get("extended") for marker in item.iter_markers("perf"))


def marker_advisory(item: pytest.Item) -> bool:
    """Whether a perf marker of the item says advisory=True: measured and shown, but blocking nothing but by numbers."""
    return any(marker.kwargs.get("advisory") for marker in item.iter_markers("perf"))


def marker_world_sizes(nodeid: str, marker: pytest.Mark | None) -> tuple[int, ...]:
    """The sizes of a world_size marker, (1,) without one; raises BadInput for what is no positive whole number."""
    if marker is None:
        return (1,)
    if marker.kwargs or not marker.args:
        raise BadInput(f"{nodeid}: world_size takes one or more numbers, for example @pytest.mark.world_size(1, 2)")
    for size in marker.args:
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise BadInput(f"{nodeid}: world_size {size!r} is not a positive whole number")

    return tuple(marker.args)


def _perf_marker(nodeid: str, marker: pytest.Mark) -> float | None:
    if marker.args:
        raise BadInput(f"{nodeid}: the perf marker takes no positional argument, found {marker.args[0]!r}")
    if unknown := sorted(set(marker.kwargs) - {"tolerance", "extended", "advisory"}):
        raise BadInput(
            f"{nodeid}: the perf marker knows no {unknown[0]!r}; it takes tolerance='3%', extended=True, advisory=True"
        )
    for flag in ("extended", "advisory"):
        if not isinstance(marker.kwargs.get(flag, False), bool):
            raise BadInput(f"{nodeid}: perf marker: {flag} is {marker.kwargs[flag]!r}; give True or False")
    if "tolerance" not in marker.kwargs:
        return None

    from ..metric import parse_tolerance

    return parse_tolerance(str(marker.kwargs["tolerance"]), f"{nodeid}: perf marker")
