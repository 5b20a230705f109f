"""Which part of the decode step each metric takes, by what is stored of all of them."""

from __future__ import annotations

from collections.abc import Mapping

from ..gate.materiality import StepWeight
from .ledger import Time, ledger, parts, weights
from .whole_steps import RANKS, step_name

TOKENS = (1, 2, 4, 8, 16, 32, 64, 128)


def step_weights(times: Mapping[str, Time], most_ranks: int) -> dict[str, StepWeight]:
    """By metric, its part of the step; of a batch size whose step is not whole nothing is known.

    The step is that on as many ranks as are stored, `most_ranks` at most: there a kernel is a smaller part of it.
    """
    found: dict[str, StepWeight] = {}
    for tokens in TOKENS:
        for ranks in RANKS:
            step = ledger(parts(ranks, tokens), times)
            if ranks <= most_ranks and (counts := weights(step)):
                name, seconds = step_name(ranks, tokens), step.seconds
                for metric, count in counts.items():
                    found.setdefault(metric, StepWeight(name, count * times[metric].seconds / seconds))

    return found
