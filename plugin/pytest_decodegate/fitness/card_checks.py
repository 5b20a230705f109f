"""Checks of the GPUs: pure functions of what was read, each a row of `table`."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Final

from ..machine.clocks import MOST_SHIFT
from ..machine.gpu_memory import LEAST_MIB, LEAST_PERCENT, named
from ..machine.pcie import LEAST_LOOKS, PcieLink, reached
from ..machine.watch import INVALIDATING
from .check import Grade, Symptom
from .readings import CardLoad, HostReadings, InspectedCard

LEAST_CLOCK: Final = 0.85
"""Of the highest SM clock, a fraction: power-limited cards run near it under a load of memory traffic."""

LEAST_MEMORY_CLOCK: Final = 0.98
"""Of the highest memory clock, a fraction: decoding is bound by memory, and nothing should hold this clock down."""

LEAST_LINK: Final = 1 / 4
"""Of what card and slot can do, the rate below which a link is broken rather than of an older generation."""

SLOWER: Final = 0.95
"""Of the fastest card's rate, a fraction below which a card is the one that all others wait for."""

FARTHER: Final = 0.75
"""The same of what comes from the host: all cards are loaded at once, and those behind one switch share its link."""


def gpus(seen: HostReadings) -> Iterator[Symptom]:
    """Whether there are GPUs, all answer, and none was lost."""
    if seen.fingerprint is None:
        yield Symptom(Grade.FAIL, seen.refused)
        return
    if seen.lost_gpus:
        yield Symptom(Grade.FAIL if seen.lost_gpus.sure else Grade.WARN, seen.lost_gpus.text)
    if not seen.fingerprint.gpus:
        yield Symptom(Grade.WARN, f"no GPU, the stand-ins would run: {seen.fingerprint.no_gpu_reason}")
        return

    yield from (Symptom(Grade.WARN, f"NVML: {problem}") for problem in seen.fingerprint.problems)
    yield Symptom(Grade.OK, f"{seen.fingerprint.machine_class}, driver {seen.fingerprint.driver}")


def persistence(seen: HostReadings) -> Iterator[Symptom]:
    """Whether the driver stays loaded between two processes."""
    for card in seen.cards:
        mode = card.gpu.machine.get("persistence")
        yield _known(card, mode, "on", "off" if mode is False else "")


def power_limit(seen: HostReadings) -> Iterator[Symptom]:
    """Whether each card may draw what it was made for."""
    for card in seen.cards:
        limit, default = card.condition.power_limit_w, card.condition.power_default_w
        low = limit is not None and default is not None and limit < default - 1
        yield _known(card, limit, f"{limit or 0:.0f} W", f"{limit or 0:.0f} W of {default or 0:.0f} W" if low else "")


def caps(seen: HostReadings) -> Iterator[Symptom]:
    """Whether the power limit held the clocks down under load."""
    for card, load in _loaded(seen):
        capped = "sw_power_cap" in _reasons(load)
        watts = [look.power_w for look in load.looks if look.power_w is not None]
        drew = f" at {max(watts):.0f} W" if watts else ""
        yield _of(card, f"the power limit held the clocks down{drew}" if capped else "", f"no cap reached{drew}")
    yield from _not_loaded(seen)


def throttling(seen: HostReadings) -> Iterator[Symptom]:
    """Whether heat or supply holds clocks down, now or under load."""
    for card in seen.cards:
        load = card.load
        reasons = (card.idle.reasons if card.idle else frozenset()) | (_reasons(load) if load else frozenset())
        found = [reason for reason in INVALIDATING if reason in reasons]
        if found:
            yield Symptom(Grade.FAIL, ", ".join(found), card.gpu.index)
        elif card.idle or load:
            yield Symptom(Grade.OK, "not throttled", card.gpu.index)


def memory_errors(seen: HostReadings) -> Iterator[Symptom]:
    """Whether memory has errors that ECC cannot mend, or rows to replace."""
    for card in seen.cards:
        found = card.condition
        if found.uncorrected or found.remap_failed:
            what = "a row that cannot be replaced" if found.remap_failed else f"{found.uncorrected} uncorrected errors"
            yield Symptom(Grade.FAIL, what, card.gpu.index)
        else:
            waits = "rows wait for a reset to be replaced" if found.remap_pending else ""
            yield _known(card, found.uncorrected, "no uncorrected error", waits)


def ecc(seen: HostReadings) -> Iterator[Symptom]:
    """Whether ECC is as it will be after a reboot, and the same on all cards."""
    modes = {card.condition.ecc[0] for card in seen.cards if card.condition.ecc}
    for card in seen.cards:
        now, later = card.condition.ecc or (None, None)
        said = "on" if now else "off"
        problem = f"{said}, and {'on' if later else 'off'} after a reboot" if now != later else ""
        yield _known(card, now, said, problem or (f"{said}, and not so on all cards" if len(modes) > 1 else ""))


def mig(seen: HostReadings) -> Iterator[Symptom]:
    """Whether cards are whole."""
    for card in seen.cards:
        now, later = card.condition.mig or (None, None)
        later_text = "off now, and on after a reboot" if later and not now else ""
        yield _known(card, now, "off", "on: a part of the card is measured" if now else later_text)


def compute_mode(seen: HostReadings) -> Iterator[Symptom]:
    """Whether several processes may use a card at once."""
    for card in seen.cards:
        mode = card.gpu.machine.get("compute_mode")
        if mode in ("prohibited", "exclusive_process", "exclusive_thread"):
            yield Symptom(Grade.FAIL, str(mode), card.gpu.index)
        elif mode is not None:
            yield Symptom(Grade.OK, str(mode), card.gpu.index)


def gpu_processes(seen: HostReadings) -> Iterator[Symptom]:
    """Whether somebody else computes on the cards, or holds their memory."""
    for card in seen.cards:
        busy = (card.busy_percent or 0) >= LEAST_PERCENT
        who = named(card.foreign)
        if seen.attached:
            yield Symptom(Grade.OK, "not told apart from the attached server's", card.gpu.index)
        elif card.foreign and (busy or card.cuda_users):
            yield Symptom(Grade.FAIL, f"{who}{f', busy {card.busy_percent} %' if busy else ''}", card.gpu.index)
        elif card.foreign or card.used_mib >= LEAST_MIB or busy:
            yield Symptom(Grade.WARN, f"{card.used_mib} MiB held, by {who}", card.gpu.index)
        else:
            yield Symptom(Grade.OK, "free", card.gpu.index)


def clock_lock(seen: HostReadings) -> Iterator[Symptom]:
    """Whether somebody has fixed clocks: application clocks away from their default, or one clock whatever the load."""
    for card in seen.cards:
        now, default = card.condition.sm_clock_set_mhz, card.condition.sm_clock_default_mhz
        if now is not None and default is not None and now != default:
            yield Symptom(Grade.WARN, f"application clock {now} MHz, by default {default} MHz", card.gpu.index)
        elif card.load and (locked := _locked_mhz(card, card.load)):
            yield Symptom(
                Grade.WARN, f"{locked} MHz throughout, held down by no reason that the card gives", card.gpu.index
            )
        elif card.load or default is not None:
            text = "no lock seen" if card.load else "application clocks as by default, not seen under load"
            yield Symptom(Grade.OK, text, card.gpu.index)


def clocks(seen: HostReadings) -> Iterator[Symptom]:
    """Whether cards under load reach their clocks, and the same."""
    levels = [median(found) for _, load in _loaded(seen) if (found := _sm_clocks(load))]
    for card, load in _loaded(seen):
        found = _sm_clocks(load)
        most = card.gpu.machine.get("sm_clock_max_mhz")
        if found and isinstance(most, int):
            mhz = median(found)
            low = mhz < LEAST_CLOCK * most or mhz < (1 - MOST_SHIFT) * max(levels)
            text = f"{mhz:.0f} of {most} MHz under load"
            yield _of(card, text if low else "", text)
    yield from _not_loaded(seen)


def memory_clock(seen: HostReadings) -> Iterator[Symptom]:
    """Whether memory under load runs at its clock."""
    for card, load in _loaded(seen):
        found = [look.memory_clock_mhz for look in load.looks if look.memory_clock_mhz is not None]
        most = card.gpu.machine.get("memory_clock_max_mhz")
        if found and isinstance(most, int):
            text = f"{median(found):.0f} of {most} MHz under load"
            yield _of(card, text if median(found) < LEAST_MEMORY_CLOCK * most else "", text)
    yield from _not_loaded(seen)


def pcie(seen: HostReadings) -> Iterator[Symptom]:
    """Whether the links under load have the generation and width that card and slot can do."""
    for card, load in _loaded(seen):
        looks = [look.pcie for look in load.looks if look.pcie is not None]
        best, most = reached(looks), card.gpu.slot.most
        if best is not None and most is not None and len(looks) >= LEAST_LOOKS:
            yield Symptom(_link_grade(best, most), f"{best} of {most} under load", card.gpu.index)
    yield from _not_loaded(seen)


def rates(seen: HostReadings) -> Iterator[Symptom]:
    """Whether all cards move bytes as fast as the fastest."""
    loads = [load for _, load in _loaded(seen)]
    for card, load in _loaded(seen):
        slow = load.copy_bytes_s < SLOWER * max(each.copy_bytes_s for each in loads)
        far = load.host_bytes_s < FARTHER * max(each.host_bytes_s for each in loads)
        text = f"copies {load.copy_bytes_s / 1e9:.0f} GB/s, from the host {load.host_bytes_s / 1e9:.1f} GB/s"
        yield _of(card, text if slow or far else "", text)
    yield from _not_loaded(seen)


def peers(seen: HostReadings) -> Iterator[Symptom]:
    """Whether each card may use the memory of each other."""
    topology = seen.fingerprint.topology if seen.fingerprint else None
    if topology is None:
        return

    for places, pair in topology.pairs.items():
        if pair.read == pair.write == "ok":
            yield Symptom(Grade.OK, str(pair))
        else:
            known = pair.read is not None and pair.write is not None
            yield Symptom(Grade.WARN if known else Grade.SKIP, f"{topology.between(places)}: {pair}")


def _link_grade(best: PcieLink, most: PcieLink) -> Grade:
    if not best.is_below(most):
        return Grade.OK

    return Grade.FAIL if best.speed <= LEAST_LINK * most.speed else Grade.WARN


def _locked_mhz(card: InspectedCard, load: CardLoad) -> int | None:
    """The one clock of a card that its load never moved although it is below the highest and nothing limits it."""
    found = set(_sm_clocks(load))
    most = card.gpu.machine.get("sm_clock_max_mhz")
    free = not _reasons(load) - {"applications_clocks_setting"}
    if len(load.looks) < LEAST_LOOKS or len(found) != 1 or not free or not isinstance(most, int):
        return None

    (mhz,) = found
    return mhz if mhz < (1 - MOST_SHIFT) * most else None


def _reasons(load: CardLoad) -> frozenset[str]:
    """What limited the clocks, as the looks and the card's own counters have it."""
    return frozenset(reason for look in load.looks for reason in look.reasons).union(load.limited_s)


def _sm_clocks(load: CardLoad) -> list[int]:
    return [look.sm_clock_mhz for look in load.looks if look.sm_clock_mhz is not None]


def _loaded(seen: HostReadings) -> list[tuple[InspectedCard, CardLoad]]:
    return [(card, card.load) for card in seen.cards if card.load is not None]


def _not_loaded(seen: HostReadings) -> Iterator[Symptom]:
    if seen.not_loaded:
        yield Symptom(Grade.SKIP, seen.not_loaded)


def _of(card: InspectedCard, problem: str, good: str) -> Symptom:
    return Symptom(Grade.WARN if problem else Grade.OK, problem or good, card.gpu.index)


def _known(card: InspectedCard, answer: object, good: str, problem: str) -> Symptom:
    """As `_of`, and SKIP where the card does not answer."""
    if answer is None:
        return Symptom(Grade.SKIP, "NVML does not tell", card.gpu.index)

    return _of(card, problem, good)
