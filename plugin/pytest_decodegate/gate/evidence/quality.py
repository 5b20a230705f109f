"""Does a server still answer as its baseline does? Greedy answers with logprobs, judged by how a server varies itself.

The rule. Servers round differently in different batches, so passes over the same prompts differ even when nothing
changed, and the passes of a baseline show by how much. New passes are wrong if one of these holds:
1. the server calls itself batch-invariant, and a token differs at all;
2. some answer turns where the baseline is sure: the new token is CLEAR_NATS less likely to it than its own, and twice
   as much as at any turn among its own passes;
3. prompts agree less with the baseline than the baseline agrees with itself: in so many of them that chance does so
   in fewer than ALPHA of all runs (sign test: prompts are the units), and on average by more than the band less than
   the worst of the baseline's own passes (passes of one batch vary together);
4. logprobs of tokens in the same context drift by DRIFT_NATS more than they drift among the baseline's own passes.
Answers are compared up to their first divergence, the diverging token included: after it the contexts differ.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from statistics import fmean
from typing import TypeAlias

from ...metric import Json, Replicate
from ..text.quantity import format_percent

Position: TypeAlias = Mapping[str, float]
"""Logprobs of the likeliest tokens in nats, the chosen token first; some passes keep only that one."""

GreedyAnswer: TypeAlias = Sequence[Position]
Pass: TypeAlias = Sequence[GreedyAnswer]
"""The answers to all prompts, in the order of the prompts."""

CLEAR_NATS = 1.0
"""bf16 logits between 16 and 32 have steps of 0.125: several roundings move a logprob by less than this."""

DRIFT_NATS = 0.1
"""Mean drift of single tokens; a rounding of bf16 logits moves one by up to 0.06."""

ALPHA = 0.01
"""Chance that a run calls answers wrong by rule 3 although nothing changed."""


@dataclass(frozen=True, slots=True)
class AnswerPair:
    """Two answers to one prompt. first: index of the first diverging token, None if there is none.

    agreement: share of the tokens before it. drift: mean difference of logprobs in nats, None without a common token.
    margin: how much less likely, in nats and at least, the second answer's diverging token was to the first one;
    0 without a divergence, None where that is not known.
    """

    first: int | None
    agreement: float
    drift: float | None
    margin: float | None


ByPrompt: TypeAlias = Sequence[Sequence[AnswerPair]]
"""For each prompt the pairs of answers to it, each of two passes."""


@dataclass(frozen=True, slots=True)
class AnswersCompared:
    """What came out: `wrong` says how the answers are wrong, None if they are not; `note` has the numbers."""

    wrong: str | None
    note: str


def compared(answer: GreedyAnswer, other: GreedyAnswer) -> AnswerPair:
    """Lay two answers to one prompt side by side; an answer that ends early diverges where it ends."""
    common = min(len(answer), len(other))
    length = max(len(answer), len(other))
    turns = (index for index in range(common) if _chosen(answer[index]) != _chosen(other[index]))
    first = next(turns, common if length > common else None)
    shared = slice(None if first is None else first + 1)
    same = zip(answer[shared], other[shared])  # noqa: B905 - one may end early
    drifts = [abs(left[token] - right[token]) for left, right in same for token in left.keys() & right.keys()]
    return AnswerPair(
        first=first,
        agreement=1.0 if first is None else first / length,
        drift=fmean(drifts) if drifts else None,
        margin=0.0 if first is None else _margin(answer[first], other[first]) if first < common else None,
    )


def compare(base: Sequence[Pass], new: Sequence[Pass], *, tolerance: float, exact: bool) -> AnswersCompared:
    """Judge `new` passes by the rule above. tolerance: the band of rule 3, a fraction. exact: whether rule 1 holds."""
    own = [[compared(old[p], other[p]) for old, other in combinations(base, 2)] for p in range(len(base[0]))]
    now = [[compared(old[p], other[p]) for old, other in product(base, new)] for p in range(len(base[0]))]
    reasons = [
        *(_differing(now) if exact else ()),
        *_clear(own, now),
        *_disagreeing(own, now, tolerance),
        *_drifting(own, now),
    ]
    return AnswersCompared("; ".join(reasons) or None, _note(own, now))


def to_json(answers: Pass) -> list[Json]:
    """A pass for a baseline file: one string per token, which keeps a file of thousands of them short."""
    return [[json.dumps(position) for position in answer] for answer in answers]


def passes(replicates: Iterable[Replicate]) -> list[Pass]:
    """The passes that replicates hold in their facts, as `to_json` wrote them."""
    found = (replicate.facts.get("answers") for replicate in replicates)
    return [_pass(answers) for answers in found if isinstance(answers, list)]


def _pass(answers: list[Json]) -> Pass:
    return [[json.loads(str(position)) for position in answer] for answer in answers if isinstance(answer, list)]


def _chosen(position: Position) -> str:
    return next(iter(position))


def _margin(position: Position, other: Position) -> float | None:
    """How much less likely than its own choice the token chosen by `other` was at `position`, in nats, at least."""
    if len(position) < 2:
        return None

    return position[_chosen(position)] - position.get(_chosen(other), min(position.values()))


def _differing(now: ByPrompt) -> Iterator[str]:
    if turns := _turns(now):
        yield f"the server calls itself batch-invariant, but tokens differ from the baseline's: {turns}"


def _clear(own: ByPrompt, now: ByPrompt) -> Iterator[str]:
    usual = max((pair.margin for pairs in own for pair in pairs if pair.margin is not None), default=0.0)
    limit = max(CLEAR_NATS, 2 * usual)
    for number, pairs in enumerate(now, start=1):
        clear = [pair for pair in pairs if pair.margin is not None and pair.margin > limit]
        for pair in clear[:1]:
            yield (
                f"prompt {number} turns at token {(pair.first or 0) + 1}, where the baseline was sure: the token is "
                f"{pair.margin:.2g} nats less likely to it than its own (limit {limit:.2g})"
            )


def _disagreeing(own: ByPrompt, now: ByPrompt, tolerance: float) -> Iterator[str]:
    if len(own[0]) == 0:  # one pass alone does not show how far a server agrees with itself
        return

    losses = [_agreement(before) - _agreement(after) for before, after in zip(own, now, strict=True)]
    worse, better = (sum(sign * loss > 0 for loss in losses) for sign in (1, -1))
    chance = sum(math.comb(worse + better, k) for k in range(worse, worse + better + 1)) / 2 ** (worse + better)
    if chance < ALPHA and fmean(map(_agreement, now)) < _worst_pass(own) - tolerance:
        yield (
            f"{worse} of {len(losses)} prompts agree less with the baseline than it agrees with itself "
            f"(chance {chance:.1g}): {_turns(now)}"
        )


def _drifting(own: ByPrompt, now: ByPrompt) -> Iterator[str]:
    before, after = _drift(own), _drift(now)
    if after > before + DRIFT_NATS:
        yield f"logprobs drift by {after:.2g} nats from the baseline's, {before:.2g} among its own passes"


def _agreement(pairs: Sequence[AnswerPair]) -> float:
    return fmean(pair.agreement for pair in pairs)


def _worst_pass(own: ByPrompt) -> float:
    """Agreement with the others of the pass that agrees least with them, over all prompts."""
    count = (1 + math.isqrt(1 + 8 * len(own[0]))) // 2
    members = list(combinations(range(count), 2))
    return min(
        fmean(pairs[at].agreement for pairs in own for at, pair in enumerate(members) if number in pair)
        for number in range(count)
    )


def _drift(prompts: ByPrompt) -> float:
    drifts = [pair.drift for pairs in prompts for pair in pairs if pair.drift is not None]
    return fmean(drifts) if drifts else 0.0


def _turns(prompts: ByPrompt) -> str:
    """Where answers first diverge, for the first few prompts that do; empty if none does."""
    firsts = [min((pair.first for pair in pairs if pair.first is not None), default=None) for pairs in prompts]
    turns = [f"prompt {p} at token {first + 1}" for p, first in enumerate(firsts, start=1) if first is not None]
    more = f" and {len(turns) - 3} more" if len(turns) > 3 else ""
    return ", ".join(turns[:3]) + more


def _note(own: ByPrompt, now: ByPrompt) -> str:
    itself = fmean(map(_agreement, own)) if own[0] else 1.0
    shares = [format_percent(share, signed=False) for share in (fmean(map(_agreement, now)), itself)]
    turns = _turns(now)
    return (
        f"{shares[0]} of the tokens agree with the baseline, {shares[1]} among its own passes; logprob drift "
        f"{_drift(now):.2g} and {_drift(own):.2g} nats; first divergence: {turns or 'none'}"
    )
