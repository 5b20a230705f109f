"""The fixtures: world_size, gpus, torchrun, perf and server."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .machine.gpus import Gpu
    from .resources.gangs import Gangs
    from .serving.server import Server
    from .session.perf import Perf
    from .session.session import PerfSession


def _session(request: pytest.FixtureRequest) -> PerfSession:
    from .session.session import session_of

    return session_of(request.config)


@pytest.fixture(scope="session")
def world_size(request: pytest.FixtureRequest) -> Generator[int]:
    """Number of ranks, from @pytest.mark.world_size(...), 1 without it. Skips where there are fewer GPUs than that."""
    size: int = getattr(request, "param", 1)  # asked for by name, a fixture has no parameter
    session = _session(request)
    if reason := session.gangs.too_few_gpus(size):
        pytest.skip(reason)

    yield size
    session.close_gangs(size)


@pytest.fixture
def gpus(request: pytest.FixtureRequest) -> list[Gpu]:
    """The GPUs that this run may use, in PCI order. Skips without one, and says why there is none."""
    fingerprint = _session(request).hardware.fingerprint
    if not fingerprint.gpus:
        pytest.skip(f"no GPU: {fingerprint.no_gpu_reason}")

    return list(fingerprint.gpus)


class Torchrun:
    """Runs module-level functions on every rank of the gang of one world size. deadline: seconds, if none is given."""

    def __init__(self, gangs: Gangs, world_size: int, deadline: Callable[[], float]) -> None:
        self._gangs = gangs
        self._deadline = deadline
        self.world_size = world_size

    def __call__(
        self, function: Callable[..., Any], *args: Any, deadline_seconds: float | None = None, **kwargs: Any
    ) -> list[Any]:
        """Call `function(*args, **kwargs)` on every rank at once; one value per rank, by rank.

        function: defined at module level, found by name on the ranks. Arguments and values must pickle.
        Raises RankRaised, RankDied or RankHung; the deadline is --perf-deadline unless given in seconds.
        """
        gang = self._gangs.bench(self.world_size).gangs(1)[0]
        deadline = self._deadline() if deadline_seconds is None else deadline_seconds
        return gang.run(function, *args, deadline_seconds=deadline, **kwargs)


@pytest.fixture
def torchrun(request: pytest.FixtureRequest, world_size: int) -> Torchrun:
    """Run a function on every rank of a gang that the real torchrun started and that lives on between tests."""
    session = _session(request)
    return Torchrun(session.gangs, world_size, session.deadline)


@pytest.fixture
def perf(request: pytest.FixtureRequest) -> Perf:
    """Measure a metric, judge it against its baseline, record it if asked; fails the test unless it passes."""
    return _session(request).perf(request.node)


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Server:
    """The inference server under test: attached with --perf-server, launched with --perf-launch, or the suite's own."""
    session = _session(request)
    if request.node.get_closest_marker("perf") and not session.has_usable_server:
        from .serving.unreachable import unreachable_server

        return unreachable_server()

    return session.reference.server()
