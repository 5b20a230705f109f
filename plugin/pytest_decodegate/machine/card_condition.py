"""The condition of a card apart from its identity: limits and modes beside their defaults, and errors of its memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

_UNCORRECTED: Final = 1  # NVML_MEMORY_ERROR_TYPE_UNCORRECTED
_SINCE_LOADED: Final = 0  # NVML_VOLATILE_ECC


@dataclass(frozen=True, slots=True)
class CardCondition:
    """What NVML tells of one GPU; None is what it does not tell.

    power_limit_w, power_default_w: watts. sm_clock_set_mhz, sm_clock_default_mhz: the application clock and its
    default. ecc, mig: (now, after a reboot). uncorrected: memory errors that ECC could not mend, since the driver was
    loaded. remap_pending, remap_failed: rows of memory that wait for a reset to be replaced, or cannot be.
    """

    power_limit_w: float | None = None
    power_default_w: float | None = None
    sm_clock_set_mhz: int | None = None
    sm_clock_default_mhz: int | None = None
    ecc: tuple[bool, bool] | None = None
    mig: tuple[bool, bool] | None = None
    uncorrected: int | None = None
    remap_pending: bool = False
    remap_failed: bool = False


def read_condition(ask: Callable[..., Any], sm_clock: int) -> CardCondition:
    """Ask about one card. ask: a machine.nvml.Query. sm_clock: NVML's number of that clock."""
    remapped = ask("nvmlDeviceGetRemappedRows")  # corrected, uncorrected, pending, failed (nvml.h)
    return CardCondition(
        power_limit_w=_watts(ask("nvmlDeviceGetEnforcedPowerLimit")),
        power_default_w=_watts(ask("nvmlDeviceGetPowerManagementDefaultLimit")),
        sm_clock_set_mhz=ask("nvmlDeviceGetApplicationsClock", sm_clock),
        sm_clock_default_mhz=ask("nvmlDeviceGetDefaultApplicationsClock", sm_clock),
        ecc=_modes(ask("nvmlDeviceGetEccMode")),
        mig=_modes(ask("nvmlDeviceGetMigMode")),
        uncorrected=ask("nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _SINCE_LOADED),
        remap_pending=bool(remapped and remapped[2]),
        remap_failed=bool(remapped and remapped[3]),
    )


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _modes(answer: Sequence[int] | None) -> tuple[bool, bool] | None:
    return None if answer is None else (bool(answer[0]), bool(answer[1]))
