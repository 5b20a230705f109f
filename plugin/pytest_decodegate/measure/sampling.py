"""When is a replicate warm, when is it sampled enough, and in which order do replicates take their turns. Pure."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


class Sampler(Protocol):
    """One replicate that can be asked for samples."""

    def sample(self, count: int) -> list[float]:
        """Take `count` samples, in seconds per call, already reduced over ranks."""


class Replicating(Sampler, Protocol):
    """A sampler that keeps what it has taken."""

    def forget(self) -> None:
        """Drop what was taken so far."""


@dataclass(frozen=True, slots=True)
class Turns:
    """What one replicate gave: its samples after so many warm-up batches."""

    samples: list[float]
    warmups: int


@dataclass(frozen=True, slots=True)
class Plan:
    """How long to warm up and to sample.

    batch: samples per turn; replicates take turns batch by batch.
    min_samples, max_samples: per replicate; at least `min_samples`, then until precise or `max_samples`.
    precision: relative half-width of the median's interval at which a replicate is sampled enough.
    steady: relative change between warm-up batches below which a replicate counts as warm.
    max_warmups: warm-up batches at most; a host that never settles is measured all the same and its spread tells.
    budget_seconds: wall time for the samples of all replicates together; the minimum is taken in any case.
    """

    batch: int = 10
    min_samples: int = 30
    max_samples: int = 100
    precision: float = 0.005
    steady: float = 0.02
    max_warmups: int = 8
    budget_seconds: float = 60.0


def half_width(samples: Sequence[float]) -> float:
    """Relative half-width of the median's interval: 1.57 IQR / sqrt(n) / median (McGill, Tukey, Larsen 1978).

    Two medians whose intervals do not overlap differ at about the 5 % level. NaN where a sample is no duration (not
    finite, zero or less): no number of samples makes that precise.
    """
    if not all(math.isfinite(sample) and sample > 0 for sample in samples):
        return math.nan

    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return float(1.57 * (high - low) / len(samples) ** 0.5 / middle)


def is_steady(batch_medians: Sequence[float], change: float) -> bool:
    """Warm when the last three batch medians lie within `change` of their middle one; never with NaN among them."""
    if len(batch_medians) < 3:
        return False

    low, middle, high = sorted(batch_medians[-3:])
    return high - low <= change * middle


def warm_up(sampler: Sampler, plan: Plan) -> int:
    """Run batches until steady or `max_warmups`; returns how many it took."""
    medians: list[float] = []
    while len(medians) < plan.max_warmups and not is_steady(medians, plan.steady):
        medians.append(statistics.median(sampler.sample(max(3, plan.batch // 2))))

    return len(medians)


def in_turn(samplers: Sequence[Replicating], plan: Plan, on_turn: Callable[[int, int], None]) -> list[Turns]:
    """Warm all replicates up, then sample them in turns as `interleave` does; warm-up samples are forgotten."""
    warmups = [warm_up(sampler, plan) for sampler in samplers]
    for sampler in samplers:
        sampler.forget()

    return [Turns(*turns) for turns in zip(interleave(samplers, plan, on_turn), warmups, strict=True)]


def interleave(
    samplers: Sequence[Sampler],
    plan: Plan,
    on_turn: Callable[[int, int], None],
    clock: Callable[[], float] = time.monotonic,
) -> list[list[float]]:
    """Samples of every replicate, taken in turns; the order is reversed every other round, so drift cancels.

    A replicate that is precise keeps its turns while another is not: unequal pauses would be unequal treatment.
    on_turn(samples taken so far, samples at most) is called before each round.
    """
    taken: list[list[float]] = [[] for _ in samplers]
    order = list(range(len(samplers)))
    stop_at = clock() + plan.budget_seconds
    while _open(taken, plan, clock() < stop_at):
        on_turn(len(taken[0]), plan.max_samples)
        for index in order:
            taken[index].extend(samplers[index].sample(plan.batch))

        order.reverse()

    return taken


def _open(taken: Sequence[Sequence[float]], plan: Plan, in_time: bool) -> bool:
    count = len(taken[0])
    if count < plan.min_samples:
        return True

    return in_time and count < plan.max_samples and any(half_width(samples) > plan.precision for samples in taken)
