"""Samples whose burst the host had not queued when the device came to it: their time is that of the host's launches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ...cause import Cause, Finding
from ...metric import Json, Measurement, Replicate

KEPT: Final = "host_late"
LEFT_OUT: Final = "host_late_left_out"
"""Facts of a replicate: how many of its samples are late ones, and how many were taken again instead of being kept."""

MOST_SHARE: Final = 0.1
"""Of a replicate's samples that may be late. Lateness only adds to a time, so the median of all is at most the quantile
0.5 / (1 - 0.1) = 0.56 of those that were not: 0.14 of their standard deviation too high, below 0.1 % where samples
scatter by 0.5 %. At a fifth it would be 0.32 of it, and from a half on the median is a late sample itself."""

STOLEN, WAITED, OTHERS = 0.005, 0.01, 0.05
"""Shares from where on a sentence names it as what may have made the host late: of the CPU time that other machines
took, of the time that a thread waited for a core, of the cores in use by other processes."""


def facts(kept: int, left_out: int) -> dict[str, Json]:
    """The facts of a replicate with so many late samples; empty where the host was always in time."""
    return {name: count for name, count in ((KEPT, kept), (LEFT_OUT, left_out)) if count}


def noted(replicate: Replicate) -> Finding | None:
    """The note that a replicate met a late host and its value bears it; None where none was, or it does not."""
    kept, left_out, count = _count(replicate, KEPT), _count(replicate, LEFT_OUT), len(replicate.samples)
    if not (kept or left_out) or _rests_on_late_ones(replicate):
        return None

    again = f"{left_out} more were left out and taken again" if kept else f"{left_out} were taken again"
    stay = f"{kept} of its {count} samples, which the median bears; " if kept else f"samples beside its {count}; "
    return Finding(f"the host was late with {stay}{again}", Cause.REMARK, "late host")


def spoiled(measurement: Measurement) -> Iterator[Finding]:
    """The broken rule of replicates whose value rests on late samples, with what was seen on the host meanwhile."""
    late = {
        number: replicate
        for number, replicate in enumerate(measurement.replicates, start=1)
        if _rests_on_late_ones(replicate)
    }
    if not late:
        return

    kept = sum(_count(replicate, KEPT) for replicate in late.values())
    total = sum(len(replicate.samples) for replicate in late.values())
    text = (
        f"the host was late with {kept} of {total} samples of {_named(list(late))}, and again when they were taken "
        f"again, however long the GPU slept before: its launches were timed; meanwhile {_explained(measurement.facts)}"
    )
    yield Finding(text, Cause.LATE_HOST, "late host")


def _rests_on_late_ones(replicate: Replicate) -> bool:
    return _count(replicate, KEPT) > MOST_SHARE * len(replicate.samples)


def _count(replicate: Replicate, name: str) -> int:
    count = replicate.facts.get(name)
    return count if isinstance(count, int) else 0


def _named(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"replicate {numbers[0]}"

    return f"replicates {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def _explained(facts: Mapping[str, Json]) -> str:
    """What the watch saw at its worst that keeps a host from launching, and what to do.

    Where it saw nothing, a launch itself may wait: on two of three pairs of H200s graphs of NCCL, captured in processes
    that had opened vLLM's custom AllReduce first, were issued node by node when the GPU was free (22 us a call for 8),
    and in fresh processes they were not.
    """
    telemetry = facts.get("telemetry")
    looks = [look for look in telemetry if isinstance(look, dict)] if isinstance(telemetry, list) else []
    found = dict.fromkeys(sentence for look in reversed(looks) for sentence in _keeping(look))
    if not found:
        return (
            "no stolen time, wait for a core or busy core was seen, so that the launch of a graph may have waited for "
            "the GPU: measure this metric in processes of its own (--perf-only)"
        )

    return (
        f"{'; '.join(found)}; stop what else uses the CPUs, or measure where the cores are this machine's own (no "
        "stolen time, no quota)"
    )


def _keeping(look: Mapping[str, Json]) -> Iterator[str]:
    if (stolen := _number(look, "steal_share")) >= STOLEN:
        yield f"other machines took {stolen:.1%} of the CPU time"

    cpu = look.get("cpu")
    if not isinstance(cpu, dict):
        return
    if (waited := _number(cpu, "waited_share")) >= WAITED:
        yield f"{cpu['waited_by']} waited for a core {waited:.0%} of the time"
    if (held := _number(cpu, "throttled_share")) > 0:
        yield f"a CPU quota held processes back {held:.0%} of the time"
    if (others := _number(cpu, "others_cores")) >= OTHERS * _number(cpu, "cores") > 0:
        most = f", most: {cpu['most']}" if cpu.get("most") else ""
        yield f"other processes used {others:.1f} of {cpu['cores']} cores{most}"


def _number(look: Mapping[str, Json], name: str) -> float:
    value = look.get(name)
    return float(value) if isinstance(value, int | float) else 0.0
