"""Scripted GPUs with nobody on them, for checks of the host."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from fake_nvml import H200, FakeGpu


def cards(*changes: Mapping[str, Any], base: Mapping[str, Any] = H200) -> tuple[FakeGpu, ...]:
    """Scripted GPUs with nobody on them, each with its changes."""
    free = {
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=143771 << 20, used=500 << 20),
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=0),
    }
    return tuple(FakeGpu(place, base, {**free, **each}) for place, each in enumerate(changes, 1))
