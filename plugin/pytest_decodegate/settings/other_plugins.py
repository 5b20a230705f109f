"""Options of other pytest plugins that a perf run cannot go with, or that explain what became of one."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

_REPEAT = "__pytest_repeat_step_number"
"""The parameter by which pytest-repeat (--count, @pytest.mark.repeat) makes several tests of one."""


def refuse_xdist(config: pytest.Config) -> None:
    """Raise UsageError for -n and --dist of pytest-xdist."""
    given = [
        f"{option} {value}"
        for option, name in (("-n", "numprocesses"), ("--dist", "dist"))
        if (value := config.getoption(name, default=None)) not in (None, 0, "no")
    ]
    if given:
        raise pytest.UsageError(
            f"perf tests own the hardware and cannot share it with other workers ({' '.join(given)}); run them without "
            "-n and --dist"
        )


def refuse_repeats(perf_items: Iterable[pytest.Item]) -> None:
    """Raise UsageError if pytest-repeat makes several of one perf test."""
    for item in perf_items:
        callspec = getattr(item, "callspec", None)
        if callspec and _REPEAT in callspec.params:
            raise pytest.UsageError(
                f"{item.nodeid}: pytest-repeat (--count, @pytest.mark.repeat) makes several tests of one metric, which "
                "has one verdict in a run; --perf-replicates N measures it on N fresh gangs, and another run of pytest "
                "measures it again"
            )


def why_nothing_ran(config: pytest.Config) -> str:
    """What another plugin has to do with perf tests that came to no verdict, as the end of a sentence; or ""."""
    if config.getoption("benchmark_only", default=False):
        return (
            " (--benchmark-only of pytest-benchmark skips every test without its own `benchmark` fixture, perf tests "
            "included: run without it)"
        )

    return ""
