"""Perf tests in pytest-benchmark's own table and files, when the user asks for these; never a dependency."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
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
    if session is None or not wanted(config):
        return None

    try:
        # Appending to a disabled session makes the workers of xdist write its files over each other.
        if not session.disabled:
            session.benchmarks.append(_metadata(stored))
    except (ImportError, AttributeError, TypeError) as error:
        return f"pytest-benchmark cannot show {stored.metric.name}: {error} (its session is private, and may change)"

    return None


def wanted(config: pytest.Config) -> bool:
    """Whether the user asked for one of OUTPUTS, on the command line, in PYTEST_ADDOPTS or in the ini file's addopts.

    The values of the options cannot tell: pytest-benchmark before 5.3 fills --benchmark-columns by itself.
    """
    given = {word.partition("=")[0] for word in words(config)}
    return any(f"--benchmark-{name}" in given for name in OUTPUTS)


def words(config: pytest.Config) -> Iterator[str]:
    """The words that pytest read its options from, those of @FILE included."""
    yield from _spelled_out(config.getini("addopts"))
    yield from _spelled_out(shlex.split(os.environ.get("PYTEST_ADDOPTS", "")))
    yield from _spelled_out(config.invocation_params.args)


def _spelled_out(given: Iterable[str | os.PathLike[str]]) -> Iterator[str]:
    """`given` with each @FILE replaced by its lines, one option each, as argparse reads them."""
    for word in (os.fspath(word) for word in given):
        if word.startswith("@"):
            yield from _spelled_out(Path(word[1:]).read_text(encoding="utf-8").splitlines())
        else:
            yield word


def _metadata(stored: StoredMetric) -> Any:
    """What pytest-benchmark makes of its own fixture; it has no public way to add a measurement."""
    from pytest_benchmark.stats import Metadata

    from ..baseline.benchmark_json import benchmark

    (session,) = stored.sessions
    described = {**benchmark(stored.metric), "extra_info": {"unit": stored.metric.unit, "level": session.level}}
    fixture = SimpleNamespace(**described, cprofile_stats=None, has_error=False)
    metadata = Metadata(fixture, iterations=1, options={"timer": str(stored.metric.contract.get("clock", "unknown"))})
    for sample in session.samples:
        metadata.stats.update(stored.metric.seconds(sample))

    return metadata
