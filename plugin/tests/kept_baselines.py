"""Baselines that take several runs to record: recorded by the first test of a module, copied for its others."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def recorded_once(pytester: pytest.Pytester, kept: Path, record: Callable[[], None]) -> None:
    """Let the test's own folder have the baselines that `record` writes there, run only if `kept` is not there yet."""
    if kept.exists():
        shutil.copytree(kept, pytester.path / "baselines")
        return

    record()
    shutil.copytree(pytester.path / "baselines", kept)
