"""Sessions of the cards that are measured, and of others of their kind: which count, and how noisy they are."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from card_sessions import GEMM, OTHER, baseline, judged, session, telemetry
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.baseline.schema import Session, StoredMetric
from pytest_decodegate.gate.bands import foreseen
from pytest_decodegate.gate.own_cards import class_of, memory_share, on_cards, one_set_of_cards, streams_memory
from pytest_decodegate.gate.stats.recorded import NoiseClass, recorded
from pytest_decodegate.gate.text.explain import not_covered
from pytest_decodegate.gate.verdict import Judgement, Verdict
from pytest_decodegate.machine.cards import cards_of
from pytest_decodegate.metric import Metric, Replicate


def test_sessions_of_the_very_cards_alone_are_the_base_where_there_are_some() -> None:
    """Another card of the kind is 1.5 % faster: beside it this one, unchanged, would be open or worse."""
    base = baseline(session(1, 0.985, "GPU-b"), session(2, 1.0, "GPU-a"), session(3, 0.985, "GPU-b"))
    own = judged(base, 1.0, "GPU-a")
    assert own.verdict is Verdict.PASS
    assert own.basis.sessions == 1
    assert own.basis.same_cards
    assert own.numbers.change == pytest.approx(0.0, abs=1e-6)
    assert "compared with 1 session(s) of these very cards; 2 of other cards left out" in own.notes

    other = judged(base, 1.0, "GPU-c")
    assert (other.basis.sessions, other.basis.same_cards) == (3, False)
    assert not any("very cards" in note for note in other.notes)


def test_sessions_of_the_same_card_are_taken_to_differ_by_less() -> None:
    base = baseline(session(1, 1.0, "GPU-a"))
    own, other = judged(base, 1.001, "GPU-a"), judged(base, 1.001, "GPU-b")
    assert own.basis.session_noise == pytest.approx(recorded(NoiseClass("kernel", "graph", "gang", "same")).session_sd)
    assert other.basis.session_noise == pytest.approx(recorded(NoiseClass("kernel", "graph", "gang")).session_sd)
    assert half_width(own) < 0.5 * half_width(other)
    assert half_width(own) < 0.006, "what is promised of kernels on one card"
    assert any("83 kernels, gated on their card" in line for line in not_covered([own]))


def half_width(judgement: Judgement) -> float:
    hi, change = judgement.numbers.hi, judgement.numbers.change
    assert hi is not None
    assert change is not None
    return math.log1p(hi) - math.log1p(change)


def test_a_host_that_does_not_know_its_cards_has_none_of_its_own() -> None:
    judgement = judged(baseline(session(1, 1.0)), 1.0)
    assert not judgement.basis.same_cards


cards = st.lists(st.sampled_from("abc"), max_size=2, unique=True)


@given(st.lists(cards, min_size=1, max_size=5), cards)
def test_what_counts_as_own_ran_on_just_these_cards(recorded_on: list[list[str]], here: list[str]) -> None:
    sessions = [session(number + 1, 1.0, *each) for number, each in enumerate(recorded_on)]
    stored = StoredMetric(GEMM, tuple(sessions))
    own = on_cards(stored, cards_of(telemetry(*here)))
    alike = [one for one, each in zip(sessions, recorded_on, strict=True) if here and set(each) == set(here)]
    assert (list(own.sessions) if own else []) == alike
    known = one_set_of_cards(stored)
    assert known == (set(recorded_on[0]) if all(set(each) == set(recorded_on[0]) for each in recorded_on) else set())


def test_a_run_to_come_is_foreseen_on_the_cards_of_a_file_that_knows_one_set_of_them() -> None:
    one, mixed = baseline(session(1, 1.0, "GPU-a")), baseline(session(1, 1.0, "GPU-a"), session(2, 1.0, "GPU-b"))
    ahead = [foreseen(each.metrics["gemm"], [each.metrics["other"]], 5, 2) for each in (one, mixed)]
    assert ahead[0].noise.session_sd < ahead[1].noise.session_sd


def test_kinds_without_a_figure_of_their_own_keep_the_one_of_any_cards() -> None:
    tpot = Metric.of("tpot[c=1]", "serving")
    stored: Any = StoredMetric(tpot, (replace(session(1, 1.0, "GPU-a"), level="window"),))
    assert recorded(class_of(stored, same_cards=True)) == recorded(class_of(stored, same_cards=False))


def streaming(metric: Metric, *shares: float | None) -> StoredMetric:
    """A metric whose sessions reached these shares of the memory's ceiling; None of one that does not say."""
    sessions = (
        replace(session(number, 1.0), telemetry={} if share is None else {"medians": {"memory_share": share}})
        for number, share in enumerate(shares, 1)
    )
    return StoredMetric(metric, tuple(sessions))


@pytest.mark.parametrize(
    ("shares", "streams"),
    [((0.9,), True), ((0.2,), False), ((0.9, 0.9, 0.2), True), ((0.2, None), False), ((None, 0.8), True), ((), False)],
)
def test_a_kernel_that_reaches_the_memorys_ceiling_is_of_a_class_of_its_own(
    shares: tuple[float | None, ...], streams: bool
) -> None:
    stored = streaming(GEMM, *(shares or (None,)))
    assert class_of(stored, same_cards=False).streams is streams
    assert not class_of(stored, same_cards=True).streams, "one card has one memory"
    assert not streams_memory(replace(stored, metric=replace(GEMM, kind="collective")))


def test_a_session_that_was_just_measured_says_it_by_its_replicates() -> None:
    fresh = Session("s9", "", "gang", tuple(Replicate((1e-5,), {"memory_share": share}) for share in (0.7, 0.8, 0.1)))
    assert memory_share(fresh) == 0.7
    assert streams_memory(StoredMetric(GEMM, (fresh,)))


def test_kernels_that_stream_memory_are_noisier_on_other_cards_and_no_peers_of_the_others() -> None:
    slow, fast = streaming(GEMM, 0.1), streaming(GEMM, 0.9)
    noises = [recorded(class_of(stored, same_cards=False)).session_sd for stored in (slow, fast)]
    assert noises[0] < noises[1] / 2
    assert recorded(class_of(fast, same_cards=True)) == recorded(class_of(slow, same_cards=True))

    base = baseline(session(1, 1.0))
    mixed = replace(base, metrics={"gemm": slow, "other": replace(fast, metric=OTHER)})
    assert {judged(mixed, 1.0).basis.session_noise} == {judged(base, 1.0).basis.session_noise}
    assert not judged(mixed, 1.0).basis.streams


def test_a_class_of_which_nobody_recorded_how_it_streams_is_noisy_as_its_other_metrics_are() -> None:
    found = NoiseClass("kernel", "eager", "gang", streams=True)
    assert recorded(found) == recorded(found._replace(streams=False))
