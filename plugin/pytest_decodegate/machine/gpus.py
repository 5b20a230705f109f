"""The GPUs that a process may use, as NVML describes them: which, how set up, how linked."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ..errors import BadInput
from ..metric import Json
from .nvml import Query
from .pcie import Slot, link, pci_address

_COMPUTE_MODES: Final = ("default", "exclusive_thread", "prohibited", "exclusive_process")
_HIDE_THE_REST: Final = {"-1", "", "none", "void", "nodevfiles"}


@dataclass(frozen=True, slots=True)
class _Fact:
    """How NVML is asked for one fact, and how its answer becomes JSON in the unit that the fact's name ends with."""

    function: str
    constant: str | None = None
    convert: Callable[[Any], Json] = int

    def read(self, nvml: Any, ask: Query) -> Json:
        answer = ask(self.function, *([getattr(nvml, self.constant)] if self.constant else []))
        return None if answer is None else self.convert(answer)


_MUST_MATCH: Final[Mapping[str, _Fact]] = {
    # The name alone is not the SKU: H100 PCIe and H100 NVL were mixed once, and drivers rename (see `Gpu.sku`).
    "pci_device_id": _Fact("nvmlDeviceGetPciInfo", convert=lambda pci: f"0x{pci.pciDeviceId:08x}"),
    "sm_clock_max_mhz": _Fact("nvmlDeviceGetMaxClockInfo", "NVML_CLOCK_SM"),
    "memory_clock_max_mhz": _Fact("nvmlDeviceGetMaxClockInfo", "NVML_CLOCK_MEM"),
    # A reboot resets these by policy, and a driver upgrade is a reboot: a GPU locked to other clocks, with ECC off or
    # with another power limit once looked like a slower driver.
    "sm_clock_set_mhz": _Fact("nvmlDeviceGetApplicationsClock", "NVML_CLOCK_SM"),
    "memory_clock_set_mhz": _Fact("nvmlDeviceGetApplicationsClock", "NVML_CLOCK_MEM"),
    "power_limit_w": _Fact("nvmlDeviceGetEnforcedPowerLimit", convert=lambda milliwatts: round(milliwatts / 1000)),
    # ECC and MIG answer [current, pending]; what is pending takes a reboot to matter.
    "ecc": _Fact("nvmlDeviceGetEccMode", convert=lambda modes: bool(modes[0])),
    "mig": _Fact("nvmlDeviceGetMigMode", convert=lambda modes: bool(modes[0])),
    "persistence": _Fact("nvmlDeviceGetPersistenceMode", convert=bool),
    "compute_mode": _Fact("nvmlDeviceGetComputeMode", convert=lambda mode: _COMPUTE_MODES[mode]),
    # What slot and GPU can do together; what the link runs at in this moment is telemetry.
    "pcie_gen_max": _Fact("nvmlDeviceGetMaxPcieLinkGeneration"),
    "pcie_width_max": _Fact("nvmlDeviceGetMaxPcieLinkWidth"),
}
_REPORTED: Final[Mapping[str, _Fact]] = {
    # An idle link falls back to generation 1, so these say little about the run.
    "pcie_gen": _Fact("nvmlDeviceGetCurrPcieLinkGeneration"),
    "pcie_width": _Fact("nvmlDeviceGetCurrPcieLinkWidth"),
}
# Rounded: what the driver reserves for itself changes with the driver.
_MEMORY_GIB: Final = _Fact("nvmlDeviceGetMemoryInfo", convert=lambda memory: round(memory.total / 2**30))


@dataclass(frozen=True, slots=True)
class Gpu:
    """One visible GPU, or one MIG instance of it.

    index: position among all GPUs of the machine, by PCI bus id. name: as the driver says it.
    machine: what must match. telemetry: what is reported.
    """

    index: int
    uuid: str
    name: str
    bus_id: str
    vbios: str | None
    machine: Mapping[str, Json]
    telemetry: Mapping[str, Json]

    @property
    def memory_gib(self) -> int:
        """Memory in GiB, rounded; 0 if NVML does not say."""
        size = self.machine.get("memory_gib")
        return size if isinstance(size, int) else 0

    @property
    def sku(self) -> str:
        """The name without what drivers add and drop: "NVIDIA H200", "H200" -> "H200"; "Tesla V100" -> "V100"."""
        return re.sub(r"^(NVIDIA\s+)?(Tesla\s+)?", "", self.name.strip(), flags=re.IGNORECASE)

    @property
    def slot(self) -> Slot:
        """The slot of the card, and the most that card and slot can do together."""
        most = link(self.machine.get("pcie_gen_max"), self.machine.get("pcie_width_max"))
        return Slot(self.index, pci_address(self.bus_id), most)


@dataclass(frozen=True, slots=True)
class Device:
    """Handles of a GPU: `handle` is the GPU itself, `instance` its MIG instance, or the same handle again."""

    index: int
    uuid: str
    bus_id: str
    handle: Any
    instance: Any


@dataclass(slots=True)
class Survey:
    """One walk over the devices of an initialised NVML; `problems` collects what it refused to say."""

    nvml: Any
    problems: list[str] = field(default_factory=list)
    devices: list[Device] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        nvml = self.nvml
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        by_bus_id = sorted(((_bus_id(nvml, handle), handle) for handle in handles), key=lambda pair: pair[0])
        for index, (bus_id, handle) in enumerate(by_bus_id):
            self.devices.append(Device(index, nvml.nvmlDeviceGetUUID(handle), bus_id, handle, handle))

    def visible(self, setting: str | None) -> list[Device]:
        """The devices that CUDA_VISIBLE_DEVICES lets through, in its order; None is a variable that is not set.

        Raises BadInput where CUDA would quietly show fewer GPUs than the user named.
        """
        if setting is None or not self.devices:
            return list(self.devices)

        tokens = (token.strip() for token in setting.split(","))
        named = itertools.takewhile(lambda token: token.lower() not in _HIDE_THE_REST, tokens)
        chosen = [self._find(token, setting) for token in named]
        if len({device.uuid for device in chosen}) < len(chosen):
            raise BadInput(f"CUDA_VISIBLE_DEVICES={setting!r} names a GPU twice; CUDA would show none of them")

        return chosen

    def why_none(self) -> str:
        """The reason why nothing is visible, for the sentence of a skipped test."""
        if not self.devices:
            return "NVML sees no GPU"

        return f"CUDA_VISIBLE_DEVICES hides every GPU of this machine ({len(self.devices)})"

    def describe(self, device: Device) -> Gpu:
        """Ask everything about one device. A MIG instance has a name and memory of its own; the rest is its GPU's."""
        ask = self._query(device)
        instance = Query(self.nvml, device.instance, f"GPU {device.index}", self.problems)

        return Gpu(
            index=device.index,
            uuid=device.uuid,
            name=self.nvml.nvmlDeviceGetName(device.instance),
            bus_id=device.bus_id,
            vbios=ask("nvmlDeviceGetVbiosVersion"),
            machine={
                "memory_gib": _MEMORY_GIB.read(self.nvml, instance),
                **{name: fact.read(self.nvml, ask) for name, fact in _MUST_MATCH.items()},
                "nvlinks_active": self._active_nvlinks(device),
            },
            telemetry={name: fact.read(self.nvml, ask) for name, fact in _REPORTED.items()},
        )

    def _find(self, token: str, setting: str) -> Device:
        if token.isdigit():
            found = [device for device in self.devices if device.index == int(token)]
        else:
            instances = self._instances() if token.startswith("MIG-") else ()
            found = [device for device in (*self.devices, *instances) if device.uuid.startswith(token)]

        if len(found) != 1:
            present = ", ".join(f"{device.index} = {device.uuid}" for device in self.devices)
            raise BadInput(f"CUDA_VISIBLE_DEVICES={setting!r}: {token!r} names {len(found)} GPUs; there are {present}")

        return found[0]

    def _instances(self) -> Iterator[Device]:
        nvml = self.nvml
        for device in self.devices:
            for place in range(self._query(device)("nvmlDeviceGetMaxMigDeviceCount") or 0):
                try:
                    instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(device.handle, place)
                except nvml.NVMLError_NotFound:
                    continue

                yield Device(device.index, nvml.nvmlDeviceGetUUID(instance), device.bus_id, device.handle, instance)

    def _query(self, device: Device) -> Query:
        return Query(self.nvml, device.handle, f"GPU {device.index}", self.problems)

    def _active_nvlinks(self, device: Device) -> int:
        active = 0
        for number in range(self.nvml.NVML_NVLINK_MAX_LINKS):
            try:
                active += self.nvml.nvmlDeviceGetNvLinkState(device.handle, number)
            except self.nvml.NVMLError:
                # Past the last link, or a GPU without NVLink: drivers use different codes for both.
                break

        return active


def _bus_id(nvml: Any, handle: Any) -> str:
    bus_id = nvml.nvmlDeviceGetPciInfo(handle).busId
    return bus_id.decode() if isinstance(bus_id, bytes) else str(bus_id)
