"""The GPUs of one session: watched while something is measured, and asked whether they still work after a failure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..gang.controller import GangOptions
    from ..gang.health import Health
    from ..machine.fingerprint import Fingerprint
    from ..machine.nvml import Sensor
    from ..machine.watch import Watch


ENVIRONMENT = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""For ranks and servers: NVML counts GPUs in this order, so index 3 is the same card on both sides."""


class _Everyone(frozenset[int]):
    """All pids there are."""

    def __contains__(self, pid: object) -> bool:
        return True


class Devices:
    """The GPUs that the fingerprint shows; there may be none. options: of ranks that could run on them."""

    def __init__(self, fingerprint: Fingerprint, options: Callable[[], GangOptions]) -> None:
        self._gpus = fingerprint.gpus
        self._options = options

    @property
    def uuids(self) -> list[str]:
        """In the order of the ranks."""
        return [gpu.uuid for gpu in self._gpus]

    @property
    def labels(self) -> dict[str, str]:
        """How sentences call them, by UUID: "GPU 0 (0000:18:00.0, GPU-aa)"; the number is the machine's."""
        from ..machine.pcie import pci_address

        return {gpu.uuid: f"GPU {gpu.index} ({pci_address(gpu.bus_id)}, {gpu.uuid})" for gpu in self._gpus}

    @cached_property
    def sensor(self) -> Sensor | None:
        """NVML, or None without GPUs."""
        from ..machine.nvml import open_sensor

        return open_sensor() if self._gpus else None

    def watch(self) -> Watch:
        """A watch over the GPUs, for the time of one measurement by processes of this one."""
        from ..machine.watch import descendants

        return self._watch(descendants)

    def watch_attached(self) -> Watch:
        """The same while an attached server is measured: its pids are not known, so nobody can be told a stranger."""
        return self._watch(_Everyone)

    def _watch(self, own_pids: Callable[[], Collection[int]]) -> Watch:
        from ..machine.cpu_load import CpuLoad
        from ..machine.pcie import slot_of
        from ..machine.watch import Watch

        on_cpu = not self._gpus and own_pids is not _Everyone  # where all are ours nobody can be told an other
        slots = {gpu.uuid: slot_of(gpu) for gpu in self._gpus}
        cpu = CpuLoad(own_pids) if on_cpu else None
        return Watch(self.uuids, own_pids, sensor=self.sensor, slots=slots, cpu=cpu)

    @cached_property
    def health(self) -> Health:
        """Whether they still work."""
        from ..gang.health import Health, Place

        places = [Place(uuid, label) for uuid, label in self.labels.items()]
        return Health(places, self._options, self._holders)

    def _holders(self, uuid: str) -> str:
        from ..machine.leftover import holders

        return holders(uuid, self.sensor) if self.sensor else "nobody whom NVML can name"
