"""How long a metric is measured against a stored baseline: looks, the run's time for open ones, and confirmation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored import MACHINE, MOE, STACK, baseline, stored

from pytest_decodegate.baseline.selection import contrast
from pytest_decodegate.cause import Cause, Finding
from pytest_decodegate.gate.confirming import confirm, is_open, is_to_confirm
from pytest_decodegate.gate.text.explain import explain
from pytest_decodegate.gate.verdict import Judgement, Verdict, judge
from pytest_decodegate.machine.provenance import Provenance
from pytest_decodegate.measure.source import Taken
from pytest_decodegate.metric import Level, Metric, Replicate
from pytest_decodegate.reference.gang_waves import GangWaves
from pytest_decodegate.reference.settling import Settling, SettlingRules, TimeBudget

BASE = baseline(
    stored(MOE, 40e-6, sessions=3),
    *(stored(Metric(f"gemm[m={n}]", "s", "kernel", 0.02, {}), 20e-6, sessions=3) for n in range(6)),
)
NOBODY: Any = SimpleNamespace(tick=lambda text: None, say=lambda text: None)
SAME = Provenance(MACHINE, STACK, {})
QUIET = (1.0, 1.001, 0.999, 1.0005, 0.9995)
NOISY = (1.0, 1.04, 0.96, 1.05, 0.97)


def replicate(value: float) -> Replicate:
    return Replicate((value, value * 1.0001, value * 0.9999))


@dataclass
class Scripted:
    """A Source of these factors of 40 us, in turn; `seconds` pass on its clock for each. broken: from the k-th take."""

    factors: Sequence[float]
    seconds: float = 1.0
    broken: int = 99
    now: float = 0.0
    takes: list[int] = field(default_factory=list)
    level: Level = "gang"

    def clock(self) -> float:
        return self.now

    def take(self, count: int) -> Taken:
        self.takes.append(count)
        self.now += count * self.seconds
        values = [40e-6 * self.factors[n % len(self.factors)] for n in range(sum(self.takes))]
        rules = (Finding("throttled", Cause.THROTTLING),) if len(self.takes) >= self.broken else ()
        return Taken("gang", tuple(map(replicate, values)), dict(MOE.contract), broken=rules)


def look(taken: Taken) -> Judgement:
    selection = contrast(BASE, SAME, frozenset(), MOE.name)
    return judge(taken.measurement(MOE), selection, invalid=taken.broken, wrong=taken.wrong, looks=2)


def settled(source: Scripted, seconds: float = 1000.0, metrics: int = 1, fresh: int = 5) -> tuple[Judgement, Taken]:
    rules = SettlingRules((5, 20), fresh, metrics, TimeBudget(seconds, source.clock))
    return Settling(source, look, rules, NOBODY).settle()


def test_an_unchanged_metric_takes_one_look_and_needs_no_confirmation() -> None:
    source = Scripted(QUIET)
    judgement, _ = settled(source)
    assert (judgement.verdict, judgement.confirmation, source.takes) == (Verdict.PASS, None, [5])


@pytest.mark.parametrize(("factor", "verdict"), [(1.06, Verdict.REGRESSED), (0.94, Verdict.IMPROVED)])
def test_a_change_stands_when_fresh_replicates_repeat_it(factor: float, verdict: Verdict) -> None:
    source = Scripted([factor * quiet for quiet in QUIET])
    judgement, taken = settled(source)
    assert judgement.verdict is verdict
    assert judgement.confirmation is not None
    assert judgement.confirmation.repeats
    assert (source.takes, judgement.basis.replicates, len(taken.replicates)) == ([5, 5], 10, 10)
    assert "confirmed by 5 fresh replicates (" in explain(judgement)


def test_a_lucky_first_regressed_that_fresh_gangs_do_not_repeat_does_not_stand() -> None:
    source = Scripted([1.06 * quiet for quiet in QUIET] + list(QUIET))
    judgement, _ = settled(source)
    assert judgement.verdict in (Verdict.PASS, Verdict.INCONCLUSIVE)
    assert judgement.confirmation is not None
    assert (judgement.confirmation.first, judgement.confirmation.fresh) == (Verdict.REGRESSED, Verdict.PASS)
    assert "REGRESSED at first (+6.0 %), which 5 fresh replicates do not repeat: PASS (" in explain(judgement)


def test_a_rule_that_breaks_while_confirming_is_said_and_nothing_else() -> None:
    judgement, _ = settled(Scripted([1.06 * quiet for quiet in QUIET], broken=2))
    assert judgement.verdict is Verdict.INVALID
    assert judgement.confirmation is not None


def test_recording_confirms_nothing() -> None:
    source = Scripted([1.06 * quiet for quiet in QUIET])
    judgement, _ = settled(source, fresh=0)
    assert (judgement.verdict, source.takes) == (Verdict.REGRESSED, [5])


def test_an_open_metric_goes_on_to_the_cap() -> None:
    source = Scripted(NOISY)
    _, taken = settled(source)
    assert source.takes[:2] == [5, 15]
    assert len(taken.replicates) >= 20


@pytest.mark.parametrize(("seconds", "more"), [(7.0, 7), (14.9, 14), (15.0, 15), (100.0, 15)])
def test_it_goes_on_for_as_many_replicates_as_the_runs_time_allows(seconds: float, more: int) -> None:
    source = Scripted(NOISY)
    judgement, _ = settled(source, seconds)
    assert source.takes[:2] == [5, more]
    said = any("--perf-budget" in note for note in judgement.notes)
    assert said == (more < 15 and judgement.verdict is Verdict.INCONCLUSIVE)


def test_time_that_is_spent_leaves_the_next_metric_its_first_look_and_its_confirmation() -> None:
    budget = TimeBudget(10.0)
    budget.spent = 11.0
    assert budget.left == 0.0
    source = Scripted(NOISY)
    rules = SettlingRules((5, 20), 5, 1, budget)
    judgement, _ = Settling(source, look, rules, NOBODY).settle()
    assert (judgement.verdict, source.takes) == (Verdict.INCONCLUSIVE, [5])
    assert "5 of at most 20 replicates were taken" in judgement.notes[-1]

    slower = Scripted([1.06 * quiet for quiet in QUIET])
    judgement, _ = Settling(slower, look, rules, NOBODY).settle()
    assert (judgement.verdict, slower.takes) == (Verdict.REGRESSED, [5, 5])


def test_a_regression_that_may_be_chance_among_many_metrics_takes_its_next_look() -> None:
    factors = [1.06 * quiet for quiet in NOISY]
    alone, among = Scripted(factors), Scripted(factors)
    first = look(alone.take(5))
    alone.takes.clear()
    p_worse = first.numbers.p_worse
    assert p_worse is not None
    many = int(0.03 / p_worse) + 1
    assert is_open(first, many)
    assert not is_open(first, 1) or first.verdict is Verdict.INCONCLUSIVE
    settled(among, metrics=many)
    assert among.takes[1] == 15


verdicts = st.sampled_from(Verdict)


@given(verdicts, verdicts, verdicts)
def test_a_change_never_stands_alone(first: Verdict, fresh: Verdict, together: Verdict) -> None:
    """Whatever is seen: REGRESSED and IMPROVED need the fresh replicates to say the same."""

    def judged(verdict: Verdict) -> Judgement:
        return replace(PASSING, verdict=verdict)

    stands = confirm(judged(first), judged(fresh), judged(together))
    if together in (Verdict.INVALID, Verdict.WRONG_RESULT):
        assert stands.verdict is together
    if is_to_confirm(stands) and is_to_confirm(judged(together)):
        assert first is fresh is stands.verdict


PASSING = look(Scripted(QUIET).take(5))


# --- waves of gangs


@dataclass
class Wave:
    """Stands for a GangSource: keeps who was asked for what."""

    log: list[str]
    number: int
    taken: list[float] = field(default_factory=list)
    wrong: str | None = None

    def __enter__(self) -> Wave:
        return self

    def __exit__(self, *_: object) -> None:
        self.log.append(f"closed {self.number}")

    def take(self, count: int) -> Taken:
        self.log.append(f"{count} on {self.number}")
        self.taken.extend(float(self.number) for _ in range(count))
        return Taken("gang", tuple(map(replicate, self.taken)), wrong=self.wrong)


def waves(log: list[str], most: int, wrong: str | None = None) -> GangWaves:
    count = iter(range(1, 99))
    start: Callable[[], Any] = lambda: Wave(log, next(count), wrong=wrong)  # noqa: E731 - one that counts
    return GangWaves(start, lambda: log.append("renewed"), most)


def test_no_more_gangs_live_at_once_than_was_said_and_the_next_wave_is_of_fresh_ones() -> None:
    log: list[str] = []
    with waves(log, 4) as source:
        assert len(source.take(3).replicates) == 3
        assert len(source.take(6).replicates) == 9

    assert log == [
        *("3 on 1", "1 on 1", "closed 1", "renewed"),
        *("4 on 2", "closed 2", "renewed", "1 on 3", "closed 3"),
    ]


@given(st.integers(1, 9), st.lists(st.integers(1, 20), min_size=1, max_size=5))
def test_every_replicate_that_is_wanted_is_taken_once(most: int, counts: list[int]) -> None:
    log: list[str] = []
    with waves(log, most) as source:
        taken = [source.take(count) for count in counts][-1]

    values = [each.value for each in taken.replicates]
    assert len(values) == sum(counts)
    assert max(values.count(value) for value in values) <= most


def test_wrong_numbers_end_the_waves() -> None:
    log: list[str] = []
    with waves(log, 2, wrong="off by 0.3") as source:
        assert source.take(9).wrong == "off by 0.3"

    assert log == ["2 on 1", "closed 1"]
