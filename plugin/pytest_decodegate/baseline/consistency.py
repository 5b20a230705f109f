"""Checks that process values and statistics of a file follow from its samples, so that an edit by hand shows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from operator import attrgetter

from ..metric import middle
from .decoding import Refusal, ReplicateEntry, Stats, samples_of

# Other tools may round the last digits of a float when they rewrite a file; an edit by hand is larger.
_CLOSE = 1e-9

_NAMES = ("min", "max", "mean", "median", "stddev", "total", "ops", "rounds", "iterations")
_stored = attrgetter(*_NAMES)


def process_value(entry: ReplicateEntry, pointer: str) -> float:
    """The median of the samples, which is what the entry at `pointer` says it is; else raises Refusal."""
    value = middle(sorted(entry.samples))
    if entry.value != value:
        _check_close(entry.value, value, f"{pointer}/value")

    return value


def check_stats(stats: Stats, data: Sequence[float], pointer: str) -> None:
    """Compare what other readers show with `data`, the samples in seconds; raises Refusal."""
    _check_copy(stats, data, f"{pointer}/data")
    ordered, total, count = sorted(data), math.fsum(data), len(data)
    mean = total / count
    spread = _deviation(data, mean, stats.stddev)
    expected = (ordered[0], ordered[-1], mean, middle(ordered), spread, total, count / total, count, 1)
    found = _stored(stats)
    if not all(map(math.isclose, found, expected)):
        for name, value, wanted in zip(_NAMES, found, expected, strict=True):
            _check_close(value, wanted, f"{pointer}/{name}")


def _check_copy(stats: Stats, data: Sequence[float], pointer: str) -> None:
    copy = samples_of(stats.data, pointer)
    if len(copy) != len(data):
        raise Refusal(pointer, f"{len(copy)} values, but the sessions hold {len(data)} samples")

    if copy != data:
        for index, (found, expected) in enumerate(zip(copy, data, strict=True)):
            _check_close(found, expected, f"{pointer}/{index}")


def _check_close(found: float, expected: float, pointer: str) -> None:
    """Raise Refusal at `pointer` unless `found` is what the samples give."""
    if not math.isclose(found, expected, rel_tol=_CLOSE):
        raise Refusal(pointer, f"{found!r} does not follow from the samples; they give {expected!r} (edited by hand?)")


def _deviation(data: Sequence[float], mean: float, found: float) -> float:
    """Standard deviation of `data`; exact arithmetic costs as much as all else, so only where `found` is doubted."""
    if len(data) < 2:
        return 0.0

    quick = math.dist(data, [mean] * len(data)) / math.sqrt(len(data) - 1)
    return quick if math.isclose(found, quick, rel_tol=_CLOSE) else statistics.stdev(data)
