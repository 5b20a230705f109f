"""What the metrics of a run say together, as results of the run itself: the kernels' common shift, and whole steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..gate import shift
from ..gate.decision import THE_RUN
from ..gate.joint import BandOf
from ..gate.result import Result, Skipped
from ..profile.whole_steps import whole_steps


def run_level(results: Sequence[Result], band_of: BandOf) -> Iterator[Result | Skipped]:
    """Results that no test measures; where there are too few kernels, why nothing is known of their shift.

    results: of all tests; of several tries of a metric the last counts.
    """
    gating = {result.name: result for result in results if not (result.advisory or result.only_recorded)}
    last = list(gating.values())
    kernels = [result.judgement for result in last if shift.is_kernel(result.judgement)]
    if kernels and (why := shift.too_few(kernels)):
        yield Skipped(shift.NAME, why)
    elif kernels:
        yield Result(THE_RUN, shift.judge_shift(kernels, band_of))

    yield from (Result(THE_RUN, step) for step in whole_steps((each.judgement for each in last), band_of))
