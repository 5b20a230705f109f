"""Slowdowns put into a workload on purpose: what a gate does not find of them, it would not find of an upgrade.

A stack with env:DECODEGATE_SLOWDOWN="marlin*=2%;allreduce*=5%@1" makes each burst of the metrics whose name matches
longer, by a spin on the device (or, without one, in the rank) inside the timed interval; after "@" in that rank only.
"""

from __future__ import annotations

import fnmatch
import os
import re
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...errors import BadInput
from ...metric import literal_brackets

if TYPE_CHECKING:
    from .timing import Workload

VARIABLE = "DECODEGATE_SLOWDOWN"

COLD = 3
CALIBRATIONS = 5
"""Samples from which the length of a burst is known, after some that are not; an odd number has a middle one."""

PROBE_CYCLES = 10_000_000
"""Of the device's clock: some milliseconds, so that the launch does not count."""

_SLOWDOWN = re.compile(r"(?P<pattern>.+)=(?P<percent>\d+(\.\d+)?)%(@(?P<rank>\d+))?")


@dataclass(frozen=True, slots=True)
class Slowdown:
    """A slowdown of the metrics whose names match, by a fraction, in one rank or (None) in all."""

    pattern: str
    fraction: float
    rank: int | None

    def __str__(self) -> str:
        return f"{self.pattern} by {100 * self.fraction:.3g} %" + ("" if self.rank is None else f" in rank {self.rank}")

    def matches(self, metric: str) -> bool:
        """Whether `metric` is slowed down."""
        return fnmatch.fnmatchcase(metric, literal_brackets(self.pattern))


def read_slowdowns(text: str) -> tuple[Slowdown, ...]:
    """Read the value of DECODEGATE_SLOWDOWN; raises BadInput."""
    return tuple(_read(part.strip()) for part in text.split(";") if part.strip())


def _read(part: str) -> Slowdown:
    match = _SLOWDOWN.fullmatch(part)
    if match is None:
        raise BadInput(f"{VARIABLE}: {part!r} is not of the form 'metric pattern=3%' or 'metric pattern=3%@rank'")

    return Slowdown(match["pattern"], float(match["percent"]) / 100, int(match["rank"]) if match["rank"] else None)


def slowed(metric: str, workload: Workload, environ: Mapping[str, str] = os.environ) -> Workload:
    """`workload` with the slowdown that the environment asks for `metric`.

    How long its burst is, is found before its first sample: while workloads are set up, other gangs do so on the same
    GPU, and a burst takes longer by far more than what is asked for.
    """
    found = [slowdown for slowdown in read_slowdowns(environ.get(VARIABLE, "")) if slowdown.matches(metric)]
    if not found:
        return workload

    own = [slowdown.fraction for slowdown in found if slowdown.rank in (None, int(environ.get("RANK", "0")))]
    spinner = _Spinner(workload, sum(own))
    return replace(workload, burst=spinner.burst, align=spinner.align)


class _Spinner:
    """Makes the bursts of a workload longer by `fraction`, which is 0 in ranks that are only to stay in step."""

    def __init__(self, workload: Workload, fraction: float) -> None:
        self._workload = workload
        self._fraction = fraction
        self._spin: Callable[[], None] | None = None

    def align(self) -> None:
        """Before a sample, on all ranks together: they calibrate at the same one."""
        if self._spin is None:
            self._spin = self._calibrated()

        self._workload.align()

    def burst(self) -> None:
        """The workload's, and the spin."""
        self._workload.burst()
        if self._spin is not None:
            self._spin()

    def _calibrated(self) -> Callable[[], None]:
        workload = self._workload
        samples = [workload.sample() for _ in range(COLD + CALIBRATIONS)]
        seconds = statistics.median(samples[COLD:]) * workload.calls * self._fraction
        if seconds == 0:
            return lambda: None

        return _spin(seconds, on_device=workload.contract.get("clock") == "cuda_event")


def _spin(seconds: float, *, on_device: bool) -> Callable[[], None]:
    return _device_spin(seconds) if on_device else _host_spin(seconds)


def _host_spin(seconds: float) -> Callable[[], None]:
    def spin() -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass

    return spin


def _device_spin(seconds: float) -> Callable[[], None]:
    import torch

    from .timing import CudaClock

    clock = CudaClock()
    probes = [clock.seconds(lambda: torch.cuda._sleep(PROBE_CYCLES)) for _ in range(CALIBRATIONS)]
    cycles_s = PROBE_CYCLES / statistics.median(probes)
    return lambda: torch.cuda._sleep(int(seconds * cycles_s))
