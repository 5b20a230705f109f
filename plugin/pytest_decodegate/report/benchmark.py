"""Perf tests in pytest-benchmark's own table and files, when the user asks for these; never a dependency."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

    from ..baseline.schema import StoredMetric

OUTPUTS = ("json", "save", "autosave", "compare", "histogram", "columns", "verbose")
"""Options of pytest-benchmark (after --benchmark-) that ask for an output of its own."""


def share(config: pytest.Config, stored: StoredMetric) -> str | None:
    """Add a metric to the session of pytest-benchmark if the user asked for its output; says why it could not.

    pytest-benchmark may be absent, switched off (-p no:benchmark) or disabled (by xdist, say): that is no problem.
    """
    session = getattr(config, "_benchmarksession", None)
    if session is None or not any(config.getoption(f"benchmark_{name}", default=None) for name in OUTPUTS):
        return None

    try:
        # Appending to a disabled session makes the workers of xdist write its files over each other.
        if not session.disabled:
            session.benchmarks.append(_metadata(stored))
    except (ImportError, AttributeError, TypeError) as error:
        return f"pytest-benchmark cannot show {stored.metric.name}: {error} (its session is private, and may change)"

    return None


def _metadata(stored: StoredMetric) -> Any:
    """What pytest-benchmark makes of its own fixture; it has no public way to add a measurement."""
    from pytest_benchmark.stats import Metadata

    from ..baseline.benchmark_json import entry

    described = entry(stored)
    fixture = SimpleNamespace(**described, cprofile_stats=None, has_error=False)
    metadata = Metadata(fixture, iterations=1, options=described["options"])
    for seconds in stored.data:
        metadata.stats.update(seconds)

    return metadata
