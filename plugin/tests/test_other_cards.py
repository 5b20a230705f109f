"""Hosts that did not record: the band in which an unchanged metric is green there, and that it is said to be wider."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from card_sessions import GEMM, baseline, judged, measured, session
from hypothesis import given, settings
from hypothesis import strategies as st
from judged import result

from pytest_decodegate.baseline.edits import band_is_set, set_band
from pytest_decodegate.baseline.schema import Baseline, LogEntry, StoredMetric
from pytest_decodegate.baseline.selection import Selection
from pytest_decodegate.compare.pairs import compare_baselines
from pytest_decodegate.compare.standing import Terms
from pytest_decodegate.gate import shift
from pytest_decodegate.gate.bands import band_ahead, foreseen, hides_in_wider_band, recorded_band
from pytest_decodegate.gate.decision import decide_all
from pytest_decodegate.gate.joint import joint_band, noise_of
from pytest_decodegate.gate.materiality import StepWeight, is_not_material, weighed
from pytest_decodegate.gate.other_cards import MOST_WIDER, WIDEST, OtherCards, on_other_cards
from pytest_decodegate.gate.own_cards import ran_elsewhere
from pytest_decodegate.gate.result import Result
from pytest_decodegate.gate.stats.noise import Noise, Variance
from pytest_decodegate.gate.stats.rules import RARELY, Comparison
from pytest_decodegate.gate.stats.together import JointChange, JointPart, common_shift, joint_error
from pytest_decodegate.gate.text.advice import advice
from pytest_decodegate.gate.text.explain import explain, headline, notes_of, wider_bands
from pytest_decodegate.gate.verdict import Basis, Judgement, Numbers, Verdict, basis_together, judge
from pytest_decodegate.gate.whole_step import judge_step, step_change
from pytest_decodegate.metric import Measurement, Metric, Replicate
from pytest_decodegate.report.fields import as_json
from pytest_decodegate.settings.settings import read_settings

STREAMING = 0.9
"""Share of the memory's ceiling."""


def recorded(*levels: float, share: float = STREAMING) -> Baseline:
    """A kernel that other cards recorded, each one session."""
    return baseline(*(session(n, level, f"GPU-{n}", share=share) for n, level in enumerate(levels, 1)))


def scattered(base: Baseline) -> Baseline:
    """The same where the processes of a session differ, so that it matters how many there are and how often looked."""
    factors = (1.0, 1.008, 0.992, 1.004, 0.996)
    replicates = tuple(Replicate((1e-5 * factor,)) for factor in factors)
    metrics = {
        name: replace(stored, sessions=tuple(replace(each, replicates=replicates) for each in stored.sessions))
        for name, stored in base.metrics.items()
    }
    return replace(base, metrics=metrics)


def test_an_unchanged_kernel_is_green_on_a_card_whose_memory_is_slower() -> None:
    base = recorded(1.0, 1.001)
    there = judged(base, 1.02, "GPU-9")
    assert there.verdict is Verdict.PASS
    assert there.metric.tolerance > GEMM.tolerance
    assert there.other_cards is not None
    assert (there.other_cards.own, there.other_cards.band) == (GEMM.tolerance, there.metric.tolerance)
    assert (there.basis.foreign_cards, there.basis.streams) == (True, True)
    assert measured(1.02).metric.tolerance == GEMM.tolerance, "what is recorded keeps the band of its test"


def test_half_again_as_much_as_the_wider_band_is_slower() -> None:
    band = judged(recorded(1.0, 1.001, 1.002), 1.0, "GPU-9").metric.tolerance
    assert judged(recorded(1.0, 1.001, 1.002), 1 + 1.5 * band, "GPU-9").verdict is Verdict.REGRESSED


def test_on_a_card_that_recorded_and_where_nobody_knows_the_cards_the_band_is_its_own() -> None:
    base = recorded(1.0, 1.001)
    for cards in (("GPU-1",), ()):
        here = judged(base, 1.025, *cards)
        assert here.metric.tolerance == GEMM.tolerance
        assert here.other_cards is None
        assert here.verdict is not Verdict.PASS

    nameless = baseline(session(1, 1.0, share=STREAMING), session(2, 1.0, "GPU-2", share=STREAMING))
    assert judged(nameless, 1.0, "GPU-9").other_cards is None, "one session may be of these very cards"


def test_the_users_band_is_the_users_word() -> None:
    own = judged(recorded(1.0), 1.015, "GPU-9", fixed_band=True)
    assert own.verdict is Verdict.INCONCLUSIVE
    assert own.metric.tolerance == GEMM.tolerance
    assert own.other_cards is not None
    assert not own.other_cards.is_wider
    assert any("recorded on these very cards says more" in line for line in advice(own))


def test_a_line_of_the_ini_option_is_such_a_word(pytester: pytest.Pytester) -> None:
    settings = read_settings(pytester.parseconfigure("-operf_tolerance=gem* = 2%"))
    assert settings.sets_band("gemm")
    assert not settings.sets_band("other")


@given(st.floats(0.5, 2.0))
def test_nothing_that_the_run_measures_widens_the_band(level: float) -> None:
    base = recorded(1.0, 1.004)
    assert judged(base, level, "GPU-9").other_cards == judged(base, 1.0, "GPU-9").other_cards


def unchanged(session_sd: float, process_sd: float = 0.001) -> Comparison:
    noise = Noise(Variance(session_sd**2, 8.0), Variance(process_sd**2, 20.0))
    return Comparison(0.0, noise, (5,), (5,), 2)


fractions = st.floats(0.001, 0.5)


@given(fractions, st.floats(0, 0.1), st.floats(0, 0.1), st.booleans())
def test_a_band_is_widened_so_far_and_never_narrowed(own: float, quiet: float, more: float, fixed: bool) -> None:
    found, noisier = (on_other_cards(own, unchanged(sd), sd, RARELY, fixed=fixed) for sd in (quiet, quiet + more))
    assert own <= found.band <= noisier.band <= max(own, min(MOST_WIDER * own, WIDEST))
    assert found.kept <= noisier.kept
    assert found.is_wider == (found.band > own)
    if fixed:
        assert noisier.band == own
    elif found.is_wider:
        assert found.band <= found.kept


@given(
    st.lists(st.sampled_from("ab"), max_size=2, unique=True), st.lists(st.sampled_from("ab"), max_size=2, unique=True)
)
def test_elsewhere_is_where_all_cards_are_known_and_none_of_the_sets_is_the_same(
    old: list[str], new: list[str]
) -> None:
    stored = StoredMetric(GEMM, (session(1, 1.0, *old),))
    assert ran_elsewhere(stored, frozenset(new)) == (bool(old) and bool(new) and set(old) != set(new))


def test_it_is_said_in_the_line_in_a_note_in_the_json_and_once_for_the_run() -> None:
    there = judged(recorded(1.0, 1.001), 1.0, "GPU-9")
    band = f"{100 * there.metric.tolerance:g} %"
    assert f"stays inside the band of {band} (its own is 2 %)" in headline(there)
    (note,) = [note for note in notes_of(there) if note.startswith("band")]
    assert note.startswith(f"band {band} instead of 2 %: compared with sessions of other cards, which differ by 0.")
    assert note.endswith("record here for 2 %")
    assert f"note: {note}" in explain(there)

    fields = as_json(Result("t", there))
    assert fields["tolerance"] == there.metric.tolerance
    assert isinstance(known := fields["other_cards"], dict)
    assert known["own"] == GEMM.tolerance

    here = judged(recorded(1.0, 1.001), 1.0, "GPU-1")
    assert wider_bands([here]) == []
    (line,) = wider_bands([here, there])
    assert line.startswith(f"1 of 2 metrics are judged in wider bands, up to {band} (its own is 2 %) for gemm, since")
    assert line.endswith("no session that gates is of these cards: record on this host")


def test_a_band_that_even_the_widest_cannot_stand_for_is_said_to_be_too_narrow() -> None:
    there = judged(recorded(1.0, 1.001), 1.0, "GPU-9")
    assert there.other_cards is not None
    narrow = replace(there, other_cards=replace(there.other_cards, kept=0.09))
    assert notes_of(narrow)[-1].endswith("; 9 % is what an unchanged metric keeps there")


def test_what_a_run_could_have_seen_goes_by_the_band_in_force() -> None:
    there = judged(recorded(1.0, 1.001), 1.0, "GPU-9")
    (seen,) = decide_all([Result("t", there)]).resolutions
    assert seen.worst > there.metric.tolerance
    assert not is_not_material(weighed(there, {"gemm": StepWeight("step", 0.001)}))


def compared(base: Baseline, new: Baseline) -> Judgement:
    return compare_baselines(base, new, Terms()).judgements[0]


def test_two_files_of_different_cards_are_compared_in_the_wider_band() -> None:
    base = recorded(1.0, 1.001)
    other = baseline(session(7, 1.02, "GPU-7", share=STREAMING), session(8, 1.019, "GPU-8", share=STREAMING))
    there = compared(base, other)
    assert there.verdict is Verdict.PASS
    assert there.other_cards is not None
    assert there.other_cards.is_wider
    assert there.basis.foreign_cards

    mixed = baseline(session(7, 1.02, "GPU-7", share=STREAMING), session(8, 1.019, "GPU-1", share=STREAMING))
    assert compared(base, mixed).other_cards is None
    unknown = baseline(session(7, 1.02, share=STREAMING))
    assert compared(base, unknown).metric.tolerance == GEMM.tolerance


def test_a_comparison_and_a_run_of_the_same_data_have_one_band_and_the_judged_side_none_of_it() -> None:
    """Neither how many processes it took, nor how much of the memory's ceiling it reached, widens its band."""
    base = scattered(recorded(1.0, 1.0, share=0.65))
    in_a_run = judged(base, 1.02, "GPU-9").other_cards
    for processes in (1, 2, 5):
        fresh = session(7, 1.02, "GPU-7", share=0.76)
        other = baseline(replace(fresh, replicates=fresh.replicates[:processes]))
        alone = replace(other, metrics={"gemm": other.metrics["gemm"]})
        for new in (other, alone, baseline(fresh, session(8, 1.02, "GPU-8", share=0.99))):
            there = compared(base, new)
            assert not there.basis.streams
            assert there.other_cards == in_a_run


def test_a_band_that_the_user_set_in_the_new_file_is_the_users_word_in_a_comparison_too() -> None:
    base, other = recorded(1.0, 1.001), baseline(session(7, 1.0, "GPU-7", share=STREAMING))
    banded, said = set_band(other, ["ge*"], 0.015)
    logged = replace(banded, log=(LogEntry("2026-02-01T00:00:00+00:00", "me", said, "why"),))
    there = compared(base, logged)
    assert (there.metric.tolerance, there.basis.fixed_band) == (0.015, True)
    assert not (there.other_cards and there.other_cards.is_wider)
    assert compared(base, banded).metric.tolerance > 0.015, "as a recording under this band has it"


def test_a_file_tells_whose_band_a_user_set() -> None:
    other, names = recorded(1.0), ("gemm", "other")
    banded, said = set_band(other, ["ge*"], 0.015)
    log = (LogEntry("2026-02-01T00:00:00+00:00", "me", said, "why"),)
    assert [band_is_set(replace(banded, log=log), name) for name in names] == [True, False]
    assert not any(band_is_set(banded, name) for name in names), "no edit is logged"
    assert not band_is_set(replace(other, log=log), "gemm"), "recorded under another band since"
    both, said = set_band(other, ["gemm", "oth*"], 0.015)
    assert all(band_is_set(replace(both, log=(replace(log[0], what=said),)), name) for name in names)


def test_of_two_files_none_is_told_to_record_on_a_host() -> None:
    there = compared(recorded(1.0, 1.001), baseline(session(7, 1.0, "GPU-7", share=STREAMING)))
    (line,) = wider_bands([there])
    assert line.endswith(", since the two files are of different cards")
    (note,) = [note for note in notes_of(there) if note.startswith("band ")]
    assert "compared with a file of other cards, which differ by " in note
    assert "record" not in note


def test_sessions_of_these_cards_from_before_the_accepted_level_are_not_denied() -> None:
    base = baseline(session(1, 0.9, "GPU-9", share=STREAMING), session(2, 1.0, "GPU-2", share=STREAMING))
    accepted = replace(base, metrics={n: replace(each, accepted="s2") for n, each in base.metrics.items()})
    (line,) = wider_bands([judged(accepted, 1.0, "GPU-9")])
    assert "no session that gates is of these cards" in line


def test_what_is_recorded_has_a_band_that_its_own_cards_can_keep() -> None:
    """Sessions of other cards, which differ by more, are no base on these."""
    stored = recorded(1.0, 1.03, 0.98).metrics
    band = recorded_band(stored["gemm"], [stored["other"]], 20, 2)
    assert band.is_kept
    assert band.kept == GEMM.tolerance


def test_a_run_to_come_is_foreseen_in_the_band_in_force_on_cards_that_did_not_record() -> None:
    several, one = recorded(1.0, 1.03).metrics, baseline(session(1, 1.0, "GPU-1", share=STREAMING)).metrics
    for stored, wider in ((several, True), (one, False)):
        ahead = foreseen(stored["gemm"], [stored["other"]], 5, 2)
        assert (band_ahead(stored["gemm"], ahead) > GEMM.tolerance) is wider


def test_answers_are_foreseen_in_their_own_band_since_no_cards_change_what_is_right() -> None:
    answers = StoredMetric(Metric("quality", "%", "quality", 0.02, {}), recorded(1.0, 1.3).metrics["gemm"].sessions)
    assert band_ahead(answers, foreseen(answers, [], 5, 2)) == 0.02


def test_the_band_ahead_is_the_one_in_force_however_many_replicates_are_asked_for() -> None:
    base = scattered(recorded(1.0, 1.0, share=0.65))
    stored, other = base.metrics["gemm"], base.metrics["other"]
    in_force = judged(base, 1.0, "GPU-9").metric.tolerance
    assert {band_ahead(stored, foreseen(stored, [other], count, 2)) for count in (2, 5, 20)} == {in_force}


@pytest.mark.parametrize(("level", "hides"), [(0.9, False), (1.0, False), (1.015, False), (1.03, True), (1.2, False)])
def test_what_is_worse_by_more_than_its_own_band_and_less_than_the_wider_one_hides(level: float, hides: bool) -> None:
    assert hides_in_wider_band(judged(recorded(1.0, 1.001), level, "GPU-9")) is hides
    assert not hides_in_wider_band(judged(recorded(1.0, 1.001), level, "GPU-1"))


# --- what metrics say together


def part(name: str, change: float, *, streams: bool, other_cards: OtherCards | None) -> Judgement:
    numbers = Numbers(1e-5 * (1 + change), 1e-5, change, -0.01, 0.01, standard_error=0.006)
    basis = Basis("gang", 5, sessions=1, streams=streams, foreign_cards=other_cards is not None)
    metric = Metric(name, "s", "kernel", 0.02)
    foreseen = JointPart(0.006, 8.0, streams)
    return Judgement(metric, Verdict.PASS, basis, numbers, other_cards=other_cards, foreseen=foreseen)


def parts(change: float, *, streams: bool, elsewhere: bool = True) -> list[Judgement]:
    known = OtherCards(0.02, 0.05, 0.05, 0.006) if elsewhere else None
    return [part(f"k{n}", change, streams=streams, other_cards=known) for n in range(20)]


WEIGHTS = {f"k{n}": 1.0 for n in range(20)}


def replicates(noise: float, level: float = 1.0) -> tuple[Replicate, ...]:
    """Five processes around so many 10 us; noise: half their range, a fraction."""
    return tuple(Replicate((1e-5 * level * (1 + noise * off),)) for off in (-1.0, -0.5, 0.0, 0.5, 1.0))


def run_of(foreign: int, noise: float, level: float, stored_noise: float = 0.0005) -> list[Judgement]:
    """Twenty kernels on a card, judged; so many were recorded on another alone. noise, level: of the run."""
    kernels = [replace(GEMM, name=name) for name in WEIGHTS]
    own, other = (
        replace(session(1, 1.0, card, share=STREAMING), replicates=replicates(stored_noise))
        for card in ("GPU-1", "GPU-2")
    )
    stored = {kernel.name: StoredMetric(kernel, (other if n < foreign else own,)) for n, kernel in enumerate(kernels)}
    there = Selection(Path(), replace(recorded(1.0), metrics=stored), cards=frozenset({"GPU-1"}))
    return [judge(Measurement(kernel, replicates(noise, level), "gang"), there, looks=2) for kernel in kernels]


def joint_bands(judgements: list[Judgement]) -> tuple[float, float]:
    step = judge_step("decode_step[tp=1,m=1]", judgements, WEIGHTS, (20e-5, 20e-5))
    return step.metric.tolerance, shift.judge_shift(judgements).metric.tolerance


QUIET_BANDS = {foreign: joint_bands(run_of(foreign, 0.0005, 1.0)) for foreign in (0, 1, 20)}


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(list(QUIET_BANDS)), st.floats(0, 0.05), st.floats(0.9, 1.1))
def test_nothing_that_the_run_measures_widens_the_band_of_what_metrics_say_together(
    foreign: int, noise: float, level: float
) -> None:
    assert joint_bands(run_of(foreign, noise, level)) == QUIET_BANDS[foreign]


def test_the_band_of_what_metrics_say_together_grows_with_what_met_other_cards() -> None:
    assert QUIET_BANDS[0] == (0.01, shift.BAND)
    assert all(one <= 0.011 for one in QUIET_BANDS[1])
    assert QUIET_BANDS[20][0] > QUIET_BANDS[1][0]
    noisy = joint_bands(run_of(1, 0.0005, 1.0, stored_noise=0.05))
    assert all(one <= 0.012 for one in noisy), "the noise of the other nineteen is no matter of cards"


def test_noise_in_step_rests_on_what_is_known_of_it_where_nobody_knows_the_cards() -> None:
    unknown = judged(baseline(session(1, 1.0, share=STREAMING)), 1.0)
    assert (unknown.basis.streams, unknown.other_cards) == (True, None)
    assert noise_of(unknown).df < 20
    assert step_change([unknown], {"gemm": 1.0}).df < 20


def test_what_metrics_say_together_rests_on_all_of_them() -> None:
    here, there = (Basis("gang", 5, sessions=2, same_cards=own, foreign_cards=not own) for own in (True, False))
    streams = replace(there, streams=True, fixed_band=True)
    known = parts(0.0, streams=False)[0]
    first, *rest = (replace(known, basis=basis) for basis in (here, there, streams))
    for some in ([first, *rest], [*rest, first]):
        found = basis_together(some)
        assert (found.same_cards, found.foreign_cards, found.streams, found.fixed_band) == (False, True, True, False)
    assert basis_together([first]).same_cards
    assert basis_together(rest[1:]).fixed_band


def test_kernels_that_one_memory_moves_do_not_average_out_in_a_step() -> None:
    apart, in_step = (step_change(parts(0.0, streams=streams), WEIGHTS) for streams in (False, True))
    assert in_step.error == pytest.approx((0.006**2 + apart.error**2 - 0.006**2 / 20) ** 0.5, rel=1e-6)
    assert in_step.df < apart.df


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(1e-6, 0.1), st.booleans()), min_size=2, max_size=20))
def test_an_error_is_between_what_averages_out_and_what_adds_up(of: list[tuple[float, float, bool]]) -> None:
    weighed_parts = [(weight, JointPart(error, 8.0, in_step)) for weight, error, in_step in of]
    error, df = joint_error(weighed_parts, 0.0)
    least, most = (
        joint_error([(weight, replace(one, in_step=in_step)) for weight, one in weighed_parts], 0.0)[0]
        for in_step in (False, True)
    )
    assert least <= error * (1 + 1e-9)
    assert error <= most * (1 + 1e-9)
    assert df > 0


def test_a_step_of_an_unchanged_host_with_slower_memory_is_green_and_the_users_band_holds() -> None:
    slower = parts(0.009, streams=True)
    sums = 20e-5, 20e-5 * 1.009
    there = judge_step("decode_step[tp=1,m=1]", slower, WEIGHTS, sums)
    assert there.verdict is Verdict.PASS
    assert there.other_cards is not None
    assert there.metric.tolerance == there.other_cards.band > there.other_cards.own
    assert any(note.startswith("band ") for note in notes_of(there))

    own = judge_step("decode_step[tp=1,m=1]", slower, WEIGHTS, sums, lambda _, band: 0.01)
    assert (own.metric.tolerance, own.verdict) == (0.01, Verdict.INCONCLUSIVE)
    assert own.other_cards is not None
    assert not own.other_cards.is_wider
    here = judge_step("decode_step[tp=1,m=1]", parts(0.009, streams=False, elsewhere=False), WEIGHTS, sums)
    assert (here.metric.tolerance, here.other_cards) == (0.01, None)


def test_the_common_shift_follows_kernels_that_move_in_step_by_their_part_of_the_middle() -> None:
    few = [JointPart(0.003, 8.0, n < 3) for n in range(20)]
    none = [replace(one, in_step=False) for one in few]
    changes = [0.0] * 20
    pulled, free = common_shift(changes, few, 1), common_shift(changes, none, 1)
    assert pulled is not None
    assert free is not None
    assert pulled.error == pytest.approx((free.error**2 + (3 / 20 * 0.003) ** 2) ** 0.5, rel=1e-6)


def test_the_shift_of_kernels_on_other_cards_is_judged_in_a_band_that_it_keeps() -> None:
    found = shift.judge_shift(parts(0.004, streams=True))
    assert found.other_cards is not None
    assert found.metric.tolerance == found.other_cards.band >= shift.BAND
    assert shift.judge_shift(parts(0.0, streams=False, elsewhere=False)).other_cards is None


def test_what_no_part_met_on_other_cards_is_judged_in_its_own_band() -> None:
    here = [result("k", "PASS").judgement]
    assert joint_band("x", 0.01, here, JointChange(0.0, 0.02, 9.0), None) == (0.01, None)


# --- the shipped sessions


@pytest.fixture(scope="module")
def replay_sessions() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
        yield importlib.import_module("replay_sessions")

    sys.modules.pop("replay_sessions")


@pytest.fixture(scope="module")
def replays(replay_sessions: ModuleType) -> list[Any]:
    return list(replay_sessions.replays())


def test_the_shipped_sessions_of_each_host_pass_beside_those_of_the_others(
    replay_sessions: ModuleType, replays: list[Any]
) -> None:
    said = [judgement for each in replays for judgement in (*each.metrics, *each.together)]
    verdicts = [judgement.verdict for judgement in said]
    assert verdicts.count(Verdict.PASS) >= replay_sessions.LEAST_PASS * len(verdicts)
    assert Verdict.REGRESSED not in verdicts
    assert {each.others for each in replays} == {1, 3}
    assert all(str(each.decision.answer) == "GO" for each in replays)
    assert min(len(each.metrics) for each in replays) > 75
    assert {judgement.name for judgement in replays[0].together} >= {shift.NAME, "decode_step[tp=1,m=64]"}


def test_one_metric_of_a_replayed_run_that_is_slower_is_found_and_it_alone(
    replay_sessions: ModuleType, replays: list[Any]
) -> None:
    """What is missed: kernels that stream memory, nearly all beside one host alone, whose memory is slower by 2 %."""
    found = [(each.others, each.finds(index)) for each in replays for index in range(0, len(each.metrics), 4)]
    beside_all = [finds for others, finds in found if others == 3]
    assert sum(finds for _, finds in found) >= replay_sessions.LEAST_FOUND * len(found)
    assert sum(beside_all) >= 0.97 * len(beside_all) > 80


def test_in_their_own_bands_the_same_sessions_would_not_all_pass(replays: list[Any]) -> None:
    outside = [
        judgement for each in replays for judgement in each.metrics if judgement.numbers.hi >= judgement.other_cards.own
    ]
    assert {judgement.basis.streams for judgement in outside} >= {True}
    assert len(outside) > 20
