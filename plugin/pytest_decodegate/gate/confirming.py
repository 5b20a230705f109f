"""When a metric is settled: noise no longer hides it, and a change was seen again.

What was seen first was chosen for being far off; fresh replicates were not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from .stats.rules import Outcome, confirmed
from .stats.together import settled
from .verdict import BY_STATISTICS, Confirmation, Judgement, Verdict

CHANGED = (Verdict.REGRESSED, Verdict.IMPROVED)
"""What needs to be confirmed."""


def is_open(judgement: Judgement, metrics: int) -> bool:
    """Whether more replicates may settle it: noise hides the answer, or chance among so many `metrics` of a run."""
    if judgement.verdict not in BY_STATISTICS:
        return False

    return not settled(_outcome(judgement), judgement.numbers.p_worse or 0.0, metrics)


def is_to_confirm(judgement: Judgement) -> bool:
    """Whether it says that a metric changed, by statistics: beside a published figure there are none."""
    return judgement.verdict in CHANGED and judgement.basis.unpublished is None


def confirm(first: Judgement, fresh: Judgement, together: Judgement) -> Judgement:
    """The judgement that stands: of all replicates `together`, as far as the `fresh` ones alone agree with the first.

    What broke a rule on the way, or turned out wrong, is said by `together` and stands as it is.
    """
    confirmation = Confirmation(
        first.verdict, first.numbers.change, fresh.verdict, fresh.numbers.change, fresh.basis.replicates
    )
    if together.verdict not in BY_STATISTICS:
        return replace(together, confirmation=confirmation)

    verdict = Verdict(confirmed(_outcome(first), _outcome(fresh), _outcome(together)))
    settlement = together.settlement if verdict is Verdict.INCONCLUSIVE else None
    return replace(together, verdict=verdict, settlement=settlement, confirmation=confirmation)


def _outcome(judgement: Judgement) -> Outcome:
    """What the statistics said; where they were not reached, nothing was shown."""
    return cast("Outcome", str(judgement.verdict)) if judgement.verdict in BY_STATISTICS else "INCONCLUSIVE"
