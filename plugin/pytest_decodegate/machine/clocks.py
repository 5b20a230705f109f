"""The clocks that work ran at on two sides: times follow them, so where they differ a comparison says little else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Final

from ..metric import Json

FIELD: Final = "sm_clock_mhz"
"""The name under which `decodegate compare --allow` lets it differ."""

SAMPLED: Final = "sample_clocks_mhz"
"""In the telemetry of a measurement: by rank the clock that its samples tell, beside what the watch has looked at."""

MOST_SHIFT: Final = 0.02
"""Relative difference of clocks that is nobody's concern: one step of the clock is below 1 % of it."""

LEAST_LOOKS: Final = 3
"""Looks at a busy GPU that make a clock a sustained one: the first may still see the clock rise, and a median of three
does not follow it."""


@dataclass(frozen=True, slots=True)
class ClockShift:
    """The GPU whose sustained SM clock differs most, in MHz; others: further GPUs that differ by more than MOST_SHIFT.

    gpu: its place among the GPUs of a run, from 0, because the two sides may hold other cards.
    capped: a power cap held the clock down on the side where it is lower.
    """

    gpu: int
    base_mhz: float
    new_mhz: float
    others: int = 0
    capped: bool = False

    @property
    def change(self) -> float:
        """Relative to the base: -0.1 is a clock that is 10 % lower now."""
        return self.new_mhz / self.base_mhz - 1

    def __str__(self) -> str:
        more = f", and {self.others} more GPU(s) differ" if self.others else ""
        cap = "; a power cap held the lower one down" if self.capped else ""
        return (
            f"{FIELD}: GPU {self.gpu} sustained {self.new_mhz:g} MHz, {self.base_mhz:g} MHz on the other side "
            f"({100 * self.change:+.1f} %){more}: times follow the clock{cap}"
        )


@dataclass(frozen=True, slots=True)
class _Clock:
    mhz: float
    capped: bool


def clock_shift(base: Iterable[Mapping[str, Json]], new: Iterable[Mapping[str, Json]]) -> ClockShift | None:
    """How the clocks of two sides differ; None where they do not, or where a side has not recorded them.

    base, new: telemetry of the sessions of one metric, as the watch left it under "telemetry".
    """
    old = _sustained(base)
    young = _sustained(new) if old else {}
    shifts = [
        ClockShift(
            gpu, old[gpu].mhz, young[gpu].mhz, capped=min(old[gpu], young[gpu], key=lambda clock: clock.mhz).capped
        )
        for gpu in old
        if gpu in young and abs(young[gpu].mhz / old[gpu].mhz - 1) > MOST_SHIFT
    ]
    if not shifts:
        return None

    worst = max(shifts, key=lambda shift: abs(shift.change))
    return ClockShift(worst.gpu, worst.base_mhz, worst.new_mhz, len(shifts) - 1, worst.capped)


def power_capped(telemetry: Mapping[str, Json]) -> bool:
    """Whether a power cap held down the clock of a GPU at work, by the telemetry of a session."""
    return any(clock.capped for clock in _sustained([telemetry]).values())


def _sustained(sessions: Iterable[Mapping[str, Json]]) -> dict[int, _Clock]:
    """By GPU the median over all reports of its sessions."""
    found: dict[int, list[_Clock]] = {}
    for telemetry in sessions:
        if reports := telemetry.get("telemetry"):
            for gpu, clock in _clocks(reports):
                found.setdefault(gpu, []).append(clock)

    return {
        gpu: _Clock(median(clock.mhz for clock in clocks), any(clock.capped for clock in clocks))
        for gpu, clocks in found.items()
    }


def _clocks(reports: Json) -> Iterator[tuple[int, _Clock]]:
    """What the watch's reports say of GPUs that were at work; files of other tools may hold anything here."""
    for report in reports if isinstance(reports, list) else ():
        gpus, sampled = (report.get("gpus"), report.get(SAMPLED)) if isinstance(report, dict) else (None, None)
        by_rank = sampled if isinstance(sampled, list) else []
        for index, gpu in enumerate(gpus if isinstance(gpus, list) else ()):
            if isinstance(gpu, dict) and (clock := _sampled_clock(by_rank[index : index + 1], gpu) or _busy_clock(gpu)):
                yield index, clock


def _sampled_clock(clock: list[Json], gpu: Mapping[str, Json]) -> _Clock | None:
    """What the samples say, if they do: every one of them, however short the measurement was."""
    mhz = _number(clock[0]) if clock else 0.0
    return _Clock(mhz, _capped(gpu)) if mhz > 0 else None


def _capped(gpu: Mapping[str, Json]) -> bool:
    """Whether a power cap was met: by looks as a share, or as the GPU counts it in seconds."""
    both = (gpu.get(name) for name in ("reasons", "limited_s"))
    return any(isinstance(reasons, dict) and _number(reasons.get("sw_power_cap")) > 0 for reasons in both)


def _busy_clock(gpu: Mapping[str, Json]) -> _Clock | None:
    clock, reasons = gpu.get(FIELD), gpu.get("reasons")
    mhz = clock.get("median") if isinstance(clock, dict) else None
    shares = reasons if isinstance(reasons, dict) else {}
    busy = _number(gpu.get("samples")) * (1 - _number(shares.get("gpu_idle")))
    # An idle GPU clocks down, which says nothing about work. A share is rounded, so half a look is none.
    if busy < LEAST_LOOKS - 0.5 or _number(mhz) <= 0:
        return None

    return _Clock(_number(mhz), _capped(gpu))


def _number(value: Json) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
