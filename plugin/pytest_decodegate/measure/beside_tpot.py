"""What the windows of a TPOT give as well: time to the first token, time between tokens, tokens per second.

No load is sent for them. Shown with each TPOT, and metrics of their own where the user gives a band.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ..cause import Cause, Finding
from ..metric import Metric, Replicate, beside_tpot

if TYPE_CHECKING:
    from ..metric import Json, Level
    from .source import Source, Taken


@dataclass(frozen=True, slots=True)
class WindowQuantity:
    """A quantity of a window. stem: one of metric.BESIDE_TPOT, which its metric is called by; unit: as of a Metric.

    fact: where it lies among the facts of a replicate, with a dot below a nested one. formula: how it is taken, part of
    the contract.
    """

    stem: str
    unit: str
    fact: str
    formula: str

    def name(self, tpot: str) -> str:
        """The name of its metric beside the metric `tpot`."""
        return beside_tpot(tpot, self.stem)

    def metric(self, tpot: Metric, tolerance: float) -> Metric:
        """Its metric beside `tpot`, of the same kind; tolerance: its own band."""
        return Metric(self.name(tpot.name), self.unit, tpot.kind, tolerance)

    def of(self, facts: Mapping[str, Json]) -> float | None:
        """Its value in the facts of a window, in its unit; None where the window does not tell."""
        found: Json = dict(facts)
        for name in self.fact.split("."):
            found = found.get(name) if isinstance(found, dict) else None

        return float(found) if isinstance(found, int | float) and found > 0 else None

    def taken(self, windows: Taken) -> Taken:
        """The same windows as replicates of this quantity; that some do not tell it breaks a rule."""
        values = [self.of(replicate.facts) for replicate in windows.replicates]
        known = tuple(Replicate((value,)) for value in values if value is not None)
        broken = windows.broken
        if untold := len(values) - len(known):
            text = f"{untold} of {len(values)} windows do not tell it: tokens came several at once, or as one piece"
            broken = (*broken, Finding(text, Cause.WINDOW, self.stem))

        contract = {**windows.contract, "formula": self.formula}
        return replace(windows, replicates=known, contract=contract, broken=broken)


QUANTITIES: Final = (
    WindowQuantity("ttft", "s", "ttft_median_s", "ttft_median_v1"),
    WindowQuantity("itl_p50", "s", "itl_s.p50", "itl_p50_v1"),
    WindowQuantity("itl_p99", "s", "itl_s.p99", "itl_p99_v1"),
    WindowQuantity("output_rate", "tok/s", "output_tok_s", "output_rate_v1"),
)
"""TTFT: from sending a request to its first token, the median of the window's requests. ITL: between the arrivals of
two tokens, over all of the window's. Rate: tokens of all streams that arrive while the measured requests run."""


class KeptWindows:
    """A source of TPOT that keeps what it gave, for those beside it. taken: everything so far, None before that."""

    def __init__(self, windows: Source) -> None:
        self._windows = windows
        self.taken: Taken | None = None

    @property
    def level(self) -> Level:
        """See Source."""
        return self._windows.level

    def take(self, count: int) -> Taken:
        """See Source."""
        self.taken = self._windows.take(count)
        return self.taken


class SameWindows:
    """A Source of another quantity of the windows that were taken already; it asks for more when they are used up."""

    def __init__(self, windows: KeptWindows, quantity: WindowQuantity) -> None:
        self._windows = windows
        self._quantity = quantity
        self._used = 0

    @property
    def level(self) -> Level:
        """See Source."""
        return self._windows.level

    def take(self, count: int) -> Taken:
        """See Source: from the first windows on, as if they had been measured for it."""
        self._used += count
        taken = self._windows.taken
        missing = self._used - (len(taken.replicates) if taken else 0)
        if taken is None or (missing > 0 and taken.sound):
            taken = self._windows.take(missing)

        return self._quantity.taken(replace(taken, replicates=taken.replicates[: self._used]))
