"""A double of NVML with GPUs that know their answers."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml

NOT_SUPPORTED = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
H200: Mapping[str, Any] = {
    "nvmlDeviceGetName": "NVIDIA H200",
    "nvmlDeviceGetVbiosVersion": "96.00.BC.00.01",
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=143771 * 2**20, used=143000 * 2**20),
    "nvmlDeviceGetMaxClockInfo": lambda kind: {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 3201}[kind],
    "nvmlDeviceGetClockInfo": lambda kind: {pynvml.NVML_CLOCK_SM: 1755, pynvml.NVML_CLOCK_MEM: 3200}[kind],
    "nvmlDeviceGetApplicationsClock": NOT_SUPPORTED,
    "nvmlDeviceGetEnforcedPowerLimit": 700_000,
    "nvmlDeviceGetEccMode": [1, 1],
    "nvmlDeviceGetMigMode": [0, 0],
    "nvmlDeviceGetPersistenceMode": 1,
    "nvmlDeviceGetComputeMode": 0,
    "nvmlDeviceGetMaxPcieLinkGeneration": 5,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetCurrPcieLinkGeneration": 1,
    "nvmlDeviceGetCurrPcieLinkWidth": 16,
    "nvmlDeviceGetNvLinkState": lambda link: 1 if link < 18 else pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT),
    "nvmlDeviceGetNvLinkRemoteDeviceType": lambda link: pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH,
    "nvmlDeviceGetNvLinkVersion": lambda link: 4,
    "nvmlDeviceGetP2PStatus": lambda other, index: pynvml.NVML_P2P_STATUS_OK,
    "nvmlDeviceGetTopologyCommonAncestor": lambda other: pynvml.NVML_TOPOLOGY_SYSTEM,
    "nvmlDeviceGetMaxMigDeviceCount": 0,
    "nvmlDeviceGetCurrentClocksEventReasons": 0x4,
    "nvmlDeviceGetTemperature": lambda sensor: 41,
    "nvmlDeviceGetPowerUsage": 118_500,
    "nvmlDeviceGetComputeRunningProcesses": [],
    "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
    "nvmlDeviceGetDefaultApplicationsClock": NOT_SUPPORTED,
    "nvmlDeviceGetTotalEccErrors": 0,
    "nvmlDeviceGetRemappedRows": [0, 0, 0, 0],
}
BLACKWELL: Mapping[str, Any] = {
    **H200,
    "nvmlDeviceGetName": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "nvmlDeviceGetNvLinkState": NOT_SUPPORTED,
    "nvmlDeviceGetP2PStatus": lambda other, index: pynvml.NVML_P2P_STATUS_NOT_SUPPORTED,
}


@dataclass
class FakeGpu:
    """A device handle that knows its answers; an answer may be a value, a function of the arguments or an error."""

    place: int
    base: Mapping[str, Any] = field(default_factory=lambda: H200)
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def uuid(self) -> str:
        return f"GPU-{self.place}000aaaa-0000-0000-0000-000000000000"

    def answer(self, function: str, arguments: tuple[Any, ...]) -> Any:
        if function == "nvmlDeviceGetUUID":
            return self.changes.get(function, self.uuid)
        if function == "nvmlDeviceGetPciInfo":
            return SimpleNamespace(busId=f"00000000:{self.place:02X}:00.0".encode(), pciDeviceId=0x233510DE)

        answer = {**self.base, **self.changes}[function]
        answer = answer(*arguments) if callable(answer) else answer
        if isinstance(answer, Exception):
            raise answer

        return answer


class FakeNvml:
    """A double of the pynvml module: its constants and errors are real, and calls must fit its real signatures."""

    def __init__(self, *gpus: FakeGpu, init: Exception | None = None, driver: str = "580.159.03") -> None:
        self.gpus, self.init, self.driver = gpus, init, driver

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("NVML_", "NVMLError")):
            return getattr(pynvml, name)
        if name.startswith("nvmlDeviceGet"):
            return lambda handle, *arguments: self._ask(name, handle, *arguments)

        raise AttributeError(name)

    def _ask(self, name: str, handle: FakeGpu, *arguments: Any) -> Any:
        inspect.signature(getattr(pynvml, name)).bind(handle, *arguments)
        return handle.answer(name, arguments)

    def nvmlInit(self) -> None:  # noqa: N802 - the names are pynvml's
        if self.init:
            raise self.init

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:  # noqa: N802
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:  # noqa: N802
        for gpu in self.gpus:
            if gpu.uuid == uuid:
                return gpu

        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return self.driver

    def nvmlSystemGetCudaDriverVersion(self) -> int:  # noqa: N802
        return 13000

    def nvmlSystemGetProcessName(self, pid: int) -> str:  # noqa: N802
        if pid == 1:
            return "/opt/somewhere/python3"

        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
