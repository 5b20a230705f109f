"""Strangers on GPUs whose processes cannot be told one by one: inside a container NVML names pids of the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ..cause import Cause, Finding
from .nvml import GpuProcess

CUDA: Final = "libcuda.so"
"""What every process that computes on a GPU has mapped."""

LEAST_GROWN_MIB: Final = 512
"""A stranger's CUDA context takes as much; what a rank loads for its first kernels takes far less."""


@dataclass(slots=True)
class Crowd:
    """All compute processes that one look saw on the GPUs, the look that saw most of them.

    ours: processes of the measurement that have mapped CUDA, the most that were counted. Each is on a GPU at most once
    in this sum, on however many GPUs it works, and some may be on none: so more processes than that are strangers.
    """

    ours: int = 0
    most: Mapping[int, GpuProcess] = field(default_factory=dict)

    def add(self, seen: Mapping[int, GpuProcess]) -> None:
        """Count one look at all GPUs. seen: by pid."""
        if len(seen) > len(self.most):
            self.most = dict(seen)

    def strangers(self) -> Iterator[Finding]:
        """That there were more processes than ours; nothing where ours were not counted because each could be told."""
        if self.ours and len(self.most) > self.ours:
            names = ", ".join(map(str, self.most.values()))
            text = (
                f"{len(self.most)} processes computed on the GPUs and only {self.ours} of them can be ours: a stranger "
                f"ran beside the measurement; stop it and measure again. NVML names, by pids of the host: {names}"
            )
            yield Finding(text, Cause.STRANGER, "more processes than ours")


def grown(label: str, used_mib: Sequence[int]) -> Finding | None:
    """That memory in use on a GPU grew from the first look to the last by more than a context's. label: of the GPU."""
    more = used_mib[-1] - used_mib[0] if used_mib else 0
    if more < LEAST_GROWN_MIB:
        return None

    text = f"{label}: somebody took {more} MiB of its memory meanwhile, a stranger or a leak"
    return Finding(text, Cause.STRANGER, f"{label}: memory")
