"""Rules of measurement that the samples alone can show to be broken."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from ...cause import Cause, Finding
from ...metric import Measurement
from ..text.quantity import format_percent, format_value

LEAST_REPLICATES = 2
"""One process cannot tell a change from the offset that every process has."""

LEAST_SAMPLES_TO_VARY = 5
"""So many equal samples are no measurement: a timer that stands still, or a value that was copied."""

LEAST_SAMPLES_TO_DRIFT = 30
"""Thirds of ten samples: their medians differ by chance by 3 % where single samples scatter by 6 %."""

MOST_DRIFT = 0.10
"""Change from the first third to the last that warm-up, heating or throttling make, and noise does not; a metric whose
band is wider has noise to match, and is allowed its band."""

_STEADY_KINDS = ("kernel", "collective")


def broken_rules(measurement: Measurement) -> tuple[Finding, ...]:
    """Why the samples cannot be judged, a finding for each broken rule; empty when they can."""
    return tuple(_broken(measurement))


def _broken(measurement: Measurement) -> Iterator[Finding]:
    count = len(measurement.replicates)
    if count < LEAST_REPLICATES:
        few = f"{count} replicate(s) measured, at least {LEAST_REPLICATES} are needed to see noise"
        yield Finding(few, Cause.TOO_FEW)

    timed = measurement.metric.kind != "quality"  # answers that all agree are what one hopes for
    for number, replicate in enumerate(measurement.replicates, start=1):
        samples = replicate.samples
        if timed and len(samples) >= LEAST_SAMPLES_TO_VARY and min(samples) == max(samples):
            value = format_value(samples[0], measurement.metric.unit)
            still = f"all {len(samples)} samples are {value}; the clock did not run or is too coarse"
            yield Finding(still, Cause.BROKEN_CLOCK).of(f"replicate {number}")

        drift = _drift(samples) if measurement.metric.kind in _STEADY_KINDS else 0.0
        if abs(drift) > max(MOST_DRIFT, measurement.metric.tolerance):
            drifted = (
                f"samples drifted by {format_percent(drift)} from the first third to the last; warm-up was too short, "
                "or clocks changed while measuring"
            )
            yield Finding(drifted, Cause.DRIFT).of(f"replicate {number}")


def _drift(samples: tuple[float, ...]) -> float:
    """Relative change of the median from the first third of the samples to the last; 0 when there are too few."""
    third = len(samples) // 3
    if len(samples) < LEAST_SAMPLES_TO_DRIFT:
        return 0.0

    return median(samples[-third:]) / median(samples[:third]) - 1
