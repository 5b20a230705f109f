"""No test of the plugin can hang; it is not for perf tests, which have deadlines of their own."""

from __future__ import annotations

import pytest
from backstop import Backstop


def pytest_configure(config: pytest.Config) -> None:
    """Limit every test."""
    config.pluginmanager.register(Backstop(), "backstop")
