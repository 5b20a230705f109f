"""GPUs that this host had when it recorded, and does not show today: a broken machine must not pass for a small one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import BadInput
from ..fitness.readings import LostGpus
from ..machine.cards import cards_of

if TYPE_CHECKING:
    from datetime import datetime

    from ..baseline.schema import Baseline, Session
    from ..baseline.store import Store
    from ..machine.fingerprint import Fingerprint


@dataclass(frozen=True, slots=True)
class _Larger:
    """A recording on more GPUs than there are now. missing: those of its GPUs that are not seen today.

    by_name: that it is of this host is known by the host's name alone, which other hosts may have as well.
    """

    instant: datetime
    day: str
    count: int
    machine_class: str
    missing: tuple[str, ...]
    by_name: bool


def lost_gpus(store: Store, fingerprint: Fingerprint) -> LostGpus | None:
    """What is to be told if a recording of this very host had more GPUs than it has now, hidden ones included.

    It is of this host if one of today's GPUs is among those recorded. Its name is asked only where today or then no GPU
    is known: many hosts are called alike, as virtual machines are. Returns None if no recording has more.
    """
    larger = list(_larger(store, fingerprint))
    if not larger:
        return None

    found = max(larger, key=lambda each: (not each.by_name, each.instant))
    present = len(fingerprint.gpus) + fingerprint.hidden
    host = fingerprint.host.telemetry["host"]
    who = f"a host of this name ({host})" if found.by_name else f"this host ({host})"
    why = f" ({fingerprint.no_gpu_reason})" if fingerprint.no_gpu_reason else ""
    which = f", without {', '.join(found.missing)}" if found.missing and not fingerprint.hidden else ""
    doubt = "; no GPU tells whether it is the same host: if it is," if found.by_name else ":"
    return LostGpus(
        f"{who} recorded on {_counted(found.count)} as {found.machine_class} on {found.day} and "
        f"{'this one' if found.by_name else 'it'} shows {_counted(present)} now{why}{which}{doubt} is one lost, or its "
        "driver? See what `nvidia-smi` and `dmesg` say",
        sure=not found.by_name,
    )


def _larger(store: Store, fingerprint: Fingerprint) -> Iterator[_Larger]:
    present = len(fingerprint.gpus) + fingerprint.hidden
    today = {gpu.uuid for gpu in fingerprint.gpus}
    host = fingerprint.host.telemetry["host"]
    for baseline in _all(store):
        if (count := _gpus(baseline)) <= present:
            continue

        for session in _sessions(baseline):
            then = cards_of(session.telemetry)
            known = bool(today and then)
            if today.intersection(then) if known else session.telemetry.get("host") == host:
                missing = tuple(sorted(then - today)) if known else ()
                yield _Larger(session.instant, session.recorded[:10], count, baseline.machine_class, missing, not known)


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
