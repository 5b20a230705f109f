"""What of a recording a baseline file keeps: process values, statistics and summaries in six digits, no samples.

Values are what gates. All samples go into a sidecar beside the file (`samples`), which nobody needs to have.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ..metric import Json, Metric, Replicate
from .schema import Session, StoredMetric

DIGITS: Final = 6
"""Significant digits of a process value, which is then off by 5e-6 of itself at most; the quietest metrics scatter by
ten times that between processes of one minute."""

FEWER_DIGITS: Final = 5
"""Of statistics and summaries, which nothing rests on."""

PER_REPLICATE: Final = ("answers", "speculation")
"""Facts of replicates that the gate reads of stored ones too; of all others a file keeps the median over replicates."""

PER_SAMPLE: Final = ("sample_mhz",)
"""Facts with a value for every sample, as the sidecar has; a file keeps the clock that a replicate ran at."""

MEDIANS: Final = "medians"
"""Under this name in a session's telemetry."""

_WATCHED = {"sm_clock_mhz": "median", "temperature_c": "max", "power_w": "median"}
"""By sensor of the clock watch, the statistic that a file keeps."""


def condensed(stored: StoredMetric) -> StoredMetric:
    """`stored` as a file keeps it; condensing it again changes nothing."""
    return replace(stored, sessions=tuple(_session(session, stored.metric) for session in stored.sessions))


def rounded(value: Json) -> Json:
    """`value` with every float in it at FEWER_DIGITS significant digits, whole ones as integers, as many tools do."""
    if isinstance(value, float):
        short = float(f"{value:.{FEWER_DIGITS}g}")
        return int(short) if short.is_integer() and abs(short) < 2**53 else short
    if isinstance(value, Mapping):
        return {name: rounded(inner) for name, inner in value.items()}

    return [rounded(inner) for inner in value] if isinstance(value, list | tuple) else value


def _session(session: Session, metric: Metric) -> Session:
    kept = tuple(_replicate(replicate) for replicate in session.replicates)
    return replace(
        session,
        replicates=kept,
        telemetry=_object(_telemetry(session)),
        point=None if session.point is None else _float(session.point),
        stats=_object(session.stats or _stats(list(map(metric.seconds, session.samples)))),
    )


def _object(value: Mapping[str, Json]) -> dict[str, Json]:
    return {name: rounded(inner) for name, inner in value.items()}


def _float(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _replicate(replicate: Replicate) -> Replicate:
    facts = {name: replicate.facts[name] for name in PER_REPLICATE if name in replicate.facts}
    return Replicate.known((), _object(facts), _float(replicate.value))


def _stats(seconds: Sequence[float]) -> dict[str, Json]:
    """All fields that pytest-benchmark computes, by its own class, without the samples."""
    from pytest_benchmark.stats import Stats

    stats = Stats()
    for sample in seconds:
        stats.update(sample)

    return {**stats.as_dict(), "iterations": 1}


def _telemetry(session: Session) -> dict[str, Json]:
    kept = dict(session.telemetry)
    if isinstance(reports := kept.get("telemetry"), list):
        kept["telemetry"] = [_report(report) if isinstance(report, dict) else report for report in reports]
    if found := dict(_medians([replicate.facts for replicate in session.replicates])):
        kept[MEDIANS] = found
    if isinstance(medians := kept.get(MEDIANS), dict):
        kept[MEDIANS] = {name: value for name, value in medians.items() if name not in PER_SAMPLE}

    return kept


def _report(report: Mapping[str, Json]) -> Json:
    """What one node's watch saw: where nothing is amiss, nothing is said of it."""
    kept: dict[str, Json] = {name: value for name, value in report.items() if value not in (None, False, [], {})}
    if isinstance(gpus := report.get("gpus"), list):
        kept["gpus"] = [_gpu(gpu) if isinstance(gpu, dict) else gpu for gpu in gpus]

    return kept


def _gpu(gpu: Mapping[str, Json]) -> Json:
    """A GPU of the watch's report: how often it was looked at, why it was slowed, and each sensor's one statistic.

    The sensors of a GPU that was idle all the time say nothing of the work.
    """
    kept = {name: gpu[name] for name in ("samples", "reasons", "unverifiable_processes") if gpu.get(name)}
    reasons = gpu.get("reasons")
    if isinstance(reasons, dict) and reasons.get("gpu_idle") == 1:
        return kept

    sensors = ((name, statistic, gpu.get(name)) for name, statistic in _WATCHED.items())
    medians: dict[str, Json] = {
        name: {how: spread[how]} for name, how, spread in sensors if isinstance(spread, dict) and how in spread
    }
    narrow = gpu.get("pcie") not in (None, gpu.get("pcie_most"))
    return {**kept, **medians, **({name: gpu.get(name) for name in ("pcie", "pcie_most")} if narrow else {})}


def _medians(facts: Sequence[Mapping[str, Json]]) -> Iterator[tuple[str, Json]]:
    names = dict.fromkeys(name for some in facts for name in some if name not in PER_REPLICATE)
    for name in names:
        yield name, _median([some[name] for some in facts if name in some])


def _median(values: list[Json]) -> Json:
    """The median of numbers, field by field and place by place; what is no number is kept once where it is the same."""
    first = values[0]
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) == len(values):
        return statistics.median(numbers)
    if all(value == first for value in values):
        return first

    objects = [value for value in values if isinstance(value, dict)]
    if len(objects) == len(values) and all(value.keys() == objects[0].keys() for value in objects):
        return {name: _median([value[name] for value in objects]) for name in objects[0]}

    lists = [value for value in values if isinstance(value, list)]
    if len(lists) == len(values) and len({len(value) for value in lists}) == 1:
        return [_median([*place]) for place in zip(*lists, strict=True)]

    return values
