"""Rules of measurement that the samples alone can show to be broken."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median, quantiles

from ...cause import Cause, Finding
from ...metric import Json, Measurement
from ..stats.student import t_quantile
from ..text.quantity import format_percent, format_value
from . import late_host, sample_clocks

LEAST_REPLICATES = 2
"""One process cannot tell a change from the offset that every process has."""

LEAST_SAMPLES_TO_VARY = 5
"""So many equal samples are no measurement: a timer that stands still, or a value that was copied."""

LEAST_SAMPLES_TO_DRIFT = 30
"""Thirds of ten samples: their medians differ by chance by 3 % where single samples scatter by 6 %."""

DRIFT_SHARE = 0.5
"""Of the band, that samples may change from the first third to the last. What has drifted so far is half a verdict, and
its value is that of the moment at which sampling ended."""

SURE_DRIFT = 4.0
"""Standard errors of that change from where on noise alone does not make it: once in 16,000 replicates."""

LEAST_TO_TREND = 4
"""Replicates: a line through three leaves one degree of freedom, whose t is never convincing."""

TREND_ALPHA = 0.01
"""Chance, two-sided, that windows which do not drift seem to."""

MOST_WAITED = 0.05
"""Share of the time for which a thread of the measurement may have waited for a core, where the host's time is what is
timed. Only so much of it counts as other processes used of the cores: ranks also wait for each other's."""

MOST_THROTTLED = 0.02
"""Share of the time for which the container's CPU quota may have held the measurement back."""

MOST_OTHERS_SHARE = 0.2
"""Of the cores, in use by other processes, where the kernel does not count who waited. On two cores a busy loop is
half, and a server, its engine and its client wait for what it leaves; an idle desktop is a tenth."""

_ON_THE_HOST = ("perf_counter", "client, monotonic, at the socket")
"""Clocks of the host that go on while what they time waits for a core; CPU time does not."""

_STEADY_KINDS = ("kernel", "collective")
_SERVED = ("window", "server")


def broken_rules(measurement: Measurement, *, in_turn: bool = False) -> tuple[Finding, ...]:
    """Why the samples cannot be judged, a finding for each broken rule; empty when they can.

    in_turn: its replicates were measured in turn with those of another stack, so that what drifts on both cancels.
    """
    return tuple(_broken(measurement, in_turn))


def host_timed(contract: Mapping[str, Json]) -> bool:
    """Whether the host's own time is part of what is timed: by its clocks, or launch by launch on a device's."""
    clock = contract.get("clock")
    return clock in _ON_THE_HOST or (clock == "cuda_event" and contract.get("mode") == "eager")


def trend(logs: Sequence[float]) -> float:
    """Change of log values in order from the first to the last, along a line; 0 where chance may have made it."""
    count = len(logs)
    if count < LEAST_TO_TREND:
        return 0.0

    times = [index - (count - 1) / 2 for index in range(count)]
    spread = sum(time * time for time in times)
    slope = sum(time * value for time, value in zip(times, logs, strict=True)) / spread
    level = fmean(logs)
    squares = sum((value - level - slope * time) ** 2 for time, value in zip(times, logs, strict=True))
    error = math.sqrt(squares / (count - 2) / spread)
    return slope * (count - 1) if abs(slope) > t_quantile(1 - TREND_ALPHA / 2, count - 2) * error else 0.0


def drift_between(base: Measurement, candidate: Measurement) -> Iterator[Finding]:
    """Whether windows of two servers in turn drift apart: how much slower one is then depends on when one asks."""
    if candidate.level != "window" or len(base.values) != len(candidate.values):
        return

    pairs = zip(base.values, candidate.values, strict=True)
    drift = math.expm1(trend([math.log(new / old) for old, new in pairs]))
    if abs(drift) > candidate.metric.tolerance:
        text = (
            f"the two servers drifted apart by {format_percent(drift)} from the first pair of windows to the last; one "
            "of them was not warm, or changes while it serves"
        )
        yield Finding(text, Cause.DRIFT, "servers apart")


def _broken(measurement: Measurement, in_turn: bool) -> Iterator[Finding]:
    count = len(measurement.replicates)
    if count < LEAST_REPLICATES:
        few = f"{count} replicate(s) measured, at least {LEAST_REPLICATES} are needed to see noise"
        yield Finding(few, Cause.TOO_FEW)

    yield from sample_clocks.mixed(measurement)
    yield from late_host.spoiled(measurement)
    timed = measurement.metric.kind != "quality"  # answers that all agree are what one hopes for
    if host_timed(measurement.metric.contract):
        yield from _busy_cores(measurement.facts.get("telemetry"))

    for number, replicate in enumerate(measurement.replicates, start=1):
        samples = replicate.samples
        if timed and len(samples) >= LEAST_SAMPLES_TO_VARY and min(samples) == max(samples):
            value = format_value(samples[0], measurement.metric.unit)
            still = f"all {len(samples)} samples are {value}; the clock did not run or is too coarse"
            yield Finding(still, Cause.BROKEN_CLOCK).of(f"replicate {number}")

        steady = timed and (measurement.metric.kind in _STEADY_KINDS or measurement.level in _SERVED)
        drift = _drift(samples) if steady else 0.0
        if abs(drift) > DRIFT_SHARE * measurement.metric.tolerance:
            drifted = (
                f"samples drifted by {format_percent(drift)} from the first third to the last, more than "
                f"{DRIFT_SHARE:g} of the band; warm-up was too short, or clocks changed while measuring"
            )
            yield Finding(drifted, Cause.DRIFT).of(f"replicate {number}")

    # Starts of a server are as independent as processes; windows of one start follow each other.
    if timed and measurement.level == "window" and not in_turn:
        drift = math.expm1(trend([math.log(value) for value in measurement.values]))
        if abs(drift) > measurement.metric.tolerance:
            drifted = (
                f"windows drifted by {format_percent(drift)} from the first to the last, which no noise does; the "
                "server was not warm, or it changes while it serves (clocks, memory, somebody else's load)"
            )
            yield Finding(drifted, Cause.DRIFT, "windows")


def _busy_cores(telemetry: Json) -> Iterator[Finding]:
    """What kept the measurement from a core at the worst look, if it was too much."""
    looks = [look.get("cpu") for look in telemetry if isinstance(look, dict)] if isinstance(telemetry, list) else []
    known = [cpu for cpu in looks if isinstance(cpu, dict)]
    for of, wrong in (("others_cores", _others_in_the_way), ("throttled_share", _throttled)):
        worst = max(known, key=lambda cpu: _number(cpu, of), default=None)
        if worst is not None and (text := wrong(worst)):
            yield Finding(text, Cause.BUSY_CORES, "cores")


def _others_in_the_way(cpu: Mapping[str, Json]) -> str | None:
    """The sentence on other processes, if ours waited for them; without a count of that, if they were many."""
    others, waited = _number(cpu, "others_cores"), cpu.get("waited_share")
    most = f", most: {cpu['most']}" if cpu["most"] else ""
    who = f"other processes used {others:.1f} of {cpu['cores']} cores{most}"
    if waited is None:
        busy = others > MOST_OTHERS_SHARE * _number(cpu, "cores")
        return f"{who}, and what was timed waits for a core too; stop them and measure again" if busy else None

    if min(others, _number(cpu, "waited_share")) <= MOST_WAITED:
        return None

    return f"{cpu['waited_by']} waited for a core {waited:.0%} of the time while {who}; stop them and measure again"


def _throttled(cpu: Mapping[str, Json]) -> str | None:
    share = _number(cpu, "throttled_share")
    if share <= MOST_THROTTLED:
        return None

    return f"the CPU quota of this container held processes back {share:.0%} of the time; raise it and measure again"


def _number(cpu: Mapping[str, Json], name: str) -> float:
    """A number of a look; 0 where it is not known."""
    value = cpu.get(name)
    return float(value) if isinstance(value, (int, float)) else 0.0


def _drift(samples: tuple[float, ...]) -> float:
    """Relative change of the median from the first third of the samples to the last; 0 where chance may have made it.

    The standard error of a median is that of McGill, Tukey, Larsen 1978: 1.25 IQR / (1.35 sqrt(n)).
    """
    third = len(samples) // 3
    if len(samples) < LEAST_SAMPLES_TO_DRIFT:
        return 0.0

    first, last = samples[:third], samples[-third:]
    change = median(last) - median(first)
    error = math.hypot(*(1.25 * _quartile_range(part) / (1.35 * math.sqrt(third)) for part in (first, last)))
    return change / median(first) if abs(change) > SURE_DRIFT * error else 0.0


def _quartile_range(samples: tuple[float, ...]) -> float:
    low, _, high = quantiles(samples, n=4, method="inclusive")
    return high - low
