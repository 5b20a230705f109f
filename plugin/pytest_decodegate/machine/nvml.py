"""The only door to NVML: opened late, patient with what a GPU does not support."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from ..errors import DecodegateError
from ..process.processes import program_name
from .card_condition import CardCondition, read_condition
from .pcie import PcieLink, link

MIB: Final = 1024 * 1024

REASONS: Final[Mapping[int, str]] = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
"""Bits of nvmlDeviceGetCurrentClocksEventReasons by name (nvml.h, nvmlClocksEventReason*)."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """Readings of one GPU at one moment; None is a sensor that this GPU does not have."""

    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    temperature_c: int | None
    power_w: float | None
    reasons: frozenset[str]
    pcie: PcieLink | None = None


_COUNTED: Final[Mapping[int, str]] = {
    74: "sw_power_cap",
    76: "sync_boost",
    269: "sw_thermal_slowdown",
    270: "hw_thermal_slowdown",
    271: "hw_power_brake_slowdown",
}
"""Fields of nvml.h, NVML_FI_DEV_CLOCKS_EVENT_REASON_*: nanoseconds for which that reason limited the clocks."""

_VIOLATIONS: Final[Mapping[int, str]] = {0: "sw_power_cap", 1: "thermal_violation", 3: "board_limit_violation"}
"""nvmlPerfPolicyType_t of nvml.h, for drivers without those fields: nanoseconds, not told apart by cause."""


@dataclass(frozen=True, slots=True)
class GpuCounters:
    """What a GPU has added up since its driver was loaded: what lies between two readings misses nothing however short.

    limited_ns: nanoseconds for which each reason limited the clocks, by the names of REASONS, or of _VIOLATIONS; only
    those that it counts. energy_j: None where it does not count that. An H200 adds to them every 0.1 s.
    """

    limited_ns: Mapping[str, int]
    energy_j: float | None


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds a compute context on a GPU; its memory is None where NVML may not see it."""

    pid: int
    name: str
    memory_mib: int | None

    def __str__(self) -> str:
        memory = "an unknown amount of memory" if self.memory_mib is None else f"{self.memory_mib} MiB"
        return f"pid {self.pid} ({self.name}, {memory})"


class Sensor(Protocol):
    """The interface of a GPU to the watch, by UUID; tests put a double in its place."""

    @property
    def problems(self) -> tuple[str, ...]:
        """Questions that NVML refused to answer so far, other than "not supported", once each."""

    def sample(self, uuid: str) -> GpuReading:
        """Clocks, temperature, power and the reasons that limit the clocks, now."""

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """Compute processes on the GPU, by pid."""

    def used_mib(self, uuid: str) -> int:
        """Memory in use on the GPU, in MiB, by any process."""

    def utilization(self, uuid: str) -> int | None:
        """Percent of the last second or less in which some kernel ran on the GPU; None where NVML does not tell."""


class CountingSensor(Sensor, Protocol):
    """A sensor that also reads what GPUs add up."""

    def counters(self, uuid: str) -> GpuCounters:
        """What the GPU has added up until now."""


class CardSensor(CountingSensor, Protocol):
    """A sensor that also tells the condition of cards and of the driver."""

    @property
    def driver_cuda(self) -> tuple[int, int] | None:
        """The newest CUDA that the driver runs, (12, 8); None where it does not tell."""

    def condition(self, uuid: str) -> CardCondition:
        """The condition of the card now."""


_CONSTANTS: Final[Mapping[str, int]] = {
    "NVML_ERROR_DEPRECATED": 26,
    "NVML_NVLINK_MAX_LINKS": 18,
    "NVML_NVLINK_DEVICE_TYPE_SWITCH": 2,
    "NVML_P2P_CAPS_INDEX_WRITE": 1,
    "NVML_P2P_CAPS_INDEX_NVLINK": 2,
    "NVML_P2P_STATUS_OK": 0,
}
"""Of nvml.h, for a binding that is too old to have them."""

_MEND: Final[Mapping[int, str]] = {
    4: "this user may not open the devices: look at the permissions of /dev/nvidia*, or at what a container was given",
    9: "the kernel module is not loaded: `modprobe nvidia` says why (was it built for this kernel, is it signed?)",
    15: "a GPU is lost: `dmesg` has its Xid; reset it, or reboot",
    18: "an upgrade left the kernel module of the other version loaded: reboot, or unload the module and load it again",
}
"""What to do about nvmlReturn_t (nvml.h), where that is known."""

_NO_DRIVER: Final = 12  # NVML_ERROR_LIBRARY_NOT_FOUND
_NOT_LOADED: Final = 9  # NVML_ERROR_DRIVER_NOT_LOADED


class Binding:
    """A pynvml of any age: what old ones give as bytes is text, what they do not have is a function not found."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._nvml, name, _CONSTANTS.get(name, self))
        if found is self:
            found = self._missing
        if isinstance(found, type) or not callable(found):
            return found

        return lambda *arguments: _text(found(*arguments))

    def _missing(self, *_: Any) -> Any:
        raise self._nvml.NVMLError(self._nvml.NVML_ERROR_FUNCTION_NOT_FOUND)


@dataclass(frozen=True, slots=True)
class NvmlSilence:
    """The reason why NVML tells nothing, with what to do about it, if that is known.

    no_driver: because there is no driver here, which is no fault. not_loaded: because one is installed and not loaded,
    which is none where there is no GPU.
    """

    reason: str
    mend: str = ""
    no_driver: bool = False
    not_loaded: bool = False


def open_nvml(nvml: Any = None) -> Binding | NvmlSilence:
    """The initialised binding, or the reason why this machine has none; `nvml` may be a double.

    NVML stays open until the process ends: without persistence mode the driver would otherwise be torn down and
    set up again around every query, which takes seconds and resets clocks.
    """
    try:
        nvml = nvml or importlib.import_module("pynvml")
    except ImportError:
        mend = "install it where pytest runs: `python -m pip install nvidia-ml-py`"
        return NvmlSilence("the Python package nvidia-ml-py is not installed", mend, not_loaded=True)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return NvmlSilence(
            f"no NVIDIA driver answers (NVML: {error})",
            _MEND.get(error.value, "see what `nvidia-smi` and `dmesg` say"),
            no_driver=error.value == _NO_DRIVER,
            not_loaded=error.value == _NOT_LOADED,
        )

    return Binding(nvml)


def _text(answer: Any) -> Any:
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer


class Query:
    """Asks about one device. What the device or the driver does not support is None; other errors go to `problems`,
    once each: a watch asks five times a second.
    """

    def __init__(self, nvml: Any, handle: Any, label: str, problems: list[str]) -> None:
        self._nvml, self._handle, self._label, self._problems = nvml, handle, label, problems

    def __call__(self, function: str, *arguments: Any) -> Any:
        """The answer of `nvml.<function>(handle, *arguments)`, or None."""
        try:
            return getattr(self._nvml, function)(self._handle, *arguments)
        except self._nvml.NVMLError as error:
            problem = f"{self._label}: {function}: {error}"
            if error.value not in self._unsupported() and problem not in self._problems:
                self._problems.append(problem)

        return None

    def _unsupported(self) -> set[int]:
        nvml = self._nvml
        return {nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND, nvml.NVML_ERROR_DEPRECATED}


class NvmlSensor:
    """The sensor that asks NVML."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._handles: dict[str, Any] = {}
        self._problems: list[str] = []

    @property
    def problems(self) -> tuple[str, ...]:
        """Questions that NVML refused to answer, in the order seen."""
        return tuple(self._problems)

    def sample(self, uuid: str) -> GpuReading:
        """Clocks in MHz, temperature in degrees Celsius, power in watts, and the PCIe link as it runs now."""
        nvml, ask = self._nvml, self._query(uuid)
        bits = ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:
            # Its name before driver 535 and nvidia-ml-py 12.535.
            bits = ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        milliwatts = ask("nvmlDeviceGetPowerUsage")

        return GpuReading(
            sm_clock_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            memory_clock_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
            temperature_c=ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            power_w=None if milliwatts is None else milliwatts / 1000,
            reasons=frozenset(name for bit, name in REASONS.items() if (bits or 0) & bit),
            pcie=link(ask("nvmlDeviceGetCurrPcieLinkGeneration"), ask("nvmlDeviceGetCurrPcieLinkWidth")),
        )

    def counters(self, uuid: str) -> GpuCounters:
        """Nanoseconds by reason, from the fields or else the violation times that this driver has, and joules."""
        ask = self._query(uuid)
        millijoules = ask("nvmlDeviceGetTotalEnergyConsumption")
        return GpuCounters(_counted(ask) or _violations(ask), None if millijoules is None else millijoules / 1000)

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """Compute processes by pid; a name that NVML will not tell is read from /proc."""
        found = self._query(uuid)("nvmlDeviceGetComputeRunningProcesses") or []
        return tuple(
            GpuProcess(each.pid, self._name(each.pid), _mib(each.usedGpuMemory))
            for each in sorted(found, key=lambda process: int(process.pid))
        )

    def used_mib(self, uuid: str) -> int:
        """Memory in use in MiB; 0 where NVML does not tell, so that a wait for it ends."""
        memory = self._query(uuid)("nvmlDeviceGetMemoryInfo")
        return _mib(memory.used) or 0 if memory else 0

    @property
    def driver_cuda(self) -> tuple[int, int] | None:
        """By nvmlSystemGetCudaDriverVersion, whose 12080 is CUDA 12.8."""
        try:
            code = int(self._nvml.nvmlSystemGetCudaDriverVersion())
        except self._nvml.NVMLError:
            return None

        return code // 1000, code % 1000 // 10

    def condition(self, uuid: str) -> CardCondition:
        """As card_condition asks for it."""
        return read_condition(self._query(uuid), self._nvml.NVML_CLOCK_SM)

    def utilization(self, uuid: str) -> int | None:
        """Percent, by nvmlDeviceGetUtilizationRates."""
        rates = self._query(uuid)("nvmlDeviceGetUtilizationRates")
        return int(rates.gpu) if rates else None

    def _query(self, uuid: str) -> Query:
        try:
            handle = self._handles.get(uuid) or self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        except self._nvml.NVMLError as error:
            raise DecodegateError(f"GPU {uuid} is not there for NVML ({error}); see what `nvidia-smi` says") from error

        self._handles[uuid] = handle
        return Query(self._nvml, handle, uuid, self._problems)

    def _name(self, pid: int) -> str:
        return process_name(pid, ask=self._nvml.nvmlSystemGetProcessName, refused=self._nvml.NVMLError)


def _counted(ask: Query) -> dict[str, int]:
    answers = ask("nvmlDeviceGetFieldValues", list(_COUNTED)) or ()
    return {
        _COUNTED[answer.fieldId]: int(answer.value.ullVal)
        for answer in answers
        if answer.nvmlReturn == 0 and answer.fieldId in _COUNTED
    }


def _violations(ask: Query) -> dict[str, int]:
    answers = {name: ask("nvmlDeviceGetViolationStatus", policy) for policy, name in _VIOLATIONS.items()}
    return {name: int(answer.violationTime) for name, answer in answers.items() if answer is not None}


def process_name(pid: int, ask: Callable[[int], str], refused: type[Exception]) -> str:
    """The program name of `pid` without its folder, from `ask`, else from /proc, else "unknown"."""
    try:
        return Path(str(ask(pid))).name
    except refused:
        return program_name(pid)


def _mib(size_bytes: int | None) -> int | None:
    return None if size_bytes is None else size_bytes // MIB


def open_sensor(nvml: Any = None) -> NvmlSensor | None:
    """The sensor of this machine, or None without NVML; `nvml` may be a double."""
    binding = open_nvml(nvml)
    return None if isinstance(binding, NvmlSilence) else NvmlSensor(binding)
