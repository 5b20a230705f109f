"""Moving of stored metrics to the class of what they ran on: pure functions over one file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from ..errors import BadInput
from ..machine.classes import gpus_of_server, machine_class
from ..machine.provenance import Provenance
from ..metric import Json
from .edits import matching
from .schema import Baseline, Session, StoredMetric


@dataclass(frozen=True, slots=True)
class Moving:
    """The metrics to move: a pattern of names. gpus: how many they ran on, where the file does not say."""

    metric: str = "*"
    gpus: int | None = None


def divide(baseline: Baseline, moving: Moving) -> tuple[Baseline, tuple[Baseline, ...]]:
    """What stays of a file, and a baseline for each class that some of its metrics belong to.

    A part holds the facts of the GPUs that were used and not those of the whole host; sessions are kept as they are.
    Raises BadInput when nothing moves, or where the file does not say what a metric ran on.
    """
    if baseline.published:
        raise BadInput(f"{baseline.path}: figures are published for a host as a whole, so none of them moves")

    parts: dict[str, Baseline] = {}
    for stored in _chosen(baseline, moving):
        part = _part(baseline, stored, moving.gpus)
        if part.machine_class != baseline.machine_class:
            found = parts.setdefault(part.machine_class, part)
            parts[part.machine_class] = replace(found, metrics={**found.metrics, **part.metrics})

    if not parts:
        raise BadInput(f"{baseline.path}: each metric {moving.metric!r} lies with what it ran on; nothing moves")

    gone = {name for part in parts.values() for name in part.metrics}
    kept = {name: stored for name, stored in baseline.metrics.items() if name not in gone}
    return replace(baseline, metrics=kept), tuple(parts.values())


def _chosen(baseline: Baseline, moving: Moving) -> Iterable[StoredMetric]:
    found = matching(baseline, moving.metric)
    if not found:
        raise BadInput(f"{baseline.path}: no metric {moving.metric!r}; it holds {', '.join(baseline.metrics)}")

    return found.values()


def _part(baseline: Baseline, stored: StoredMetric, said: int | None) -> Baseline:
    """The baseline of one metric, on the GPUs that it ran on."""
    where = f"{baseline.path}: {stored.metric.name!r}"
    nodes = baseline.provenance.machine.get("nodes")
    gpus = _gpus_used(stored, nodes if isinstance(nodes, int) else 1) if said is None else said
    if gpus is None:
        raise BadInput(f"{where}: the file does not say how many GPUs it ran on; say so with --gpus, and --metric")

    provenance = _cut(baseline.provenance, gpus, where)
    sessions = tuple(_session(session, gpus) for session in stored.sessions)
    return replace(
        baseline,
        machine_class=machine_class(provenance.machine),
        provenance=provenance,
        metrics={stored.metric.name: replace(stored, sessions=sessions)},
    )


def _gpus_used(stored: StoredMetric, nodes: int) -> int | None:
    """GPUs of a node that a metric ran on, if it tells: none on the CPU, one a rank, a server's as its ranks say."""
    world_size = stored.metric.contract.get("world_size")
    if stored.metric.kind == "cpu":
        return 0
    if isinstance(world_size, int):
        return world_size // nodes
    if stored.metric.kind == "kernel":
        return 1

    server = stored.sessions[-1].telemetry.get("server")
    return gpus_of_server(server) if isinstance(server, Mapping) else None


def _cut(provenance: Provenance, count: int, where: str) -> Provenance:
    """The provenance of the first `count` GPUs."""
    gpus, link = provenance.machine.get("gpus"), provenance.machine.get("link")
    if not isinstance(gpus, list) or len(gpus) < count:
        raise BadInput(f"{where}: ran on {count} GPUs, and its file's provenance does not have as many")
    if 1 < count < len(gpus) and link != "NVLink":
        raise BadInput(
            f"{where}: ran on {count} of {len(gpus)} GPUs, and the file tells only the slowest link of all ({link}); "
            "record it again, which is stored where it belongs"
        )

    machine = {**provenance.machine, "gpus": gpus[:count], "link": link if count > 1 else None}
    return replace(provenance, machine=machine, stack=dict(_cut_stack(provenance.stack, count)))


def _cut_stack(stack: Mapping[str, Json], count: int) -> Iterator[tuple[str, Json]]:
    """What of `stack` belongs to `count` GPUs: peer access takes two, a driver one."""
    least = {"driver_p2p": 2, "driver": 1, "vbios": 1}
    for name, value in stack.items():
        if count >= least.get(name, 0):
            yield name, value[:count] if name == "vbios" and isinstance(value, list) else value


def _session(session: Session, count: int) -> Session:
    """The session with the cards that were used, which later runs are compared with card by card."""
    gpus = session.telemetry.get("gpus")
    return (
        replace(session, telemetry={**session.telemetry, "gpus": gpus[:count]}) if isinstance(gpus, list) else session
    )
