"""The kernels that a burst really launches, read by the profiler in a pass of its own that times nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from .kernel_names import short_name
from .timing import Burst

SPIN = "::spin_kernel"
"""Of torch.cuda._sleep, which nothing but this plugin calls."""


def launched(burst: Burst, calls: int, device: str) -> dict[str, int | float]:
    """Launches per call by kernel name, sorted; on a CPU the operators that the burst calls itself.

    burst: does `calls` calls. device: "cuda" or "cpu". Every rank must do it together where the burst communicates.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    cuda = device == "cuda"
    activity = ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU
    # There is one cycle only; without acc_events torch warns that it would keep no other.
    with profile(activities=[activity], acc_events=True) as profiler:
        burst()
        if cuda:
            torch.cuda.synchronize()

    return per_call(_on_device(profiler) if cuda else _operators(profiler), calls)


def per_call(names: Iterable[str], calls: int) -> dict[str, int | float]:
    """Launches per call by short name, sorted, of the `names` of all that `calls` calls launched.

    A slowdown on purpose is no part of what is measured, and no other kernel than the baseline's.
    """
    counts = Counter(short_name(name) for name in names if SPIN not in name)
    return {name: _share(counts[name], calls) for name in sorted(counts)}


def _on_device(profiler: Any) -> Iterator[str]:
    from torch.autograd import DeviceType

    yield from (event.name for event in profiler.events() if event.device_type == DeviceType.CUDA)


def _operators(profiler: Any) -> Iterator[str]:
    yield from (event.name for event in profiler.events() if event.cpu_parent is None)


def _share(count: int, calls: int) -> int | float:
    """A whole number where it is one: launches that the calls share are fractions."""
    return count // calls if count % calls == 0 else round(count / calls, 3)
