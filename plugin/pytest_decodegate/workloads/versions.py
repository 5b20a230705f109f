"""Versions of the ways of timing: of each clock, and of each kind of workload. They are part of every contract.

When to raise one, in the commit that makes it true: the new code would give another value than the old code on the same
machine and stack, by more than noise. A line of CLOCKS: when the interval begins and ends, what lies inside, how ranks
start together, what warms up. A line of WORKLOADS: which buffers and how many copies, in which order, what is captured,
how a sample is reduced, as far as no field of the contract says so by itself. Not for names, checks and facts.
A stored baseline of another version is another measurement, CONFOUNDED until it is recorded again;
plugin/tests/test_recorded_contracts.py fails until that is done, or is listed with a reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ..metric import Json

CLIENT_CLOCK: Final = "client, monotonic, at the socket"

CLOCKS: Mapping[str, int] = {
    # 2: in graphs the sleep before the interval grows until the host is ahead of the device
    # 3: a sleep before that one, whose time tells the clock; in graphs the device rests between bursts
    "cuda_event": 3,
    "perf_counter": 1,
    "process_time": 1,
    CLIENT_CLOCK: 1,
}
"""By what a contract calls the clock."""

WORKLOADS: Mapping[str, int] = {
    "allreduce": 2,  # 2: calls take turns on a few buffers, of symmetric memory on several allocations
    "alltoall": 3,  # 2: a token goes to a rank once, however many of its experts are there; 3: as allreduce 2
    "attention": 1,
    "elementwise": 1,
    "expert_mlp": 1,
    "gather_scatter": 2,  # 2: as allreduce 2
    "logits_gather": 2,  # 2: as allreduce 2
    "marlin": 2,  # 2: x of the dense ones takes turns on several places
    "positions": 1,
    "projection": 2,  # 2: x takes turns on several places, weights on eight copies at least, large ones apart
    "routing": 2,  # 2: the data of topk have scores apart and a bias that decides
    # 2: streams begin spread over the time of one answer, and a window when they have; the rank-slice's fixed weights
    # 3: the first window after a start does not count
    "serving": 3,
    "answers": 1,
}
"""By name of those whose buffers and calls are built by the same code."""


def clock_fields(clock: str) -> dict[str, Json]:
    """The fields of a contract that say by which clock the time is taken."""
    return {"clock": clock, "clock_version": CLOCKS[clock]}


def workload_fields(name: str) -> dict[str, Json]:
    """The fields of a contract that say what builds the buffers and calls."""
    return {"workload": name, "workload_version": WORKLOADS[name]}
