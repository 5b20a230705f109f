"""What a change means for the step, and what may pass although noise hides it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.gate.materiality import LIMIT, StepWeight, weighed
from pytest_decodegate.gate.verdict import Basis, Judgement, Numbers, Verdict
from pytest_decodegate.metric import Metric

STEP = "decode_step[tp=8,m=1]"
TIME = Metric("topk[m=1]", "s", "kernel", 0.05)
RATE = Metric("output_rate[c=1]", "tok/s", "serving", 0.03)


def judged(verdict: Verdict, change: float, half: float, metric: Metric = TIME) -> Judgement:
    numbers = Numbers(measured=1 + change, base=1.0, change=change, lo=change - half, hi=change + half)
    return Judgement(metric, verdict, Basis("gang", 5), numbers)


def of_share(share: float) -> dict[str, StepWeight]:
    return {each.name: StepWeight(STEP, share) for each in (TIME, RATE)}


@given(st.floats(-0.2, 0.2), st.floats(0.001, 0.2), st.floats(0.0001, 0.5))
def test_only_what_cannot_matter_passes_and_says_so(change: float, half: float, share: float) -> None:
    found = weighed(judged(Verdict.INCONCLUSIVE, change, half), of_share(share))
    assert found.step is not None
    assert found.step.change == pytest.approx(share * change)
    assert found.step.worst == pytest.approx(share * (change + half))
    assert (found.verdict is Verdict.PASS) == (found.step.worst < LIMIT)
    assert found.verdict in (Verdict.PASS, Verdict.INCONCLUSIVE)
    if found.verdict is Verdict.PASS:
        assert found.notes[-1].startswith("not material: at worst ")
        assert STEP in found.notes[-1]


@given(st.sampled_from([each for each in Verdict if each is not Verdict.INCONCLUSIVE]), st.floats(0.0001, 1))
def test_no_other_verdict_is_touched(verdict: Verdict, share: float) -> None:
    """A slowdown that is shown stays REGRESSED, however small a part of the step it is."""
    assert weighed(judged(verdict, 0.08, 0.01), of_share(share)).verdict is verdict


def test_without_a_weight_or_an_interval_nothing_is_said() -> None:
    before = judged(Verdict.INCONCLUSIVE, 0.04, 0.02)
    assert weighed(before, {}) is before
    unknown = Judgement(TIME, Verdict.NO_BASELINE, Basis("gang", 5), Numbers(measured=1.0))
    assert weighed(unknown, of_share(0.1)) is unknown


def test_a_falling_rate_is_a_longer_step() -> None:
    found = weighed(judged(Verdict.INCONCLUSIVE, -0.5, 0.0, RATE), of_share(0.1))
    assert found.step is not None
    assert found.step.change == pytest.approx(0.1), "half the rate is twice the time"


def test_the_limit_is_the_users() -> None:
    hidden = judged(Verdict.INCONCLUSIVE, 0.04, 0.02)
    assert weighed(hidden, of_share(0.01), limit=0.0005).verdict is Verdict.INCONCLUSIVE
    passed = weighed(hidden, of_share(0.01), limit=0.002)
    assert passed.verdict is Verdict.PASS
    assert passed.notes[-1] == f"not material: at worst +0.06 % of {STEP}, less than 0.20 % of it"
