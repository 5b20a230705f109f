"""The decode steps that the metrics of a run add up to, once all of them are judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from ..gate.result import Result
from ..gate.verdict import Judgement
from ..gate.whole_step import BAND, judge_step
from ..profile.ledger import Part, Time, ledger, parts, weights
from ..reference.step_weights import RANKS, step_name

TOKENS = (1, 8, 64)
"""Batch sizes at which the suite measures every part."""


def whole_steps(results: Sequence[Result], tolerance: Callable[[str, float], float]) -> Iterator[Result]:
    """A result for each step of which every part was judged in this run; of several tries of a metric the last.

    tolerance: the band of a metric, from its name and the band that it has by itself.
    """
    judged = {each.name: each.judgement for each in results if each.judgement.verdict.judged}
    for ranks in reversed(RANKS):
        for tokens in TOKENS:
            needed, name = parts(ranks, tokens), step_name(ranks, tokens)
            if all(part.metric in judged for part in needed):
                yield Result("decode_step", _step(name, needed, judged, tolerance(name, BAND)))


def _step(name: str, needed: Sequence[Part], judged: Mapping[str, Judgement], band: float) -> Judgement:
    names = {part.metric for part in needed}
    base, new = ({metric: Time(side(judged[metric])) for metric in names} for side in (_base, _measured))
    counts = weights(needed, base)
    used = [judged[metric] for metric, count in counts.items() if count]
    return judge_step(name, used, counts, (ledger(needed, base).seconds, ledger(needed, new).seconds), band)


def _base(judgement: Judgement) -> float:
    assert judgement.numbers.base is not None
    return judgement.numbers.base


def _measured(judgement: Judgement) -> float:
    assert judgement.numbers.measured is not None
    return judgement.numbers.measured
