"""TPOT beside the acceptance of drafts: which of the two moved, and by how much the other explains it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored import stored

from pytest_decodegate.baseline.schema import Session, StoredMetric
from pytest_decodegate.gate.evidence.speculation import acceptance, lengths
from pytest_decodegate.metric import Metric, Replicate

TPOT = Metric("tpot[c=1]", "s", "serving", 0.03)


def replicate(length: float | None) -> Replicate:
    return Replicate((0.01,), {"speculation": {"length": length}} if length else {})


def baseline(*found: float | None) -> StoredMetric:
    replicates = tuple(map(replicate, found))
    return StoredMetric(TPOT, (Session("s1", "2026-01-01T00:00:00+00:00", "window", replicates),))


def told(new: list[float | None], base: list[float | None], change: float) -> str:
    return " | ".join(acceptance([replicate(one) for one in new], baseline(*base), change))


def test_without_speculation_nothing_is_said() -> None:
    assert acceptance([replicate(None)], stored(TPOT, 0.01), 0.5) == ()


def test_acceptance_moved_and_explains_the_change() -> None:
    text = told([2.0, 2.0, 2.0], [2.4, 2.4, 2.4], 0.2)
    assert text == (
        "acceptance length 2.40 tokens a step -> 2.00 tokens a step: acceptance moved, which alone changes TPOT by "
        "+20.0 %; the time of a step changed by +0.00 %"
    )


def test_acceptance_stayed_so_the_steps_got_slower() -> None:
    text = told([2.4, 2.38], [2.39, 2.41], 0.2)
    assert "acceptance did not move; the time of a step changed by +19.5 %" in text


def test_a_difference_inside_the_noise_of_windows_is_no_move() -> None:
    assert "did not move" in told([2.1, 2.5, 2.9], [2.2, 2.6, 3.0], 0.04)


def test_speculation_on_one_side_alone_is_said() -> None:
    assert told([None], [2.4], 0.5) == "speculative decoding: 2.40 tokens a step before, none now"


@given(st.floats(1.0, 5.0), st.floats(1.0, 5.0), st.floats(-0.5, 1.0))
def test_acceptance_and_steps_make_up_the_change(new: float, base: float, change: float) -> None:
    text = told([new, new], [base, base], change)
    assert ("moved, which" in text) == (abs(new / base - 1) > 0.0101) or abs(new / base - 1) == pytest.approx(
        0.01, rel=0.02
    )


def test_broken_facts_are_not_taken_for_lengths() -> None:
    assert (
        lengths([Replicate((1.0,), {"speculation": "none"}), Replicate((1.0,), {"speculation": {"length": "x"}})]) == ()
    )
