"""What to do next about a metric of two stored baselines."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..gate.stats.rules import MOST_SESSIONS, Comparison, Outcome, sessions_that_settle
from ..gate.text.advice import declaration
from ..gate.text.quantity import format_band, rounded_up_band
from ..machine.clocks import FIELD as CLOCK
from ..machine.provenance import Difference
from .standing import without_numbers


def refused(fields: Sequence[Difference]) -> tuple[str, ...]:
    """The two sides measured different things."""
    names = [one.field for one in fields if one.field != "unit"]
    if len(names) < len(fields):
        return ("values of different units are never compared: record the reference again",)

    return (f"compare like with like, or say that it does not matter: {' '.join(f'--allow {name}' for name in names)}",)


def confounded(confounders: Sequence[Difference]) -> tuple[str, ...]:
    """Something differs that the user has not spoken of."""
    lines = []
    if names := dict.fromkeys(declaration(one) for one in confounders if one.declarable):
        lines.append(f"if that is the change under test, declare it: --change {','.join(names)}")
    if fixed := dict.fromkeys(without_numbers(one.field) for one in confounders if not one.declarable):
        lines.append(f"this cannot be the change; to compare all the same: {' '.join(f'--allow {n}' for n in fixed)}")

    return tuple(lines)


def other_clocks() -> tuple[str, ...]:
    """The GPUs of the two sides ran at different clocks."""
    return (f"record again with the clocks held where they were (`nvidia-smi -lgc`), or say --allow {CLOCK}",)


def compared(outcome: Outcome, comparison: Comparison, tolerance: float) -> tuple[str, ...]:
    """What would settle an open comparison; the other outcomes speak for themselves."""
    if outcome == "REGRESSED":
        return ("undo the changes one at a time to find the one that costs; do not roll out until then",)
    if outcome != "INCONCLUSIVE":
        return ()

    band = format_band(rounded_up_band(math.expm1(comparison.hi)))
    wanted = sessions_that_settle(comparison, tolerance)
    more = (
        f"not even {MOST_SESSIONS} sessions on each side would have settled it"
        if wanted is None
        else f"{wanted} sessions on each side would have settled it: record more, hours apart"
    )
    return (more, f"a band of {band} would have passed, if you accept that loss")
