"""The SM clock of every sample, from the device-side sleep before its burst: which ran at another, and how mixed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from ...cause import Cause, Finding
from ...metric import Json, Measurement, Replicate
from ..text.quantity import format_percent

ANOTHER_CLOCK = 0.01
"""Relative difference from the median clock of its replicate that makes a sample's another: one step of the clock is
below 1 % of it, and reading it scatters by 0.04 %."""

OUTER_SHARE = 0.1
"""Of all samples of a metric that may lie beyond each end of its clocks: the median over samples bears these."""

SAMPLES, CLOCK, MARKED = "sample_mhz", "clock_mhz", "at_another_clock"
"""Facts of a replicate: the clock of each sample in MHz, their median, and the indexes of the samples marked."""


def facts(clocks: Sequence[float | None]) -> dict[str, Json]:
    """The facts of a replicate whose samples ran at `clocks`, in MHz, None where unknown; empty if none is known."""
    known = [mhz for mhz in clocks if mhz is not None]
    if not known:
        return {}

    middle = median(known)
    apart = [at for at, mhz in enumerate(clocks) if mhz is not None and abs(mhz / middle - 1) > ANOTHER_CLOCK]
    marked: dict[str, Json] = {MARKED: list[Json](apart)} if apart else {}
    return {
        CLOCK: round(middle, 1),
        SAMPLES: [None if mhz is None else round(mhz, 1) for mhz in clocks],
        **marked,
    }


def marked(replicate: Replicate) -> Finding | None:
    """The note that some samples of a replicate ran at another clock than most; None if none did."""
    indexes = replicate.facts.get(MARKED)
    if not isinstance(indexes, list) or not indexes:
        return None

    clocks = _clocks(replicate)
    text = (
        f"{len(indexes)} of {len(replicate.samples)} samples ran at another clock: {min(clocks):.0f} to "
        f"{max(clocks):.0f} MHz, half of them at {median(clocks):.0f} MHz or above"
    )
    return Finding(text, Cause.REMARK, "sample clocks")


def mixed(measurement: Measurement) -> Iterator[Finding]:
    """The broken rule of a metric whose samples ran at clocks that differ by more than its band: which of them its
    median is of, is chance. The tenth of the samples at either end do not count.
    """
    clocks = sorted(mhz for replicate in measurement.replicates for mhz in _clocks(replicate))
    outer = int(OUTER_SHARE * len(clocks))
    if not clocks or (spread := clocks[-1 - outer] / clocks[outer] - 1) <= measurement.metric.tolerance:
        return

    text = (
        f"samples mix clocks: {clocks[outer]:.0f} to {clocks[-1 - outer]:.0f} MHz, {format_percent(spread)}, in a band "
        f"of {format_percent(measurement.metric.tolerance, signed=False)}; see why in the reasons that limited the "
        "clock, let the card cool or lock its clock (nvidia-smi -lgc), and measure again"
    )
    yield Finding(text, Cause.MIXED_CLOCKS, "sample clocks")


def _clocks(replicate: Replicate) -> list[float]:
    """Those that are known; files of other tools may hold anything here."""
    clocks = replicate.facts.get(SAMPLES)
    return (
        [float(mhz) for mhz in clocks if isinstance(mhz, int | float) and mhz > 0] if isinstance(clocks, list) else []
    )
