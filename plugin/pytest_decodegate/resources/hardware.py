"""The hardware of one session: its GPUs, who holds them now, who watches them, and whether they still work."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property
from typing import TYPE_CHECKING

from ..errors import DecodegateError, GangError, ServerError
from .lease import Lease

if TYPE_CHECKING:
    from ..gang.controller import GangOptions
    from ..gang.health import Health
    from ..machine.fingerprint import Fingerprint
    from ..machine.nvml import CardSensor
    from ..machine.watch import Watch


ENVIRONMENT = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""For ranks and servers: NVML counts GPUs in this order, so index 3 is the same card on both sides."""


class _Everyone(frozenset[int]):
    """All pids there are."""

    def __contains__(self, pid: object) -> bool:
        return True


class Hardware:
    """What this session measures on; there may be no GPU. options: of ranks that could run on the GPUs.

    fingerprint: the machine, read when it is first wanted.
    """

    def __init__(self, fingerprint: Callable[[], Fingerprint], options: Callable[[], GangOptions]) -> None:
        self._read = fingerprint
        self._options = options

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """The machine, read once."""
        return self._read()

    @property
    def has_gpu(self) -> bool:
        """Whether this run sees a GPU."""
        return bool(self.fingerprint.gpus)

    @property
    def uuids(self) -> list[str]:
        """Of the GPUs, in the order of the ranks."""
        return [gpu.uuid for gpu in self.fingerprint.gpus]

    @property
    def labels(self) -> dict[str, str]:
        """How sentences call the GPUs, by UUID: "GPU 0 (0000:18:00.0, GPU-aa)"; the number is the machine's."""
        from ..machine.pcie import pci_address

        return {gpu.uuid: f"GPU {gpu.index} ({pci_address(gpu.bus_id)}, {gpu.uuid})" for gpu in self.fingerprint.gpus}

    @cached_property
    def sensor(self) -> CardSensor | None:
        """NVML, or None without GPUs."""
        from ..machine.nvml import open_sensor

        return open_sensor() if self.has_gpu else None

    def watch(self) -> Watch:
        """A watch over the GPUs, for the time of one measurement by processes of this one."""
        from ..process.processes import family

        return self._watch(family)

    def watch_attached(self) -> Watch:
        """The same while an attached server is measured: its pids are not known, so nobody can be told a stranger."""
        return self._watch(_Everyone)

    def _watch(self, own_pids: Callable[[], Collection[int]]) -> Watch:
        from ..machine.cpu_load import CpuLoad
        from ..machine.watch import Watch

        slots = {gpu.uuid: gpu.slot for gpu in self.fingerprint.gpus}
        cpu = CpuLoad(own_pids) if own_pids is not _Everyone else None  # where all are ours nobody is an other
        return Watch(self.uuids, own_pids, sensor=self.sensor, slots=slots, cpu=cpu)

    @cached_property
    def lease(self) -> Lease:
        """Who holds the machine."""
        return Lease(self.labels, self.sensor)

    def take(self, holder: object, leave: Callable[[], None]) -> None:
        """Give the machine to `holder`, who leaves by `leave`; raises DecodegateError if its GPUs do not work."""
        self.refuse_if_wedged()
        self.lease.take(holder, leave)

    def release(self) -> None:
        """Ask whoever holds the machine to leave. Nothing is asked of NVML if nobody ever held it."""
        if "lease" in self.__dict__:
            self.lease.release()

    @cached_property
    def health(self) -> Health:
        """Whether the GPUs still work."""
        from ..gang.health import Health, ProbedGpu

        gpus = [ProbedGpu(uuid, label) for uuid, label in self.labels.items()]
        return Health(gpus, self._options, self._holders)

    def doubt(self, error: DecodegateError) -> None:
        """Remember that a test ended with `error`; if the GPUs may be at fault they are asked before the next use."""
        if isinstance(error, (GangError, ServerError)):
            self.health.doubt(error)

    def wedged(self) -> tuple[str, ...]:
        """Why the GPUs cannot be used any more, a sentence for each; asked of them only after a failure."""
        return self.health.sick(lambda: self.lease.release())

    def refuse_if_wedged(self) -> None:
        """Raise GangError if an earlier failure has shown that the GPUs do not work any more."""
        if wedged := self.wedged():
            raise GangError("; ".join(wedged))

    def _holders(self, uuid: str) -> str:
        from ..machine.gpu_memory import holders

        return holders(uuid, self.sensor) if self.sensor else "nobody whom NVML can name"
