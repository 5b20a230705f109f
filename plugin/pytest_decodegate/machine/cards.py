"""The cards of a machine: a swapped card is another machine, even where its name is the same."""

from __future__ import annotations

from collections.abc import Mapping

from ..metric import Json
from .provenance import Difference


def swapped(base: Mapping[str, Json], new: Mapping[str, Json]) -> tuple[Difference, ...]:
    """Cards that were replaced between two telemetries of one host: "gpus[1].uuid: GPU-a -> GPU-b".

    Two sides that share at least one card in its slot are one host. Without any they may be two hosts of one class,
    which may be compared: see `no_card_in_common`.
    """
    old, young = _by_slot(base), _by_slot(new)
    slots = [slot for slot in young if slot in old]
    if all(old[slot] != young[slot] for slot in slots):
        return ()

    return tuple(
        Difference(f"gpus[{index}].uuid", old[slot], young[slot], declarable=False)
        for index, slot in enumerate(young)
        if slot in old and old[slot] != young[slot]
    )


def no_card_in_common(base: Mapping[str, Json], new: Mapping[str, Json]) -> bool:
    """Whether both sides know their cards and have none in common: another host of the same class, or all swapped."""
    old, young = cards_of(base), cards_of(new)
    return bool(old and young) and not old & young


def cards_of(telemetry: Mapping[str, Json]) -> frozenset[str]:
    """Unique ids of the cards, as far as they are known."""
    return frozenset(_by_slot(telemetry).values())


def gpus_seen(facts: Mapping[str, Json]) -> tuple[Json, ...]:
    """Each GPU as the watch last saw it, by the facts of a measurement or a stored session; () where nobody watched."""
    looks = facts.get("telemetry")
    last = looks[-1] if isinstance(looks, list) and looks else None
    gpus = last.get("gpus") if isinstance(last, dict) else None
    return tuple(gpus) if isinstance(gpus, list) else ()


def _by_slot(telemetry: Mapping[str, Json]) -> dict[str, str]:
    """Unique ids of the cards by PCI bus id, as far as they are known."""
    gpus = telemetry.get("gpus")
    known = [gpu for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []
    return {str(gpu["bus_id"]): str(gpu["uuid"]) for gpu in known if gpu.get("bus_id") and gpu.get("uuid")}
