"""How long threads waited for a core, and for their container's CPU quota: by the kernel's own counts.

Sources: /proc/PID/task/TID/schedstat, whose second number is nanoseconds on a run queue (Documentation/scheduler/
sched-stats), and cpu.stat of the control group (throttled_usec; throttled_time of version 1, in nanoseconds).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

Waits: TypeAlias = "Mapping[tuple[int, int], float]"
"""Seconds that a thread has waited for a core so far, by (pid, thread id)."""

_GROUP = re.compile(r"^\d+:(?P<controllers>[^:]*):(?P<path>.*)$", re.MULTILINE)
_THROTTLED = re.compile(r"^throttled_(usec|time) (\d+)$", re.MULTILINE)
_THROTTLED_UNIT = {"usec": 1e-6, "time": 1e-9}


def read_waits(pids: Collection[int], proc: Path = Path("/proc")) -> dict[tuple[int, int], float]:
    """The waits of all threads of `pids`; empty where the kernel keeps no such count."""
    return {
        (pid, int(file.parent.name)): seconds
        for pid in pids
        for file in (proc / str(pid)).glob("task/[0-9]*/schedstat")
        if (seconds := parse_wait(whole_text(file))) is not None
    }


def parse_wait(schedstat: str) -> float | None:
    """Seconds on a run queue, from the text of a schedstat: running, waiting (both ns), times on a core."""
    numbers = schedstat.split()
    return int(numbers[1]) / 1e9 if len(numbers) == 3 and all(map(str.isdecimal, numbers)) else None


def longest_wait(before: Waits, after: Waits) -> tuple[int, float] | None:
    """The process with the thread that waited longest in between, and its seconds; None where nobody counted."""
    waited = {thread: seconds - before.get(thread, 0.0) for thread, seconds in after.items()}
    worst = max(waited, key=lambda thread: waited[thread], default=None)
    # A thread id that is used again counts from zero.
    return (worst[0], max(0.0, waited[worst])) if worst else None


def throttled_s(root: Path = Path("/")) -> float | None:
    """Seconds for which the quota of this process' control group has held it back; None where nothing says so."""
    for file in _stat_files(root):
        if found := _THROTTLED.search(whole_text(file)):
            return int(found[2]) * _THROTTLED_UNIT[found[1]]

    return None


def _stat_files(root: Path) -> Iterator[Path]:
    """The cpu.stat of this process' group; inside a container its path is that of the host, and the top is its own."""
    mounted = root / "sys" / "fs" / "cgroup"
    for group in _GROUP.finditer(whole_text(root / "proc" / "self" / "cgroup")):
        controllers = group["controllers"].split(",")
        if controllers == [""] or "cpu" in controllers:
            top = mounted / group["controllers"]
            yield from (top / group["path"].lstrip("/") / "cpu.stat", top / "cpu.stat")
            yield mounted / "cpu" / "cpu.stat"


def whole_text(path: Path) -> str:
    """What a file of the kernel says; "" where there is none."""
    try:
        return path.read_text(errors="replace")
    except OSError:  # it ended while we looked, or this kernel has no such file
        return ""
