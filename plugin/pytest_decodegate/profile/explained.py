"""What a measured decode step holds beyond the predicted one, by name: a ledger beside a profile of the same step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..errors import BadInput
from .categories import Category
from .ledger import Ledger
from .step_profile import StepProfile


@dataclass(frozen=True, slots=True)
class Explained:
    """A measured step as a sum of names, in seconds; + is beyond the prediction.

    predicted: the ledger's sum. kernels: by category, what the profile's kernels take beyond the ledger's parts.
    overlap: of kernels that run beside each other, what the ledger adds up and time does not. waiting: of collectives
    for a later rank. gaps: no kernel runs. measured: TPOT without a profiler, None where no file holds it.
    """

    predicted: float
    kernels: Mapping[Category, float]
    overlap: float
    waiting: float
    gaps: float
    measured: float | None

    @property
    def profiled(self) -> float:
        """The step as the profile has it: the sum of all names."""
        return sum((self.predicted, *self.kernels.values(), self.overlap, self.waiting, self.gaps))

    @property
    def unexplained(self) -> float | None:
        """What TPOT has beyond all names; below zero where the profiler itself made the step longer."""
        return None if self.measured is None else self.measured - self.profiled

    @property
    def names(self) -> Iterator[tuple[str, float]]:
        """What is beyond the prediction, as people call it; zeros are left out."""
        kernels = ((category.label, seconds) for category, seconds in self.kernels.items())
        others = (("beside each other", self.overlap), ("waiting for a late rank", self.waiting), ("gaps", self.gaps))
        return ((name, seconds) for name, seconds in (*kernels, *others) if seconds)


def explained(step: Ledger, profile: StepProfile, measured_s: float | None) -> Explained:
    """`step` beside a profile of it, and the TPOT that was measured without a profiler, in seconds.

    Kernels are compared with all parts of the ledger, so that what it takes to be hidden counts as overlap. Raises
    BadInput for a profile in which no step follows another: its gaps are not known.
    """
    if profile.period_ms is None or profile.idle_ms is None:
        raise BadInput(f"{profile.source}: no step follows another there, so gaps between kernels are not known")

    known = {category: sum(e.seconds for e in step.entries if e.category == category) for category in Category}
    hidden = sum(known.values()) - step.seconds
    return Explained(
        predicted=step.seconds,
        kernels={found.category: found.ms / 1e3 - known[found.category] for found in profile.categories},
        overlap=hidden - (profile.kernel_ms - profile.busy_ms) / 1e3,
        waiting=(profile.period_ms - profile.idle_ms - profile.busy_ms) / 1e3,
        gaps=profile.idle_ms / 1e3,
        measured=measured_s,
    )
