"""Hooks that decodegate adds to pytest: stacks go in by them, and everything that a run says comes out, as values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..settings.stack import Stack


@pytest.hookspec(firstresult=True)
def pytest_decodegate_stacks(config: pytest.Config) -> tuple[Stack, Stack] | None:
    """Give base and candidate to a run that a program starts; None leaves them to --perf-base and --perf-candidate.

    Asked before the options are read; with two stacks given, those options are refused.
    """


@pytest.hookspec(firstresult=True)
def pytest_decodegate_typed(config: pytest.Config) -> Sequence[str] | None:
    """Give the words that a person typed to start a run that a program starts; None: those that pytest was given."""


def pytest_decodegate_outcome(outcome: object) -> None:
    """Take what the run says, as it comes: a Result, Failed, Skipped, Stacks or Ended of gate.result, a Launch, or the
    StepProfile of a decode step.

    The last one of a run that came to its end is a Decision of gate.decision: the answer.
    """
