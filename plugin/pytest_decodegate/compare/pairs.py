"""Which baselines are compared with which, and what came of it. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..baseline.schema import Baseline
from ..gate.verdict import Judgement, Verdict
from ..profile.whole_steps import whole_steps
from .judging import Judge
from .sides import BaselineSet
from .standing import StandingDifference, Terms, findings, same_class


@dataclass(frozen=True)
class BaselinePair:
    """Two baselines compared.

    judgements: of the metrics that both have, in the order of `base`, then of the steps that they add up to. allowed:
    what the user allowed and does differ. same: metrics with one and the same recording on both sides, which shows
    nothing and is not judged.
    """

    base: Baseline
    new: Baseline
    found: tuple[StandingDifference, ...]
    judgements: tuple[Judgement, ...]
    allowed: frozenset[str]
    same: tuple[str, ...] = ()

    @cached_property
    def only_base(self) -> tuple[str, ...]:
        """Metrics that the reference has and `new` has not."""
        return tuple(name for name in self.base.metrics if name not in self.new.metrics)

    @cached_property
    def only_new(self) -> tuple[str, ...]:
        """Metrics that only `new` has."""
        return tuple(name for name in self.new.metrics if name not in self.base.metrics)


@dataclass(frozen=True, slots=True)
class Alone:
    """A baseline of a machine class that the other side has nothing of. missing_in: name of that side."""

    baseline: Baseline
    missing_in: str


@dataclass(frozen=True, slots=True)
class Compared:
    """Everything that was compared, in the order of machine classes and then as asked."""

    pairs: tuple[BaselinePair, ...]
    alone: tuple[Alone, ...]

    @property
    def status(self) -> int:
        """Exit status: 1 something regressed or is wrong, 2 something was not compared or not settled, 0 all passed."""
        verdicts = {judgement.verdict for pair in self.pairs for judgement in pair.judgements}
        if verdicts & {Verdict.REGRESSED, Verdict.WRONG_RESULT}:
            return 1

        missing = self.alone or any(pair.only_base or pair.only_new for pair in self.pairs)
        # A comparison of nothing shows nothing.
        return 0 if verdicts and not missing and all(verdict.passes for verdict in verdicts) else 2

    @property
    def allowed(self) -> frozenset[str]:
        """What the user allowed and does differ somewhere."""
        return frozenset(name for pair in self.pairs for name in pair.allowed)


def compare_groups(groups: Sequence[Sequence[BaselineSet]], terms: Terms) -> Compared:
    """Compare the first side of each group with every other one, by machine class."""
    results = [result for group in groups for side in group[1:] for result in _match(group[0], side, terms)]
    results += [Alone(baseline, "the rest") for group in groups if len(group) == 1 for baseline in group[0].baselines]
    pairs = [result for result in results if isinstance(result, BaselinePair)]
    classes = list(dict.fromkeys(pair.base.machine_class for pair in pairs))
    return Compared(
        tuple(sorted(pairs, key=lambda pair: classes.index(pair.base.machine_class))),
        tuple(result for result in results if isinstance(result, Alone)),
    )


def compare_baselines(base: Baseline, new: Baseline, terms: Terms) -> BaselinePair:
    """Judge every metric that both have, and whole steps; what differs, undeclared and not allowed, confounds all."""
    found = tuple(findings(base, new, terms))
    judge = Judge(base, new, found, terms)
    judgements = tuple(judge.judgements())
    return BaselinePair(base, new, found, (*judgements, *whole_steps(judgements)), judge.allowed, judge.same)


def _match(reference: BaselineSet, side: BaselineSet, terms: Terms) -> Iterator[BaselinePair | Alone]:
    """Pair baselines of one machine class; two single files are meant for each other whatever their class is."""
    if len(reference.baselines) == len(side.baselines) == 1:
        yield compare_baselines(reference.baselines[0], side.baselines[0], terms)
        return

    left = list(reference.baselines)
    for new in side.baselines:
        base = next((baseline for baseline in left if same_class(baseline, new)), None)
        if base is None:
            yield Alone(new, reference.name)
        else:
            left.remove(base)
            yield compare_baselines(base, new, terms)

    yield from (Alone(base, side.name) for base in left)
