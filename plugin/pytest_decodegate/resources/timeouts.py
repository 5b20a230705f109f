"""Other plugins' timeouts. Ours must fire first: it names the silent rank and shows its stack, theirs cannot."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..gang.options import StartLimit

if TYPE_CHECKING:
    import pytest

MARGIN_SECONDS = 5.0
"""What naming, stacks and killing may take after our deadline, before the other timeout strikes."""

LEAST_SECONDS = 1.0


def deadline(item: pytest.Item | None, started: float, wanted_seconds: float) -> float:
    """`wanted_seconds`, or less where pytest-timeout or faulthandler_timeout would end `item` before.

    started: time.monotonic() at the start of the item, which is when their clocks start.
    """
    limits = [] if item is None else list(_limits(item))
    if not limits:
        return wanted_seconds

    left = started + min(limits) - MARGIN_SECONDS - time.monotonic()
    return min(wanted_seconds, max(LEAST_SECONDS, left))


def start_limit(item: pytest.Item | None, started: float, wanted_seconds: float) -> StartLimit:
    """The same for the start of ranks, with the words that say why it is short."""
    seconds = deadline(item, started, wanted_seconds)
    if item is None or seconds == wanted_seconds:
        return StartLimit(wanted_seconds)

    why = (
        f"because a timeout (--timeout or faulthandler_timeout) ends the test {min(_limits(item)):g} s after its begin"
    )
    return StartLimit(seconds, f", {why}: give a longer one to tests that start ranks")


def _limits(item: pytest.Item) -> Iterator[float]:
    marker = item.get_closest_marker("timeout")
    marked = marker and (marker.args[0] if marker.args else marker.kwargs.get("timeout"))
    # pytest-timeout's own order: marker, command line, environment, ini file.
    own = (
        marked,
        item.config.getoption("timeout", default=None),
        os.environ.get("PYTEST_TIMEOUT"),
        _ini(item, "timeout"),
    )
    for given in (next((limit for limit in own if limit is not None), None), _ini(item, "faulthandler_timeout")):
        seconds = _seconds(given)
        if seconds > 0:
            yield seconds


def _ini(item: pytest.Item, name: str) -> object:
    try:
        return item.config.getini(name)
    except (KeyError, ValueError):  # no plugin registered it
        return None


def _seconds(given: object) -> float:
    """0, which is no timeout, for what is no number: complaining about it is their plugin's business."""
    try:
        return float(given or 0)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return 0.0
