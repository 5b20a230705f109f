"""Who used the cores while something was measured: CPU time of other processes, read from /proc before and after."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..metric import Json
from .core_waits import Waits, longest_wait, read_waits, throttled_s, whole_text

NOTED_SHARE = 0.05
"""Of the cores, in use by others, below which nobody needs to hear of them: a quiet desktop's."""

_TICKS_S = os.sysconf("SC_CLK_TCK")
_CPU = re.compile(r"^cpu(\d+) ([\d ]+)$", re.MULTILINE)
_STALLED = re.compile(r"^some .*\btotal=(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ProcessTime:
    """CPU time of one process so far, in seconds. own_s: its threads'; reaped_s: of children that it has waited for.

    started: ticks since boot; with `pid` it names one process, also after the pid is used again.
    """

    pid: int
    parent: int
    name: str
    own_s: float
    reaped_s: float
    started: int


@dataclass(frozen=True, slots=True)
class Reading:
    """The cores at one moment. busy_s: CPU seconds of all processes on the cores of `cores` since boot.

    stalled_s: seconds in which some process waited for a core, None where the kernel does not say. waits: of the
    measurement's own threads. throttled_s: for which a quota held this container back, None without one.
    """

    at_s: float
    cores: int
    busy_s: float
    stalled_s: float | None
    processes: Mapping[int, ProcessTime]
    waits: Waits = field(default_factory=dict)
    throttled_s: float | None = None


@dataclass(frozen=True, slots=True)
class OtherUse:
    """What processes outside the measurement did meanwhile, as mean numbers of cores.

    most: the busiest of them as text, "ffmpeg (pid 4711)", with the cores that it used; None if none is seen, as those
    outside a container are not. stalled: share of the time in which some process, ours included, waited for a core.
    waited: the process of ours with the thread that waited most for a core, and its share of the time; None where the
    kernel does not count. throttled: share of the time for which a quota held ours back, None without one.
    """

    cores: int
    others: float
    own: float
    most: tuple[str, float] | None
    stalled: float | None
    waited: tuple[str, float] | None = None
    throttled: float | None = None

    @property
    def note(self) -> str | None:
        """The sentence beside a verdict; None where the others did next to nothing."""
        if self.others < NOTED_SHARE * self.cores:
            return None

        most = f", most: {self.most[0]}, {self.most[1]:.1f}" if self.most else "; none of them can be seen from here"
        return f"other processes used {self.others:.1f} of {self.cores} cores while this was measured{most}"

    @property
    def facts(self) -> dict[str, Json]:
        """The same for the baseline and the report."""
        name, used = self.most or (None, None)
        waited_by, waited = self.waited or (None, None)
        return {
            "cores": self.cores,
            "others_cores": round(self.others, 3),
            "own_cores": round(self.own, 3),
            "most": name,
            "most_cores": None if used is None else round(used, 3),
            "stalled_share": None if self.stalled is None else round(self.stalled, 4),
            "waited_by": waited_by,
            "waited_share": None if waited is None else round(waited, 4),
            "throttled_share": None if self.throttled is None else round(self.throttled, 4),
        }


class CpuLoad:
    """Reads the cores when a measurement starts and when it stops. own_pids: pids that belong to the measurement."""

    def __init__(self, own_pids: Callable[[], Collection[int]], proc: Path = Path("/proc")) -> None:
        self._own_pids = own_pids
        self._proc = proc

    def start(self) -> None:
        """Read the cores before."""
        self._own = frozenset(self._own_pids())
        self._before = self._after = read(self._proc, self._own)

    def stop(self) -> None:
        """Read the cores after."""
        self._own |= frozenset(self._own_pids())
        self._after = read(self._proc, self._own)

    def since_start(self) -> OtherUse | None:
        """What the others did since `start`; None where /proc does not tell."""
        self.stop()
        return self.use()

    def use(self) -> OtherUse | None:
        """What the others did in between; None where /proc does not tell."""
        return other_use(self._before, self._after, self._own)


def read(proc: Path = Path("/proc"), own: Collection[int] = (), cores: Collection[int] | None = None) -> Reading:
    """Read the cores numbered `cores`, those that this process may run on by default, and all visible processes.

    own: pids of the measurement, whose threads' waits are read.
    """
    cores = os.sched_getaffinity(0) if cores is None else cores
    busy = parse_busy(whole_text(proc / "stat"))
    seen = (parse_process(whole_text(stat)) for stat in proc.glob("[0-9]*/stat"))
    return Reading(
        at_s=time.monotonic(),
        cores=len(busy.keys() & set(cores)),
        busy_s=sum(seconds for core, seconds in busy.items() if core in cores),
        stalled_s=parse_stalled(whole_text(proc / "pressure" / "cpu")),
        processes={process.pid: process for process in seen if process is not None},
        waits=read_waits(own, proc),
        throttled_s=throttled_s(proc.parent),
    )


def parse_busy(stat: str) -> dict[int, float]:
    """CPU seconds by core that were spent in processes and interrupts since boot, from the text of /proc/stat."""
    busy = {}
    for core, numbers in _CPU.findall(stat):
        ticks = [int(number) for number in numbers.split()]
        if len(ticks) >= 7:  # idle, waiting for I/O and stolen time are not ours; guests are part of user
            user, nice, system, _idle, _iowait, irq, softirq = ticks[:7]
            busy[int(core)] = (user + nice + system + irq + softirq) / _TICKS_S

    return busy


def parse_process(stat: str) -> ProcessTime | None:
    """The process of a /proc/PID/stat, None for text that is not of that form."""
    head, _, rest = stat.rpartition(")")
    pid, _, name = head.partition("(")
    fields = rest.split()
    try:
        times = [int(field) / _TICKS_S for field in fields[11:15]]
        return ProcessTime(
            pid=int(pid),
            parent=int(fields[1]),
            # A process may call itself anything, and this goes to a terminal.
            name="".join(letter if letter.isprintable() else "?" for letter in name),
            own_s=times[0] + times[1],
            reaped_s=times[2] + times[3],
            started=int(fields[19]),
        )
    except (ValueError, IndexError, OverflowError):
        return None


def parse_stalled(pressure: str) -> float | None:
    """Seconds since boot in which some process waited for a core, from the text of /proc/pressure/cpu, if it says."""
    found = _STALLED.search(pressure)
    return int(found[1]) / 1e6 if found else None


def other_use(before: Reading, after: Reading, own: Collection[int]) -> OtherUse | None:
    """What processes other than `own` did between two readings; None for no time or no core in between.

    All that was busy less what `own` used, so that processes which came and went count too, and those that a container
    does not show.
    """
    seconds = after.at_s - before.at_s
    if seconds <= 0 or not after.cores:
        return None

    mine = _total(after, own) - _total(before, own)
    busy = after.busy_s - before.busy_s
    spent = {process: _spent(before, process) for process in after.processes.values() if process.pid not in own}
    most = max(spent, key=lambda process: spent[process], default=None)
    waited = longest_wait(before.waits, after.waits)
    return OtherUse(
        cores=after.cores,
        others=max(0.0, busy - mine) / seconds,
        own=max(0.0, mine) / seconds,
        most=(_named(after, most.pid), spent[most] / seconds) if most and spent[most] > 0 else None,
        stalled=_share(before.stalled_s, after.stalled_s, seconds),
        waited=(_named(after, waited[0]), min(1.0, waited[1] / seconds)) if waited else None,
        throttled=_share(before.throttled_s, after.throttled_s, seconds),
    )


def _share(before: float | None, after: float | None, seconds: float) -> float | None:
    """The part of `seconds` by which a count went up, 0 to 1; None where it was not kept."""
    if before is None or after is None:
        return None

    return min(1.0, max(0.0, (after - before) / seconds))


def _named(reading: Reading, pid: int) -> str:
    process = reading.processes.get(pid)
    return f"{process.name if process else 'unknown'} (pid {pid})"


def _total(reading: Reading, pids: Collection[int]) -> float:
    """CPU seconds of a family with what its ended members have left to their parents."""
    family = (process for pid, process in reading.processes.items() if pid in pids)
    return sum(process.own_s + process.reaped_s for process in family)


def _spent(before: Reading, process: ProcessTime) -> float:
    earlier = before.processes.get(process.pid)
    same = earlier is not None and earlier.started == process.started
    return process.own_s - (earlier.own_s if earlier and same else 0.0)
