"""Who holds the machine: gangs, a server, or nobody. GPU memory is not shared, and must come back between two."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..machine.nvml import Sensor

MEMORY_SECONDS = 60.0
"""Time for GPU memory to come back after a holder has left: the driver clears up after the process is gone."""


class Lease:
    """The machine, held by at most one at a time.

    labels: the GPUs whose memory is watched, by UUID, and how sentences call them. sensor: None without a GPU.
    leftovers: what held memory before the first holder came, in sentences.
    """

    def __init__(self, labels: Mapping[str, str], sensor: Sensor | None) -> None:
        from ..machine.gpu_memory import leftovers

        self.leftovers = leftovers(labels, sensor)
        self._gpu_uuids = tuple(labels)
        self._sensor = sensor
        self._memory_before: dict[str, int] = {}
        self._leave: Callable[[], None] | None = None
        self.holder: object = None

    def take(self, holder: object, leave: Callable[[], None]) -> None:
        """Make room for `holder`, who leaves by `leave`; nothing happens if it is here already.

        Raises DecodegateError if the last holder's memory does not come back, naming who holds how much.
        """
        from ..machine.gpu_memory import used_memory

        if holder is self.holder:
            return

        self.release()
        self._memory_before = used_memory(self._gpu_uuids, self._sensor)
        self.holder, self._leave = holder, leave

    def release(self, holder: object = None) -> None:
        """Ask the holder to leave and wait for its memory; if `holder` is given, only when it is the one here."""
        from ..machine.gpu_memory import memory_back

        if self._leave is None or (holder is not None and holder is not self.holder):
            return

        leave, self._leave, self.holder = self._leave, None, None
        leave()
        memory_back(self._memory_before, MEMORY_SECONDS, self._sensor)
