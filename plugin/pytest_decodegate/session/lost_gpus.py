"""GPUs that this host had when it recorded, and does not show today: a broken machine must not pass for a small one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from ..errors import BadInput

if TYPE_CHECKING:
    from ..baseline.schema import Baseline, Session
    from ..baseline.store import Store
    from ..machine.fingerprint import Fingerprint


def lost_gpus(store: Store, fingerprint: Fingerprint) -> str | None:
    """A sentence if a recording of this very host, by its name, had more GPUs than it has now, hidden ones included."""
    present = len(fingerprint.gpus) + fingerprint.hidden
    host = fingerprint.host.telemetry["host"]
    larger = [
        (session.instant, session.recorded, _gpus(baseline), baseline.machine_class)
        for baseline in _all(store)
        if _gpus(baseline) > present
        for session in _sessions(baseline)
        if session.telemetry.get("host") == host
    ]
    if not larger:
        return None

    _, recorded, count, machine_class = max(larger)
    why = f" ({fingerprint.no_gpu_reason})" if fingerprint.no_gpu_reason else ""
    return (
        f"this host ({host}) recorded on {_counted(count)} as {machine_class} on {recorded[:10]} and shows "
        f"{_counted(present)} now{why}: is one lost, or its driver? See what `nvidia-smi` and `dmesg` say"
    )


def _counted(gpus: int) -> str:
    return f"{gpus} GPU{'' if gpus == 1 else 's'}"


def _all(store: Store) -> Iterator[Baseline]:
    for machine_class in store.classes():
        # A file that cannot be read is told where its own class is compared with.
        with suppress(BadInput):
            yield from store.load_all(machine_class)


def _gpus(baseline: Baseline) -> int:
    gpus = baseline.provenance.machine.get("gpus")
    return 0 if baseline.published or not isinstance(gpus, list) else len(gpus)


def _sessions(baseline: Baseline) -> Iterator[Session]:
    for stored in baseline.metrics.values():
        yield from stored.sessions
