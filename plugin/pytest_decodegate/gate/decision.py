"""May it go in? One answer from the verdicts of all metrics, with its reasons by cause. Pure functions.

GO: every gating metric is shown to stay inside its band. NO-GO: the candidate is wrong, slower or fails. NOT PROVEN:
anything else, such as noise, a broken measurement, or a base that fails. Several metrics are weighed together by Holm:
one of thirty will look slower by chance. Passing needs no such care, because all must pass.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import itemgetter

from ..cause import Cause, Finding
from .result import ERROR, Failed, Result
from .stats.together import uphold
from .text.quantity import format_percent
from .verdict import Judgement, Verdict

MOST_NAMES = 5
MOST_REASONS = 3


class Answer(StrEnum):
    """The answer, and the exit status that stands for it."""

    GO = "GO"
    NO_GO = "NO-GO"
    NOT_PROVEN = "NOT PROVEN"

    @property
    def status(self) -> int:
        """0, 1 and 2."""
        return list(Answer).index(self)


@dataclass(frozen=True, slots=True)
class Ground:
    """One ground for the answer, and the metrics that it speaks for. blocks: whether it says no, or only not yet."""

    blocks: bool
    text: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{named(self.names)}: {self.text}"


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer with its grounds, those that block first."""

    answer: Answer
    grounds: tuple[Ground, ...]


def named(names: Sequence[str]) -> str:
    """The first of `names`, and how many more there are."""
    more = len(names) - MOST_NAMES
    return f"{', '.join(names[:MOST_NAMES])}{f' and {more} more' if more > 0 else ''}"


def decide_all(outcomes: Sequence[Result | Failed], unfinished: str | None = None) -> Decision:
    """The answer to a run; unfinished: why it did not come to its end, None if it did."""
    grounds = [*_grounds(outcomes)]
    if unfinished:
        grounds.append(Ground(False, unfinished, ("the run",)))
    passed = any(isinstance(each, Result) and each.judgement.verdict.passes and not each.advisory for each in outcomes)
    if not (passed or grounds):
        grounds.append(Ground(False, "no gating metric was measured", ("the run",)))

    grounds.sort(key=lambda ground: not ground.blocks)
    if not grounds:
        return Decision(Answer.GO, ())

    return Decision(Answer.NO_GO if grounds[0].blocks else Answer.NOT_PROVEN, tuple(grounds))


def _grounds(outcomes: Sequence[Result | Failed]) -> Iterator[Ground]:
    """What does not pass, grouped by what is behind it: ten red metrics with one cause are one ground."""
    slower = _slower([each for each in outcomes if isinstance(each, Result)])
    groups: dict[tuple[bool, Hashable], list[Result | Failed]] = {}
    for outcome in outcomes:
        if not _is_fine(outcome):
            groups.setdefault((_blocks(outcome, slower), _key(outcome)), []).append(outcome)

    for (blocks, _), group in groups.items():
        yield Ground(blocks, _text(group, blocks), tuple(each.name for each in group))


def _is_fine(outcome: Result | Failed) -> bool:
    """Whether it passed, or is advisory: shown, and blocking nothing but by wrong numbers."""
    if isinstance(outcome, Failed):
        return outcome.advisory

    verdict = outcome.judgement.verdict
    return verdict.passes or (outcome.advisory and verdict is not Verdict.WRONG_RESULT)


def _slower(results: Sequence[Result]) -> set[str]:
    """Names of gating metrics that are slower when all are weighed together."""
    numbers = [(each.name, each.judgement.numbers.p_worse) for each in results if not each.advisory]
    weighed = [(name, p) for name, p in numbers if p is not None]
    upheld = uphold(p for _, p in weighed)
    return {name for (name, _), slower in zip(weighed, upheld, strict=True) if slower}


def _blocks(outcome: Result | Failed, slower: set[str]) -> bool:
    if isinstance(outcome, Failed):
        # Beside the other stack there is less memory than the candidate would have alone.
        return outcome.side == "candidate" and outcome.error.cause is not Cause.OUT_OF_MEMORY

    verdict = outcome.judgement.verdict
    return verdict is Verdict.WRONG_RESULT or (verdict is Verdict.REGRESSED and outcome.name in slower)


def _key(outcome: Result | Failed) -> Hashable:
    """Equal for outcomes of one kind that have the same causes.

    What slows kernels down is not what slows collectives down, and neither may hide behind the other's names.
    """
    if isinstance(outcome, Failed):
        return ERROR, outcome.error.key

    judgement = outcome.judgement
    if judgement.verdict is Verdict.INCONCLUSIVE:
        return judgement.verdict
    if judgement.verdict is Verdict.REGRESSED:
        why = _why(judgement)
        return judgement.verdict, judgement.metric.kind, why and why.key

    return judgement.verdict, tuple(dict.fromkeys(reason.key for reason in judgement.reasons))


def _text(group: Sequence[Result | Failed], blocks: bool) -> str:
    first = group[0]
    if isinstance(first, Failed):
        return f"{ERROR}: {first.error.brief}{_of_memory(first.error)}"

    judgements = [each.judgement for each in group if isinstance(each, Result)]
    if judgements[0].verdict is Verdict.REGRESSED:
        return _regressed(judgements, blocks)
    if judgements[0].verdict is Verdict.INCONCLUSIVE:
        return (
            f"noise hides the answer ({_range(judgements)}); more pairs (--perf-max-replicates) or a wider band "
            "(perf_tolerance) would settle it"
        )

    return f"{judgements[0].verdict}: {_reasons(judgements[0])}{_hint(judgements[0])}"


def _of_memory(error: Finding) -> str:
    if error.cause is not Cause.OUT_OF_MEMORY:
        return ""

    return "; beside the other stack there is less memory: --perf-replicates 3 keeps fewer gangs alive"


def _reasons(judgement: Judgement) -> str:
    reasons = [reason.brief for reason in judgement.reasons[:MOST_REASONS]] or ["no reason was given"]
    more = len(judgement.reasons) - MOST_REASONS
    return f"{'; '.join(reasons)}{f' and {more} more' if more > 0 else ''}"


def _hint(judgement: Judgement) -> str:
    uncaused = any(reason.cause is Cause.UNCAUSED for reason in judgement.reasons)
    declarable = judgement.verdict is Verdict.CONFOUNDED and not uncaused
    return "; if that is part of the change, declare it with --perf-change" if declarable else ""


def _regressed(group: Sequence[Judgement], blocks: bool) -> str:
    chance = "" if blocks else "; weighed with all other metrics it may be chance, so measure it again"
    why = _why(group[0])
    return f"slower by more than the band ({_range(group)}){f'; {why}' if why else ''}{chance}"


def _why(judgement: Judgement) -> Finding | None:
    """The first note that may say why the metric is slower; others say how it was measured."""
    return next((note for note in judgement.notes if note.cause.explains_times), None)


def _range(group: Sequence[Judgement]) -> str:
    known = ((each.numbers.change, each.metric.tolerance) for each in group)
    changes = sorted(((change, band) for change, band in known if change is not None), key=itemgetter(0))
    ends = dict.fromkeys(format_percent(change, beside=band) for change, band in changes[:1] + changes[-1:])
    return " to ".join(ends) or "no change known"
