"""For the tests of the plugin, run by their path; the plugin itself comes through its entry point.

Not at the top level: there it would be loaded with the perf tests of a clone, whatever folder a run starts in. No test
can hang: each has a limit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from backstop import Backstop
from hypothesis import settings
from scripted import ScriptedServer

# A pytester run inside this process forgets modules that it was first to import, and their rooms go on holding them:
# what ends a run would then meet two classes of one name.
import pytest_decodegate.fitness.table
import pytest_decodegate.report.terminal
import pytest_decodegate.session.results  # noqa: F401

pytest_plugins = ["pytester"]

# Its 200 ms for an example would be an assertion on absolute time, on machines that others use, too.
settings.register_profile("decodegate", deadline=None)
settings.load_profile("decodegate")


def pytest_configure(config: pytest.Config) -> None:
    """Limit every test; runs that tests start report to no job of GitHub that runs them."""
    os.environ.pop("GITHUB_ACTIONS", None)
    config.pluginmanager.register(Backstop(), "backstop")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the baselines lie that the first test of a module records for its others: `kept_baselines`."""
    return tmp_path_factory.mktemp("kept") / "baselines"


@pytest.fixture
def scripted() -> Iterator[ScriptedServer]:
    """A server of the test's own, whose every answer is scripted."""
    server = ScriptedServer()
    yield server
    server.close()
