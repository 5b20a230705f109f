"""The decode steps that judged metrics add up to, and what explains it where TPOT has changed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from ..gate.joint import BandOf
from ..gate.verdict import Judgement
from ..gate.whole_step import base_level, judge_step, measured_level
from .attribution import Attribution, attribute, of_ledger
from .ledger import Ledger, Part, Time, ledger, parts, weights

RANKS: Final = (8, 4, 2, 1)

TOKENS: Final = (1, 8, 64)
"""Batch sizes at which the suite measures every part."""

LEAST_KNOWN: Final = 0.5
"""Of the predicted step: an attribution from less would explain the change by what happened to be measured."""

_TPOT: Final = re.compile(r"tpot\[c=(\d+)\]")


def step_name(ranks: int, tokens: int) -> str:
    """The metric of a step of `tokens` tokens on `ranks` ranks."""
    return f"decode_step[tp={ranks},m={tokens}]"


def whole_steps(judgements: Iterable[Judgement], band_of: BandOf | None = None) -> Iterator[Judgement]:
    """The judgement of each step of which every part was judged; of one name the last judgement counts."""
    judged = {each.name: each for each in judgements if each.verdict.judged}
    for ranks in reversed(RANKS):
        for tokens in TOKENS:
            needed, name = parts(ranks, tokens), step_name(ranks, tokens)
            if all(part.metric in judged for part in needed):
                yield step_of(name, needed, judged, band_of)


def step_of(
    name: str, needed: Sequence[Part], judged: Mapping[str, Judgement], band_of: BandOf | None = None
) -> Judgement:
    """The judgement of the step `name` that is made of `needed`, all of which were judged."""
    base, new = _ledgers(needed, judged)
    counts = weights(base)
    used = [judged[metric] for metric, count in counts.items() if count]
    return judge_step(name, used, counts, (base.seconds, new.seconds), band_of)


def attributed(judgements: Sequence[Judgement]) -> Iterator[tuple[str, Attribution]]:
    """What explains each TPOT that left its band, from the metrics of its step that were judged beside it.

    Nothing where they make up less than LEAST_KNOWN of it.
    """
    judged = {each.name: each for each in judgements if each.verdict.judged}
    for name, judgement in judged.items():
        change, match = judgement.numbers.change, _TPOT.fullmatch(name)
        if match and change is not None and abs(change) > judgement.metric.tolerance:
            known = ([part for part in parts(ranks, int(match[1])) if part.metric in judged] for ranks in RANKS)
            sides = [_ledgers(needed, judged) for needed in known]
            base, new = max(sides, key=lambda pair: pair[0].seconds)
            if base.seconds > LEAST_KNOWN * base_level(judgement):
                change_s = measured_level(judgement) - base_level(judgement)
                yield name, attribute(change_s, of_ledger(base), of_ledger(new))


def _ledgers(needed: Sequence[Part], judged: Mapping[str, Judgement]) -> tuple[Ledger, Ledger]:
    """The step of the base, and of what was measured."""
    base, new = (
        ledger(needed, {part.metric: Time(side(judged[part.metric])) for part in needed})
        for side in (base_level, measured_level)
    )
    return base, new
