"""Clocks for a burst of calls on one rank, and the Workload that a factory hands back."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ...metric import Json

Burst = Callable[[], object]
"""Does its calls and returns when they are launched (or, on a CPU, done); what it returns is not looked at."""

ALIGN_CYCLES = 400_000
"""Length of the device-side sleep before the interval, in SM cycles: 0.2 ms at 2 GHz. By then every rank has launched
its first collective; a graph may take the host longer, see CudaClock."""

MOST_ALIGN_CYCLES = 64 * ALIGN_CYCLES
"""13 ms at 2 GHz. Of 382 gangs that replayed graphs of collectives on 2 and 4 H200s, 64 came to 2x ALIGN_CYCLES, 298
to 4x, 20 to 8x and none further; on another host five gangs came to 16x at once and were late still, so that a graph of
0.9 ms took 2.7. Samples that are late in spite of this are taken again, or break a rule."""

GATE_CYCLES = 200_000
"""Slept before the sleep that is timed, 0.1 ms at 2 GHz: the host queues that meanwhile, or its launches would be part
of it. On two H200s the clock read from 400,000 cycles then scattered by 0.04 %."""

SETTLE_CYCLES = 100_000_000
"""50 ms at 2 GHz, after which the clock of a device that was idle has risen."""

OVERHEAD_CYCLES = 200_000
OVERHEAD_ROUNDS = 9

DUTY_CYCLE = 0.2
"""Share of the time that a device works on bursts while it is sampled. On an H200 bursts of GEMMs without rests ran at
1,400 to 1,500 MHz under the power cap, 17 % slower than with four times their length of rest, which never met it."""

CLOCK_BACK = 0.99
"""Of the highest clock seen, from where on a sample's is back; below it the next rest is twice as long."""

MOST_REST_SECONDS = 0.5

CAPTURE_WARMUPS = 3


class Clock(Protocol):
    """A clock that times a burst."""

    def seconds(self, burst: Burst) -> float:
        """Time of `burst` in seconds, as this clock sees it."""


class CpuClock:
    """The host's monotonic clock, for work that is done when the call returns."""

    def seconds(self, burst: Burst) -> float:
        """Run `burst` once; seconds of perf_counter between its start and its return."""
        start = time.perf_counter()
        burst()
        return time.perf_counter() - start


class CpuTimeClock:
    """CPU time of this process, for work that nothing else in it runs beside.

    Beside ten runnable processes on two cores the wall time of one expert MLP came to four times its value, and its CPU
    time stayed within a few percent: what waits for a core is not charged.
    """

    def seconds(self, burst: Burst) -> float:
        """Run `burst` once; seconds of process_time, of all threads together, between its start and its return."""
        start = time.process_time()
        burst()
        return time.process_time() - start


class CudaClock:
    """CUDA events on the current stream around the burst; the device is idle before and after.

    sleep_cycles: SM cycles that the device spins between the host's first launch and the start event, so that the
    launches of all ranks are queued when the interval begins. prelude: runs after that, before the start event: a small
    collective here lets no rank begin before all are there. ahead: the interval is the device's alone, so the whole
    burst must be queued before it begins: the sleep is doubled after each burst for which the host came too late. What
    such a burst took is returned all the same, or this rank would be out of step with the others; `late` says so. There
    are at most six of them until MOST_ALIGN_CYCLES, most while samples still warm up.

    late: whether the device came to the last burst before the host had queued it; never unless `ahead`.
    sm_mhz: SM clock just before the last burst, which is what the sleep's cycles took; None where nothing was slept, or
    where the host was late, so that its launches are part of that time.
    """

    def __init__(self, sleep_cycles: int = 0, prelude: Burst | None = None, *, ahead: bool = False) -> None:
        import torch

        self.sleep_cycles = sleep_cycles
        self.sm_mhz: float | None = None
        self.late = False
        self._prelude = prelude
        self._ahead = ahead
        self._start, self._stop, self._asleep, self._awake = (torch.cuda.Event(enable_timing=True) for _ in range(4))
        self._rest = Rest()

    def rest(self) -> None:
        """Let the device cool down after the last burst, if bursts are the device's alone; see `Rest`."""
        if self._ahead:
            time.sleep(self._rest.seconds)

    def seconds(self, burst: Burst) -> float:
        """Run `burst` once; seconds between two events on the current stream (resolution about 0.5 us)."""
        cycles = self.sleep_cycles
        queued = self._sleep(cycles) if cycles else False
        if self._prelude:
            self._prelude()

        self._start.record()
        burst()
        self._stop.record()
        # Once the device has passed the start, maybe there was no work for it yet.
        self.late = self._ahead and bool(self._start.query())
        if self.late:
            self.sleep_cycles = min(2 * cycles, MOST_ALIGN_CYCLES)

        self._stop.synchronize()
        seconds = float(self._start.elapsed_time(self._stop)) / 1e3
        self.sm_mhz = self._clock_mhz(cycles) if queued else None
        self._rest.after(seconds, self.sm_mhz)
        return seconds

    def _sleep(self, cycles: int) -> bool:
        """Queue the sleep between two events; whether it was queued before the device came to it."""
        import torch

        launch_seconds()  # measured here, before a sample, and not while other ranks set up on the same device
        torch.cuda._sleep(GATE_CYCLES)
        self._asleep.record()
        torch.cuda._sleep(cycles)
        self._awake.record()
        return not bool(self._asleep.query())

    def _clock_mhz(self, cycles: int) -> float | None:
        slept = float(self._asleep.elapsed_time(self._awake)) / 1e3 - launch_seconds()
        return cycles / slept / 1e6 if slept > 0 else None


@dataclass(slots=True)
class Rest:
    """How long a device rests before its next burst: so long that it works DUTY_CYCLE of the time, twice as long after
    each burst whose clock was not back, and MOST_REST_SECONDS at most.

    A card at its power limit would else lower its clock from burst to burst, and how far depends on what ran before.
    """

    seconds: float = 0.0
    _factor: float = 1 / DUTY_CYCLE - 1
    _best_mhz: float = 0.0

    def after(self, burst_seconds: float, sm_mhz: float | None) -> None:
        """Set the rest after a burst that took `burst_seconds`, at a clock if that is known."""
        if sm_mhz is not None:
            self._best_mhz = max(self._best_mhz, sm_mhz)
            if sm_mhz < CLOCK_BACK * self._best_mhz and self.seconds < MOST_REST_SECONDS:
                self._factor *= 2

        self.seconds = min(burst_seconds * self._factor, MOST_REST_SECONDS)


@functools.cache
def launch_seconds() -> float:
    """What the time between two events holds beside the cycles of a sleep between them; once per process.

    A sleep and one four times as long, in turn, at whatever clock: that part is what does not grow with the cycles.
    """
    import torch

    asleep, awake, stop = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    torch.cuda._sleep(SETTLE_CYCLES)
    found = []
    for _ in range(OVERHEAD_ROUNDS):
        torch.cuda._sleep(GATE_CYCLES)
        asleep.record()
        torch.cuda._sleep(OVERHEAD_CYCLES)
        awake.record()
        torch.cuda._sleep(4 * OVERHEAD_CYCLES)
        stop.record()
        stop.synchronize()
        found.append((4 * asleep.elapsed_time(awake) - awake.elapsed_time(stop)) / 3e3)

    return max(0.0, float(statistics.median(found)))


@dataclass(frozen=True, slots=True)
class Traffic:
    """The least that one call must do: `bytes` moved from and to memory when nothing is cached, and `flops`."""

    bytes: float
    flops: float


@dataclass(slots=True)
class Workload:
    """Work that is ready to be checked and timed on this rank.

    burst: does `calls` calls, on rotated buffers.
    check: runs the same calls on known data; None if the numbers are right, else a sentence that says what is wrong.
    align: brings all ranks to the same point before a sample.
    contract: how the time is taken; becomes part of the metric's identity. "cache": "cold" promises that a call reads
    from memory: a time below what `traffic` takes is then refused.
    facts: what was seen while setting up; reported, not compared.
    traffic: of one call, None where it means nothing.
    hot: builds the burst of `calls` calls that find in the cache what `burst` reads from memory.
    own_part: seconds, round by round, that this rank needs for local work which is the same on all ranks.
    links: seconds of a message from each rank to this one.
    """

    burst: Burst
    calls: int
    clock: Clock
    check: Callable[[], str | None]
    contract: dict[str, Json]
    align: Callable[[], None] = lambda: None
    facts: dict[str, Json] = field(default_factory=dict)
    traffic: Traffic | None = None
    hot: Callable[[], Burst] | None = None
    own_part: Callable[[], list[float]] | None = None
    links: Callable[[], list[float]] | None = None

    def sample(self, burst: Burst | None = None) -> float:
        """Seconds per call of one burst on this rank: of `burst`, which does as many calls, or the workload's own."""
        if isinstance(self.clock, CudaClock):
            self.clock.rest()

        self.align()
        return self.clock.seconds(burst or self.burst) / self.calls


def mode_fields(graph: bool) -> dict[str, Json]:
    """The fields of the contract that say how a burst is issued: if `graph` by the device alone, and with rests."""
    return {"mode": "graph", "duty_cycle": DUTY_CYCLE} if graph else {"mode": "eager"}


def needs(module: str, what: str) -> None:
    """Raise BadInput if `module` cannot be imported on this rank; `what` says what wants it."""
    import importlib
    import sys

    from ...errors import BadInput

    try:
        importlib.import_module(module)
    except ImportError as error:
        raise BadInput(
            f"{what} needs {module!r}, which {sys.executable} cannot import ({error}); run pytest in the environment "
            "that serves the model"
        ) from error


def rotate(calls: Sequence[Burst]) -> Burst:
    """One burst that makes each of `calls` once, in order."""

    def burst() -> None:
        for call in calls:
            call()

    return burst


def on_one_thread(burst: Burst) -> Burst:
    """`burst` without torch's thread pool, which other work of this process keeps: for CpuTimeClock."""
    import torch

    def alone() -> None:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            burst()
        finally:
            torch.set_num_threads(before)

    return alone


def captured(burst: Burst) -> Burst:
    """Capture `burst` into a CUDA graph and return its replay. Warms up on a side stream first, as capture demands."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(CAPTURE_WARMUPS):
            burst()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        burst()

    replay: Burst = graph.replay
    return replay


def relative_error(got: Any, want: Any) -> float:
    """Frobenius norm of (got - want) over that of want, both in float64; NaN in either gives NaN."""
    difference = got.double() - want.double()
    return float(difference.norm() / want.double().norm())


def wrong_if_above(error: float, limit: float, what: str) -> str | None:
    """The check's sentence when `error` is not below `limit` (NaN never is), else None."""
    if error < limit:
        return None

    return f"{what}: relative error {error:.3g} against the float64 reference, limit {limit:g}"
