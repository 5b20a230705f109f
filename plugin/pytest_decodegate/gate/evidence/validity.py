"""Rules of measurement that the samples alone can show to be broken."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from ...metric import Json, Measurement
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

MOST_OTHERS_SHARE = 0.2
"""Of the cores, in use by other processes while processes that wait for each other were timed on them. On two cores a
busy loop is half, and a server, its engine and its client wait for what it leaves; an idle desktop is a tenth."""

_WAIT_FOR_EACH_OTHER = (("clock", "client, monotonic, at the socket"), ("start", "host barrier"))
"""Fields of the contract of such a measurement: a client and its server, or ranks without a GPU."""

_STEADY_KINDS = ("kernel", "collective")


def broken_rules(measurement: Measurement) -> tuple[str, ...]:
    """Why the samples cannot be judged, one sentence per broken rule; empty when they can."""
    return tuple(_broken(measurement))


def _broken(measurement: Measurement) -> Iterator[str]:
    count = len(measurement.replicates)
    if count < LEAST_REPLICATES:
        yield f"{count} replicate(s) measured, at least {LEAST_REPLICATES} are needed to see noise"

    timed = measurement.metric.kind != "quality"  # answers that all agree are what one hopes for
    if any(measurement.metric.contract.get(name) == value for name, value in _WAIT_FOR_EACH_OTHER):
        yield from _busy_cores(measurement.facts.get("telemetry"))

    for number, replicate in enumerate(measurement.replicates, start=1):
        samples = replicate.samples
        if timed and len(samples) >= LEAST_SAMPLES_TO_VARY and min(samples) == max(samples):
            value = format_value(samples[0], measurement.metric.unit)
            yield f"replicate {number}: all {len(samples)} samples are {value}; the clock did not run or is too coarse"

        drift = _drift(samples) if measurement.metric.kind in _STEADY_KINDS else 0.0
        if abs(drift) > max(MOST_DRIFT, measurement.metric.tolerance):
            yield (
                f"replicate {number}: samples drifted by {format_percent(drift)} from the first third to the last; "
                "warm-up was too short, or clocks changed while measuring"
            )


def _busy_cores(telemetry: Json) -> Iterator[str]:
    """The look at which others used the most cores, if these were too many; GPU hosts do not look at their cores."""
    looks = [look.get("cpu") for look in telemetry if isinstance(look, dict)] if isinstance(telemetry, list) else []
    known = [(float(str(cpu["others_cores"])), cpu) for cpu in looks if isinstance(cpu, dict)]
    others, cpu = max(known, key=lambda pair: pair[0], default=(0.0, {}))
    if known and others > MOST_OTHERS_SHARE * float(str(cpu["cores"])):
        most = f", most: {cpu['most']}" if cpu["most"] else ""
        yield (
            f"other processes used {others:.1f} of {cpu['cores']} cores{most}, and what was timed waits for a core "
            "too; stop them and measure again"
        )


def _drift(samples: tuple[float, ...]) -> float:
    """Relative change of the median from the first third of the samples to the last; 0 when there are too few."""
    third = len(samples) // 3
    if len(samples) < LEAST_SAMPLES_TO_DRIFT:
        return 0.0

    return median(samples[-third:]) / median(samples[:third]) - 1
