"""The GPUs that a process may use, as NVML describes them: which, how set up, how linked."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ..errors import BadInput
from ..metric import Json
from .cuda_memory import cuda_memory_bytes
from .nvml import Query
from .pcie import Slot, link, pci_address

_COMPUTE_MODES: Final = ("default", "exclusive_thread", "prohibited", "exclusive_process")
_HIDE_THE_REST: Final = {"-1", "", "none", "void", "nodevfiles"}


def hides_all(setting: str | None) -> bool:
    """Whether a value of CUDA_VISIBLE_DEVICES hides every GPU on purpose; None is a variable that is not set."""
    return setting is not None and setting.split(",")[0].strip().lower() in _HIDE_THE_REST


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
        """Memory in GiB, rounded; raises BadInput if neither NVML nor CUDA tells it."""
        size = self.machine.get("memory_gib")
        if not isinstance(size, int):
            raise BadInput(
                f"GPU {self.index} ({self.name}): neither NVML nor CUDA tells how much memory it has, so nobody knows "
                "which model it holds; serve one of your own with --perf-launch, or attach to it with --perf-server"
            )

        return size

    @property
    def is_instance(self) -> bool:
        """Whether it is a MIG instance; it has the number of its GPU, as others there have."""
        return self.uuid.startswith("MIG-")

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

    @property
    def is_instance(self) -> bool:
        """Whether it is a MIG instance."""
        return self.instance is not self.handle


@dataclass(slots=True)
class Survey:
    """One walk over the devices of an initialised NVML; `problems` collects what it refused to say.

    cuda_memory: bytes of the GPU of a UUID, asked where NVML does not tell them; raises OSError if CUDA does not, too.
    """

    nvml: Any
    problems: list[str] = field(default_factory=list)
    cuda_memory: Callable[[str], int] = cuda_memory_bytes
    devices: list[Device] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        nvml = self.nvml
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        by_bus_id = sorted(((_bus_id(nvml, handle), handle) for handle in handles), key=lambda pair: pair[0])
        for index, (bus_id, handle) in enumerate(by_bus_id):
            self.devices.append(Device(index, nvml.nvmlDeviceGetUUID(handle), bus_id, handle, handle))

    def visible(self, setting: str | None) -> list[Device]:
        """The devices that CUDA_VISIBLE_DEVICES lets through, in its order; None is a variable that is not set.

        Raises BadInput where CUDA would quietly show fewer GPUs than the user named, or one that nobody chose.
        """
        if setting is None or not self.devices:
            return self._without_mig_mode(list(self.devices))

        tokens = (token.strip() for token in setting.split(","))
        named = itertools.takewhile(lambda token: token.lower() not in _HIDE_THE_REST, tokens)
        chosen = self._without_mig_mode([self._find(token, setting) for token in named])
        if len({device.uuid for device in chosen}) < len(chosen):
            raise BadInput(f"CUDA_VISIBLE_DEVICES={setting!r} names a GPU twice; CUDA would show none of them")
        if len(chosen) > 1 and any(device.is_instance for device in chosen):
            raise BadInput(
                f"CUDA_VISIBLE_DEVICES={setting!r} names {len(chosen)} devices with a MIG instance among them; CUDA "
                "shows a process one instance and nothing beside it: name one"
            )

        return chosen

    def _without_mig_mode(self, devices: list[Device]) -> list[Device]:
        """`devices`, unless one of them is a whole GPU in MIG mode: CUDA would take some instance of it."""
        for device in devices:
            modes = None if device.is_instance else self._query(device)("nvmlDeviceGetMigMode")
            if modes and modes[0]:
                instances = ", ".join(map(self._shown, self._instances([device])))
                what = f"its instances are {instances}" if instances else "it has none: `nvidia-smi mig -cgi` makes one"
                raise BadInput(
                    f"GPU {device.index} ({device.uuid}) is in MIG mode, and no instance of it is chosen; {what}; set "
                    "CUDA_VISIBLE_DEVICES to the uuid of one, or to GPUs that are not in MIG mode"
                )

        return devices

    def why_none(self) -> str:
        """The reason why nothing is visible, for the sentence of a skipped test."""
        if not self.devices:
            return "NVML sees no GPU"

        return f"CUDA_VISIBLE_DEVICES hides every GPU of this machine ({len(self.devices)})"

    def describe(self, device: Device) -> Gpu:
        """Ask everything about one device. A MIG instance has a name and memory of its own; the rest is its GPU's."""
        ask = self._query(device)
        return Gpu(
            index=device.index,
            uuid=device.uuid,
            name=self._name(device),
            bus_id=device.bus_id,
            vbios=ask("nvmlDeviceGetVbiosVersion"),
            machine={
                "memory_gib": self._memory_gib(device),
                **{name: fact.read(self.nvml, ask) for name, fact in _MUST_MATCH.items()},
                "nvlinks_active": self._active_nvlinks(device),
            },
            telemetry={name: fact.read(self.nvml, ask) for name, fact in _REPORTED.items()},
        )

    def _name(self, device: Device) -> str:
        """As the driver says it, and of a MIG instance with its size, which some drivers leave out."""
        name: str = self.nvml.nvmlDeviceGetName(device.instance)
        if not device.is_instance or "MIG" in name:
            return name

        attributes = self._query_instance(device)("nvmlDeviceGetAttributes_v2")
        slices = f"{attributes.gpuInstanceSliceCount}g." if attributes else ""
        return f"{name} MIG {slices}{self._memory_gib(device)}gb"

    def _memory_gib(self, device: Device) -> int | None:
        """GiB, rounded; None, with a problem, where neither NVML nor CUDA tells."""
        known = _MEMORY_GIB.read(self.nvml, self._query_instance(device))
        if isinstance(known, int):
            return known

        try:
            return round(self.cuda_memory(device.uuid) / 2**30)
        except OSError as error:
            problem = f"GPU {device.index}: NVML does not tell its memory, and CUDA neither ({error})"
            if problem not in self.problems:
                self.problems.append(problem)

        return None

    def _find(self, token: str, setting: str) -> Device:
        instances = list(self._instances(self.devices)) if token.startswith("MIG-") else []
        if token.isascii() and token.isdecimal():
            found = [device for device in self.devices if device.index == int(token)]
        else:
            found = [device for device in (*self.devices, *instances) if device.uuid.startswith(token)]

        if len(found) != 1:
            present = ", ".join(
                [*(f"{device.index} = {device.uuid}" for device in self.devices), *map(self._shown, instances)]
            )
            raise BadInput(f"CUDA_VISIBLE_DEVICES={setting!r}: {token!r} names {len(found)} GPUs; there are {present}")

        return found[0]

    def _shown(self, instance: Device) -> str:
        return f"{instance.uuid} ({self._name(instance)} on GPU {instance.index})"

    def _instances(self, devices: Iterable[Device]) -> Iterator[Device]:
        nvml = self.nvml
        for device in devices:
            for place in range(self._query(device)("nvmlDeviceGetMaxMigDeviceCount") or 0):
                try:
                    instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(device.handle, place)
                except nvml.NVMLError_NotFound:
                    continue

                yield Device(device.index, nvml.nvmlDeviceGetUUID(instance), device.bus_id, device.handle, instance)

    def _query(self, device: Device) -> Query:
        return Query(self.nvml, device.handle, f"GPU {device.index}", self.problems)

    def _query_instance(self, device: Device) -> Query:
        return Query(self.nvml, device.instance, f"GPU {device.index}", self.problems)

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
