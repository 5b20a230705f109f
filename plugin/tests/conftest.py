"""For the tests of the plugin, run by their path; the plugin itself comes through its entry point.

Not at the top level: there it would be loaded with the perf tests of a clone, whatever folder a run starts in. No test
can hang: each has a limit.
"""

from __future__ import annotations

import gc
import importlib
import os
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from backstop import Backstop
from hypothesis import settings
from scripted import ScriptedServer

import pytest_decodegate
from pytest_decodegate.metric import Json
from pytest_decodegate.resources import probe

# A pytester run inside this process forgets modules that it was first to import. So it has all of ours from the start:
# hundreds of runs need not import them again, what these keep for a session is kept (the floor of the client, 0.7 s),
# and what ends a run meets no second class of a name that its rooms still hold. Workloads are for ranks.
for each in pkgutil.walk_packages(pytest_decodegate.__path__, f"{pytest_decodegate.__name__}."):
    if not each.name.startswith(f"{pytest_decodegate.__name__}.workloads") and not each.name.endswith("__main__"):
        importlib.import_module(each.name)

pytest_plugins = ["pytester"]

# Its 200 ms for an example would be an assertion on absolute time, on machines that others use, too. Half of its usual
# examples, drawn anew in each run, take the suite below a quarter of an hour; before a release: --hypothesis-profile.
settings.register_profile("decodegate", deadline=None, max_examples=50)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile("decodegate")


def pytest_configure(config: pytest.Config) -> None:
    """Limit every test; runs that tests start report to no job of GitHub that runs them."""
    os.environ.pop("GITHUB_ACTIONS", None)
    config.pluginmanager.register(Backstop(), "backstop")


def pytest_unconfigure() -> None:
    """Let everything go at the end: what stays frozen would be reported as leaked."""
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def asked_once() -> Iterator[None]:
    """Ask a Python only once what it would load: a process of its own imports torch for that, a second and a half.

    The answer depends on that Python and the variables it is given; a test that has it asked with others asks anew.
    """
    with pytest.MonkeyPatch.context() as patch:
        kept: dict[object, dict[str, Json]] = {}

        def ask(
            python: str, question: str, environment: Mapping[str, str], seconds: float, import_path: Sequence[str]
        ) -> dict[str, Json]:
            key = (python, question, *sorted(environment.items()), None, *import_path)
            if key not in kept:
                kept[key] = really(python, question, environment, seconds, import_path)

            return dict(kept[key])

        really = probe.ask_python
        patch.setattr(probe, "ask_python", ask)
        yield


@pytest.fixture(scope="module", autouse=True)
def small_heap() -> None:
    """Leave what modules and torch hold out of what is searched for garbage.

    Each pytester run inside this process ends with five searches, a second of them with all of vLLM imported.
    """
    gc.collect()
    gc.freeze()


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
