"""Who holds the machine: a bench, a server, or nobody. GPU memory is not shared, and must come back between two."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..machine.nvml import Sensor

MEMORY_SECONDS = 60.0
"""Time for GPU memory to come back after a tenant has left: the driver clears up after the process is gone."""


class Tenancy:
    """At most one tenant at a time.

    labels: the GPUs whose memory is watched, by UUID, and how sentences call them. sensor: None without a GPU.
    found: what held memory before the first tenant came, in sentences.
    """

    def __init__(self, labels: Mapping[str, str], sensor: Sensor | None) -> None:
        from ..machine.gpu_memory import leftovers

        self.found = leftovers(labels, sensor)
        self._gpu_uuids = tuple(labels)
        self._sensor = sensor
        self._memory_before: dict[str, int] = {}
        self._leave: Callable[[], None] | None = None
        self.tenant: object = None

    def move_in(self, tenant: object, leave: Callable[[], None]) -> None:
        """Make room for `tenant`, who leaves by `leave`; nothing happens if it is here already.

        Raises DecodegateError if the last tenant's memory does not come back, naming who holds how much.
        """
        from ..machine.gpu_memory import used_memory

        if tenant is self.tenant:
            return

        self.move_out()
        self._memory_before = used_memory(self._gpu_uuids, self._sensor)
        self.tenant, self._leave = tenant, leave

    def move_out(self, tenant: object = None) -> None:
        """Ask the tenant to leave and wait for its memory; if `tenant` is given, only when it is the one here."""
        from ..machine.gpu_memory import memory_back

        if self._leave is None or (tenant is not None and tenant is not self.tenant):
            return

        leave, self._leave, self.tenant = self._leave, None, None
        leave()
        memory_back(self._memory_before, MEMORY_SECONDS, self._sensor)
