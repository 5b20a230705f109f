"""The watch: samples the GPUs while something is measured, and says what made the measurement invalid."""

from __future__ import annotations

import os
import re
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Final

from ..cause import Cause, Finding
from ..metric import Json
from ..process.processes import may_map
from .cpu_load import CpuLoad, OtherUse
from .crowd import CUDA, Crowd, grown
from .nvml import CountingSensor, GpuCounters, GpuProcess, GpuReading
from .pcie import PcieLink, Slot, reached, slow_link

INVALIDATING: Final = (
    "hw_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "sw_thermal_slowdown",
    "thermal_violation",
    "board_limit_violation",
)
"""Reasons for low clocks that are a fault of cooling or supply. A software power cap is none: it is how a power-limited
card works all the time, and some idle GPUs show it too."""

COUNT_SECONDS: Final = 0.12
"""A GPU adds to its counters every 0.1 s: so long after the measurement they hold all of it."""

STOP_SECONDS: Final = 5.0
"""A lost GPU can block a query for good; the measurement does not wait longer than this for the sampler."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The report of a watch: `invalid` holds a finding for each broken rule, `facts` everything worth reporting.

    notes: what a reader should know although it breaks no rule. grown: GPUs on which somebody took memory meanwhile;
    who measures with memory of a fixed size knows that it was not ours.
    """

    invalid: tuple[Finding, ...]
    facts: Mapping[str, Json]
    notes: tuple[Finding, ...] = ()
    grown: tuple[Finding, ...] = ()


@dataclass(slots=True)
class GpuTally:
    """Everything seen of one GPU; `label` names it in sentences, `slot` says where it sits if that is known.

    before, after: what it had added up when the watch began and ended.
    """

    label: str
    slot: Slot | None = None
    before: GpuCounters | None = None
    after: GpuCounters | None = None
    samples: list[GpuReading] = field(default_factory=list)
    used_mib: list[int] = field(default_factory=list)
    foreign: dict[int, GpuProcess] = field(default_factory=dict)
    unverifiable: dict[int, GpuProcess] = field(default_factory=dict)

    def add(self, sample: GpuReading, processes: Collection[GpuProcess], own_pids: Collection[int]) -> None:
        """Count one look; `processes` that are not in `own_pids` are foreign or cannot be told."""
        self.samples.append(sample)
        for process in processes:
            if process.pid not in own_pids:
                # In a container NVML may report pids of the host: a number that is nobody here, or somebody without
                # CUDA, may well be one of our own ranks under its other number. That proves nothing, so it is reported.
                strangers = self.foreign if may_map(process.pid, CUDA) else self.unverifiable
                strangers[process.pid] = process

    def invalid(self) -> tuple[Finding, ...]:
        """A finding for each broken rule."""
        return (*self._throttling(), *self._strangers())

    def _throttling(self) -> Iterator[Finding]:
        shares, limited = self.reason_shares(), self.limited_seconds()
        for reason in INVALIDATING:
            if reason in shares or reason in limited:
                looks = f" in {shares[reason]:.1%} of {len(self.samples)} samples" if reason in shares else ""
                counted = f" for {limited[reason] * 1e3:.3g} ms, as the GPU counts" if reason in limited else ""
                text = (
                    f"{self.label}: {reason}{looks}{counted}; "
                    "the clocks were not free, check cooling and power supply and measure again"
                )
                yield Finding(text, Cause.THROTTLING, f"{self.label}: {reason}")

    def limited_seconds(self) -> dict[str, float]:
        """Seconds for which each reason limited the clocks between the start and the end of the watch; those above 0.

        Counters that went backwards are those of a driver that was loaded again: what they hold is since then.
        """
        if self.before is None or self.after is None:
            return {}

        spent = {
            reason: now - before if now >= (before := self.before.limited_ns.get(reason, now)) else now
            for reason, now in self.after.limited_ns.items()
        }
        return {reason: ns / 1e9 for reason, ns in spent.items() if ns > 0}

    @property
    def _energy_j(self) -> float | None:
        before, after = (read.energy_j if read else None for read in (self.before, self.after))
        return round(after - before, 3) if before is not None and after is not None and after >= before else None

    def _strangers(self) -> Iterator[Finding]:
        for process in self.foreign.values():
            text = f"{self.label}: foreign process {process} ran beside the measurement; stop it and measure again"
            yield Finding(text, Cause.STRANGER, f"{self.label}: {process.name}")

    def notes(self) -> tuple[Finding, ...]:
        """Remarks that break no rule: a link that stayed below what it can do."""
        problem = slow_link(self.label, self._links, self.slot.most if self.slot else None)
        return (Finding(problem, Cause.REMARK, self.label),) if problem else ()

    @property
    def busy(self) -> list[GpuReading]:
        """Samples of a GPU at work: clock and link of an idle one say nothing about those that the work ran at."""
        return [sample for sample in self.samples if "gpu_idle" not in sample.reasons]

    @property
    def _links(self) -> list[PcieLink]:
        return [sample.pcie for sample in self.busy if sample.pcie is not None]

    def facts(self) -> dict[str, Json]:
        """Minimum, median and maximum of each sensor, the reasons by share of samples, and pids that nobody knows."""
        busy = self.busy or self.samples
        link = reached(self._links)
        return {
            "gpu": self.label,
            "bus_id": self.slot.bus_id if self.slot else None,
            "pcie": str(link) if link else None,
            "pcie_most": str(self.slot.most) if self.slot and self.slot.most else None,
            "samples": len(self.samples),
            "sm_clock_mhz": _spread([sample.sm_clock_mhz for sample in busy]),
            "memory_clock_mhz": _spread([sample.memory_clock_mhz for sample in busy]),
            "temperature_c": _spread([sample.temperature_c for sample in busy]),
            "power_w": _spread([sample.power_w for sample in busy]),
            "reasons": dict[str, Json](self.reason_shares()),
            "limited_s": dict[str, Json](self.limited_seconds()),
            "energy_j": self._energy_j,
            "unverifiable_processes": [str(process) for process in self.unverifiable.values()],
        }

    def reason_shares(self) -> dict[str, float]:
        """Share of the samples, 0 to 1, in which each reason was active."""
        counts = Counter(reason for sample in self.samples for reason in sample.reasons)
        return {reason: count / len(self.samples) for reason, count in sorted(counts.items())}


class Watch:
    """Watches GPUs, by UUID, from `with` to the end of its block; `report` may be called after it.

    own_pids: pids that belong to the measurement (see `processes.family`; an attached server's belong to it too), asked
    at each look that meets a process. sensor: None on a machine without GPUs, where only the host's load is reported.
    slots: where the cards sit, by UUID, as far as it is known. cpu: reads who else uses the
    cores.
    The first look is taken before the block, so that a process already there is seen in the shortest measurement.
    """

    def __init__(
        self,
        gpu_uuids: Sequence[str],
        own_pids: Callable[[], Collection[int]],
        period_seconds: float = 0.2,
        *,
        sensor: CountingSensor | None,
        slots: Mapping[str, Slot] = MappingProxyType({}),
        cpu: CpuLoad | None = None,
    ) -> None:
        self._cpu = cpu
        self._uuids = tuple(gpu_uuids) if sensor else ()
        self._own_pids, self._period_seconds, self._sensor = own_pids, period_seconds, sensor
        self._tallies = {uuid: _tally(uuid, number, slots.get(uuid)) for number, uuid in enumerate(self._uuids)}
        self._crowd = Crowd()
        self._errors: Counter[str] = Counter()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="decodegate-watch", daemon=True)
        self._steal_before, self._steal_after = (0, 0), (0, 0)

    def __enter__(self) -> Watch:
        self._steal_before = steal_ticks()
        self._look()
        for uuid, tally in self._tallies.items():
            tally.before = self._counters(uuid)
        self._count_ours()
        if self._uuids:
            self._thread.start()
        if self._cpu:
            self._cpu.start()

        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._cpu:
            self._cpu.stop()

        self._stop.set()
        if self._uuids:
            self._thread.join(STOP_SECONDS)
        self._count_ours()
        self._steal_after = steal_ticks()

    def _count_ours(self) -> None:
        """Only where NVML names processes that cannot be told: it takes a look at the maps of each of ours."""
        if any(tally.unverifiable for tally in self._tallies.values()):
            self._crowd.ours = max(self._crowd.ours, sum(may_map(pid, CUDA) for pid in self._own_pids()))

    def report(self) -> Telemetry:
        """The telemetry between the start and the end of the block."""
        tallies = self._tallies.values()
        cpu = self._cpu.use() if self._cpu else None
        return Telemetry(
            invalid=(
                *(broken for tally in tallies for broken in tally.invalid()),
                *self._crowd.strangers(),
                *self._blind(),
            ),
            facts={
                "gpus": [tally.facts() for tally in tallies],
                "sampler_errors": dict[str, Json](self._errors),
                "sampler_stuck": self._thread.is_alive(),
                "nvml_problems": list(self._sensor.problems) if self._sensor else [],
                "load_1m": round(os.getloadavg()[0], 2),
                "steal_share": steal_share(self._steal_before, self._steal_after),
                **({"cpu": cpu.facts} if cpu else {}),
            },
            notes=(*(note for tally in tallies for note in tally.notes()), *_cpu_notes(cpu)),
            grown=tuple(found for tally in tallies if (found := grown(tally.label, tally.used_mib))),
        )

    def _blind(self) -> Iterator[Finding]:
        """A GPU that could not be looked at may have been throttled, or shared with anybody."""
        for uuid, tally in self._tallies.items():
            if not tally.samples:
                why = next((error for error in self._errors if error.startswith(uuid)), "NVML did not answer")
                yield Finding(f"{tally.label} could not be watched: {why}", Cause.UNWATCHED, tally.label)

        if self._thread.is_alive():
            stuck = "the watch over the GPUs is stuck in a call to NVML, so nobody looked for throttling and strangers"
            yield Finding(stuck, Cause.UNWATCHED, "NVML")

    def _run(self) -> None:
        while not self._stop.wait(self._period_seconds):
            self._look()

        time.sleep(COUNT_SECONDS)
        for uuid, tally in self._tallies.items():
            tally.after = self._counters(uuid)

    def _counters(self, uuid: str) -> GpuCounters | None:
        assert self._sensor
        try:
            return self._sensor.counters(uuid)
        except Exception as error:
            self._errors[f"{uuid}: {error}"] += 1  # as in _look
            return None

    def _look(self) -> None:
        seen: dict[int, GpuProcess] = {}
        for uuid in self._uuids:
            try:
                seen.update(self._look_at(uuid))
            except Exception as error:
                # The watch must outlive any error of NVML: the measurement is not to die of a sensor.
                self._errors[f"{uuid}: {error}"] += 1

        self._crowd.add(seen)

    def _look_at(self, uuid: str) -> dict[int, GpuProcess]:
        assert self._sensor
        sample, processes = self._sensor.sample(uuid), self._sensor.processes(uuid)
        tally = self._tallies[uuid]
        tally.add(sample, processes, self._own_pids() if processes else ())
        tally.used_mib.append(self._sensor.used_mib(uuid))
        return {process.pid: process for process in processes}


def steal_ticks(stat: Path = Path("/proc/stat")) -> tuple[int, int]:
    """Ticks that other machines took from this one's CPUs, and all ticks, since boot."""
    match = re.match(r"cpu +([\d ]+)", stat.read_text())
    ticks = [int(tick) for tick in match[1].split()][:8] if match else []
    return (ticks[7] if len(ticks) == 8 else 0, sum(ticks))


def steal_share(before: tuple[int, int], after: tuple[int, int]) -> float:
    """Share of CPU time stolen between two readings of `steal_ticks`, 0 to 1."""
    total = after[1] - before[1]
    return round((after[0] - before[0]) / total, 4) if total > 0 else 0.0


def _cpu_notes(cpu: OtherUse | None) -> Iterator[Finding]:
    """Who else used the cores, and the load, beside the verdict of what ran on them."""
    if cpu and cpu.note:
        yield Finding(f"{cpu.note}; load average {os.getloadavg()[0]:.1f}")


def _tally(uuid: str, number: int, slot: Slot | None) -> GpuTally:
    return GpuTally(f"GPU {slot.index if slot else number} ({uuid})", slot)


def _spread(values: Sequence[float | None]) -> Json:
    known = [value for value in values if value is not None]
    return {"min": min(known), "median": statistics.median(known), "max": max(known)} if known else None
