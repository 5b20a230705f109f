"""May it go in? One answer from the verdicts of all metrics, with its reasons by cause. Pure functions.

GO: every gating metric is shown to stay inside its band. NO-GO: what is under test is wrong or slower, or the candidate
of two stacks fails. NOT PROVEN: anything else, such as noise, a broken measurement, or a base that fails. RECORDED:
nothing was compared, and what was measured is stored. Several metrics are weighed together by Holm: one of thirty will
look slower by chance. Passing needs no such care, because all must pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter, itemgetter
from statistics import median_low

from ..cause import Cause, Finding
from . import shift
from .result import ERROR, Failed, Result
from .stats.rules import surely_found
from .stats.together import uphold
from .text.quantity import format_percent
from .verdict import BY_STATISTICS, Judgement, Verdict

MOST_NAMES = 5
MOST_REASONS = 3

THE_RUN = "the run"
"""The name of a ground that is about no metric."""

RECORDED = "RECORDED"
"""In place of a verdict where a metric was stored and not compared, and the answer of a run that did nothing else."""

TOGETHER = (shift.NAME, "decode_step")
"""What the metrics of a run say together, by its name without a size: no test measures it."""

ADVISORY = "advisory"
"""In place of a verdict that decides nothing."""

BY_WEIGHT = (
    *(Verdict.WRONG_RESULT, Verdict.REGRESSED, ERROR, Verdict.INCONCLUSIVE, Verdict.INVALID, Verdict.CONFOUNDED),
    *(Verdict.NO_BASELINE, Verdict.IMPROVED, Verdict.PASS, RECORDED, ADVISORY),
)
"""What metrics are counted as, in the order in which a reader wants to know."""


class Answer(StrEnum):
    """The answer, and the exit status that stands for it."""

    GO = "GO"
    NO_GO = "NO-GO"
    NOT_PROVEN = "NOT PROVEN"
    RECORDED = RECORDED

    @property
    def status(self) -> int:
        """0, 1 and 2; 0 too for RECORDED."""
        return 0 if self is Answer.RECORDED else list(Answer).index(self)


@dataclass(frozen=True, slots=True)
class Ground:
    """One ground for the answer, and the metrics that it speaks for. blocks: whether it says no, or only not yet."""

    blocks: bool
    text: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{named(self.names)}: {self.text}"


@dataclass(frozen=True, slots=True)
class Resolution:
    """The slowdowns of one kind of metric that a run would have found almost surely, as fractions.

    kind: of the metrics, or the name of what they say together, one of TOGETHER. typical: of the middle metric. worst:
    of `metric`, where the slowdown had to be largest.
    """

    kind: str
    typical: float
    worst: float
    metric: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to a run with its grounds, those that block first.

    counts: metrics by verdict, in the order of BY_WEIGHT. resolutions: what the run could have seen, by kind.
    seconds: how long it took; None if it did not come to its end.
    """

    answer: Answer
    grounds: tuple[Ground, ...]
    counts: Mapping[str, int] = field(default_factory=dict)
    resolutions: tuple[Resolution, ...] = ()
    seconds: float | None = None


def named(names: Sequence[str]) -> str:
    """The first of `names`, and how many more there are."""
    more = len(names) - MOST_NAMES
    return f"{', '.join(names[:MOST_NAMES])}{f' and {more} more' if more > 0 else ''}"


def decide_all(
    outcomes: Sequence[Result | Failed], unfinished: str | None = None, seconds: float | None = None
) -> Decision:
    """The answer to a run; unfinished: why it did not come to its end, None if it did. seconds: how long it took."""
    counted = Counter(map(counted_as, outcomes))
    grounds = [*_grounds(outcomes)]
    if unfinished:
        grounds.append(Ground(False, unfinished, (THE_RUN,)))
    passed = counted[Verdict.PASS] + counted[Verdict.IMPROVED]
    if not (passed or counted[RECORDED] or grounds):
        grounds.append(Ground(False, "no gating metric was measured", (THE_RUN,)))

    grounds.sort(key=lambda ground: not ground.blocks)
    answer = Answer.GO if passed else Answer.RECORDED
    if grounds:
        answer = Answer.NO_GO if grounds[0].blocks else Answer.NOT_PROVEN

    counts = {name: counted[name] for name in map(str, BY_WEIGHT) if counted[name]}
    return Decision(answer, tuple(grounds), counts, tuple(_resolutions(outcomes)), seconds)


def counted_as(outcome: Result | Failed) -> str:
    """The verdict of a metric, or what stands in its place: one of BY_WEIGHT."""
    if isinstance(outcome, Failed):
        return ADVISORY if outcome.advisory else ERROR
    if outcome.only_recorded:
        return RECORDED

    verdict = outcome.judgement.verdict
    return ADVISORY if outcome.advisory and verdict is not Verdict.WRONG_RESULT else str(verdict)


def _resolutions(outcomes: Sequence[Result | Failed]) -> Iterator[Resolution]:
    """For each kind of metric that was judged by its times, in the order in which they were measured."""
    found: dict[str, list[Resolution]] = {}
    for outcome in outcomes:
        if isinstance(outcome, Result) and counted_as(outcome) in BY_STATISTICS:
            judgement = outcome.judgement
            lo, hi, kind = judgement.numbers.lo, judgement.numbers.hi, _family(judgement)
            if lo is not None and hi is not None:
                smallest = surely_found(judgement.metric.tolerance, lo, hi)
                found.setdefault(kind, []).append(Resolution(kind, smallest, smallest, outcome.name))

    for kind, each in found.items():
        worst = max(each, key=attrgetter("worst"))
        yield Resolution(kind, median_low([resolution.typical for resolution in each]), worst.worst, worst.metric)


def is_run_level(outcome: Result | Failed) -> bool:
    """Whether no test measures it: it is what the metrics of the run say together."""
    return is_together(outcome.name)


def is_together(name: str) -> bool:
    """Whether `name` is of a metric that several others make up."""
    return name.partition("[")[0] in TOGETHER


def _family(judgement: Judgement) -> str:
    name = judgement.name.partition("[")[0]
    return name if name in TOGETHER else judgement.metric.kind


def _grounds(outcomes: Sequence[Result | Failed]) -> Iterator[Ground]:
    """What does not pass, grouped by what is behind it: ten red metrics with one cause are one ground."""
    slower = _slower([each for each in outcomes if isinstance(each, Result)])
    groups: dict[tuple[bool, Hashable], list[Result | Failed]] = {}
    for outcome in outcomes:
        if not is_fine(outcome):
            groups.setdefault((_blocks(outcome, slower), _key(outcome)), []).append(outcome)

    for (blocks, _), group in groups.items():
        yield Ground(blocks, _text(group, blocks), tuple(each.name for each in group))


def is_fine(outcome: Result | Failed) -> bool:
    """Whether it passed, was stored, or is advisory: shown, and blocking nothing but by wrong numbers."""
    return counted_as(outcome) in (Verdict.PASS, Verdict.IMPROVED, RECORDED, ADVISORY)


def _slower(results: Sequence[Result]) -> set[str]:
    """Names of gating metrics that are slower when all are weighed together."""
    gating = [each for each in results if counted_as(each) in BY_STATISTICS]
    numbers = [(each.name, each.judgement.numbers.p_worse) for each in gating]
    weighed = [(name, p) for name, p in numbers if p is not None]
    upheld = uphold(p for _, p in weighed)
    return {name for (name, _), slower in zip(weighed, upheld, strict=True) if slower}


def _blocks(outcome: Result | Failed, slower: set[str]) -> bool:
    if isinstance(outcome, Failed):
        # Beside the other stack there is less memory than the candidate would have alone.
        return outcome.side == "candidate" and outcome.error.cause is not Cause.OUT_OF_MEMORY

    verdict = outcome.judgement.verdict
    return verdict is Verdict.WRONG_RESULT or (verdict is Verdict.REGRESSED and outcome.name in slower)


def with_one_cause(results: Sequence[Result], result: Result) -> Result | None:
    """The first of `results` that was not judged for the very reasons of `result`; None if there is none."""
    if result.judgement.verdict.judged:
        return None

    alike = (each for each in results if each.name != result.name and not each.passes)
    return next((each for each in alike if _key(each) == _key(result)), None)


def _key(outcome: Result | Failed) -> Hashable:
    """Equal for outcomes of one kind that have the same causes.

    What slows kernels down is not what slows collectives down, and neither may hide behind the other's names.
    """
    if isinstance(outcome, Failed):
        return ERROR, outcome.error.key

    judgement = outcome.judgement
    if judgement.verdict is Verdict.INCONCLUSIVE and not judgement.reasons:
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
    if judgements[0].verdict is Verdict.INCONCLUSIVE and not judgements[0].reasons:
        return (
            f"noise hides the answer ({_range(judgements)}); {_more(judgements[0])} or a wider band (perf_tolerance) "
            "would settle it"
        )

    if judgements[0].verdict is Verdict.NO_BASELINE:
        return f"{Verdict.NO_BASELINE}: nothing is stored to compare with"

    return f"{judgements[0].verdict}: {_reasons(judgements[0])}{_hint(judgements[0])}"


def _more(judgement: Judgement) -> str:
    """What may be had more of, and by which option: that which ended it."""
    more = "more pairs" if judgement.basis.reference == "stack" else "more replicates"
    is_cut = judgement.settlement is not None and judgement.settlement.seconds is not None
    return f"{more} ({'--perf-budget' if is_cut else '--perf-max-replicates'})"


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
