"""The fixtures: world_size, gpus, torchrun, perf and server."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import pytest

from .session.session import SUITE, Suite

if TYPE_CHECKING:
    from .machine.gpus import Gpu
    from .serving.server import Server
    from .session.perf import Perf


@pytest.fixture(scope="session")
def world_size(request: pytest.FixtureRequest) -> Generator[int]:
    """Number of ranks, from @pytest.mark.world_size(...), 1 without it. Skips where there are fewer GPUs than that."""
    size: int = getattr(request, "param", 1)  # asked for by name, a fixture has no parameter
    suite = _suite(request)
    if reason := suite.too_few_gpus(size):
        pytest.skip(reason)

    yield size
    suite.close_bench(size)


@pytest.fixture
def gpus(request: pytest.FixtureRequest) -> list[Gpu]:
    """The GPUs that this run may use, in PCI order. Skips without one, and says why there is none."""
    fingerprint = _suite(request).fingerprint
    if not fingerprint.gpus:
        pytest.skip(f"no GPU: {fingerprint.no_gpu_reason}")

    return list(fingerprint.gpus)


class Torchrun:
    """Runs module-level functions on every rank of the gang of one world size."""

    def __init__(self, suite: Suite, world_size: int) -> None:
        self._suite = suite
        self.world_size = world_size

    def __call__(
        self, function: Callable[..., Any], *args: Any, deadline_seconds: float | None = None, **kwargs: Any
    ) -> list[Any]:
        """Call `function(*args, **kwargs)` on every rank at once; one value per rank, by rank.

        function: defined at module level, found by name on the ranks. Arguments and values must pickle.
        Raises RankRaised, RankDied or RankHung; the deadline is --perf-deadline unless given in seconds.
        """
        gang = self._suite.bench(self.world_size).gangs(1)[0]
        deadline = self._suite.deadline() if deadline_seconds is None else deadline_seconds
        return gang.run(function, *args, deadline_seconds=deadline, **kwargs)


@pytest.fixture
def torchrun(request: pytest.FixtureRequest, world_size: int) -> Torchrun:
    """Run a function on every rank of a gang that the real torchrun started and that lives on between tests."""
    return Torchrun(_suite(request), world_size)


@pytest.fixture
def perf(request: pytest.FixtureRequest) -> Perf:
    """Measure a metric, judge it against its baseline, record it if asked; fails the test unless it passes."""
    from .session.perf import Perf

    return Perf(_suite(request), request.node)


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Server:
    """The inference server under test: attached with --perf-server, launched with --perf-serve, or the suite's own."""
    suite = _suite(request)
    if (suite.wedged() or suite.server.hung) and request.node.get_closest_marker("perf"):
        from .serving.unavailable import nowhere

        return nowhere()

    return suite.server.running() if suite.against is None else suite.against.server(request.node.nodeid)


def _suite(request: pytest.FixtureRequest) -> Suite:
    return request.config.stash[SUITE]
