"""What a measured decode step holds beyond the predicted one, by name: a ledger beside a profile of the same step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..errors import BadInput
from .categories import Category
from .ledger import Ledger, Time, by_category
from .measured import Tpot
from .step_profile import StepProfile


@dataclass(frozen=True, slots=True)
class Explained:
    """A measured step as a sum of names, in seconds; + is beyond the prediction.

    predicted: the ledger's sum. kernels: by category, what the profile's kernels take beyond the ledger's parts.
    overlap: of kernels that run beside each other, what the ledger adds up and time does not. waiting: of collectives
    for a later rank. profiled_gaps: of the profile, in which no kernel runs. measured: without a profiler, None where
    nobody measured it.

    A profiler hardly changes how long kernels run, and makes the gaps between them longer. So where TPOT is known the
    gaps are what it leaves beside the kernels, at most those of the profile, and the rest of these is the profiler's.
    """

    predicted: float
    kernels: Mapping[Category, float]
    overlap: float
    waiting: float
    profiled_gaps: float
    measured: Tpot | None

    @property
    def profiled(self) -> float:
        """The step as the profile has it, the profiler's own cost included."""
        return self._on_the_device + self.profiled_gaps

    @property
    def gaps(self) -> float:
        """Of the measured step, or of the profiled one where nobody measured it."""
        if self.measured is None:
            return self.profiled_gaps

        return min(max(self.measured.step - self._on_the_device, 0.0), self.profiled_gaps)

    @property
    def unexplained(self) -> float | None:
        """What TPOT has beyond all names; below zero where kernels alone took longer in the profile."""
        if self.measured is None:
            return None

        return self.measured.step - self._on_the_device - self.gaps

    @property
    def names(self) -> Iterator[tuple[str, float]]:
        """What is beyond the prediction, as people call it; zeros are left out."""
        kernels = ((category.label, seconds) for category, seconds in self.kernels.items())
        prefills = self.measured.prefills if self.measured else 0.0
        others = (
            ("beside each other", self.overlap),
            ("waiting for a late rank", self.waiting),
            ("gaps", self.gaps),
            ("prefills of other streams", prefills),
        )
        return ((name, seconds) for name, seconds in (*kernels, *others) if seconds)

    @property
    def _on_the_device(self) -> float:
        return sum((self.predicted, *self.kernels.values(), self.overlap, self.waiting))


def explained(step: Ledger, times: Mapping[str, Time], profile: StepProfile, measured: Tpot | None) -> Explained:
    """`step`, made of `times`, beside a profile of it, and what was measured without a profiler.

    Kernels are compared with all parts of the ledger, so that what it takes to be hidden counts as overlap. Raises
    BadInput for a profile in which no step follows another: its gaps are not known.
    """
    if profile.period_ms is None or profile.idle_ms is None:
        raise BadInput(f"{profile.source}: no step follows another there, so gaps between kernels are not known")

    known = by_category(step, times)
    hidden = sum(known.values()) - step.seconds
    return Explained(
        predicted=step.seconds,
        kernels={found.category: found.ms / 1e3 - known[found.category] for found in profile.categories},
        overlap=hidden - (profile.kernel_ms - profile.busy_ms) / 1e3,
        waiting=(profile.period_ms - profile.idle_ms - profile.busy_ms) / 1e3,
        profiled_gaps=profile.idle_ms / 1e3,
        measured=measured,
    )
