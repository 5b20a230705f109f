"""The rule for answers: what is the server's own variation passes, what is not is named."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.gate.evidence.quality import GreedyAnswer, Pass, compare, compared, passes, to_json
from pytest_decodegate.metric import Replicate

BAND = 0.02
PROMPTS, LENGTH = 16, 10

texts = st.lists(st.sampled_from("ab"), max_size=6)


def position(token: str, margin: float = 3.0, logprob: float = -0.1) -> dict[str, float]:
    return {token: logprob, "runner-up": logprob - margin}


def answered(tokens: Sequence[str], **changes: float) -> GreedyAnswer:
    return [position(token, **changes) for token in tokens]


def turned(answers: Pass, prompts: Sequence[int], at: int, **changes: float) -> Pass:
    """`answers` with another token from index `at` on, for some of the prompts."""
    new = list(answers)
    for prompt in prompts:
        tail = answered(["runner-up"] * (LENGTH - at), **changes)
        new[prompt] = [*answers[prompt][:at], *tail]

    return new


def flat(margin: float) -> Pass:
    """Answers of a server that is nowhere surer than by `margin` nats."""
    return [answered([f"t{index}" for index in range(LENGTH)], margin=margin) for _ in range(PROMPTS)]


def wrong(base: Sequence[Pass], new: Sequence[Pass], *, exact: bool = False) -> str | None:
    return compare(base, new, tolerance=BAND, exact=exact).wrong


SURE, UNSURE = flat(3.0), flat(0.01)


def test_two_answers_side_by_side() -> None:
    pair = compared(answered("abcd", logprob=-0.1), answered("abxd", logprob=-0.3))
    assert (pair.first, pair.agreement) == (2, 0.5)
    assert pair.drift == pytest.approx(0.2)
    assert pair.margin == pytest.approx(3.0)  # "x" is not among the likeliest, so it is less likely than the runner-up


def test_an_answer_that_ends_early_diverges_there() -> None:
    pair = compared(answered("abcd"), answered("ab"))
    assert (pair.first, pair.agreement, pair.margin) == (2, 0.5, None)


def test_no_margin_is_known_where_only_the_choice_was_kept() -> None:
    assert compared([{"a": -0.1}], [{"b": -0.1}]).margin is None


@given(texts, texts)
def test_divergence_does_not_depend_on_the_side(one: list[str], other: list[str]) -> None:
    here, there = compared(answered(one), answered(other)), compared(answered(other), answered(one))
    assert (here.first, here.agreement) == (there.first, there.agreement)
    assert (here.first is None) == (one == other)
    assert 0 <= here.agreement <= 1


@given(texts)
def test_an_answer_agrees_with_itself(text: list[str]) -> None:
    pair = compared(answered(text), answered(text))
    assert (pair.first, pair.agreement, pair.margin) == (None, 1.0, 0.0)
    assert pair.drift in (None, 0.0)


@given(st.lists(texts, min_size=1, max_size=4), st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_the_same_answers_are_never_wrong(texts: list[list[str]], base: int, new: int, exact: bool) -> None:
    answers = [answered(text) for text in texts]
    finding = compare([answers] * base, [answers] * new, tolerance=BAND, exact=exact)
    assert finding.wrong is None
    assert finding.note.startswith("100.0 % of the tokens agree with the baseline, 100.0 % among its own passes")


@given(st.lists(texts, min_size=1, max_size=4))
def test_answers_come_back_from_a_file(texts: list[list[str]]) -> None:
    answers = [answered(text) for text in texts]
    assert passes([Replicate((1.0,), {"answers": to_json(answers)}), Replicate((1.0,))]) == [answers]


def test_batch_invariant_servers_answer_the_same_to_the_token() -> None:
    new = turned(UNSURE, [4], at=6, margin=0.01)
    assert wrong([UNSURE] * 3, [new]) is None
    reason = wrong([UNSURE] * 3, [new], exact=True)
    assert reason is not None
    assert reason.endswith("tokens differ from the baseline's: prompt 5 at token 7")


def test_a_turn_where_the_baseline_was_sure_is_wrong_in_one_prompt_already() -> None:
    reason = wrong([SURE] * 3, [turned(SURE, [2], at=3)])
    assert reason is not None
    assert reason.startswith("prompt 3 turns at token 4, where the baseline was sure: the token is 3 nats less likely")


def test_a_near_tie_may_fall_either_way() -> None:
    assert wrong([UNSURE] * 3, [turned(UNSURE, [2, 5], at=3, margin=0.01)]) is None


def test_too_many_near_ties_that_fall_the_other_way_are_wrong() -> None:
    reason = wrong([UNSURE] * 3, [turned(UNSURE, range(8), at=3, margin=0.01)] * 3)
    assert reason is not None
    assert reason.startswith("8 of 16 prompts agree less with the baseline than it agrees with itself (chance 0.004)")
    assert "prompt 1 at token 4, prompt 2 at token 4, prompt 3 at token 4 and 5 more" in reason


def test_a_server_that_varies_by_itself_may_go_on_varying() -> None:
    other = turned(UNSURE, range(PROMPTS), at=2, margin=0.01)
    assert wrong([UNSURE, other, UNSURE], [other, UNSURE, other]) is None


def test_logprobs_that_drift_are_wrong_even_if_no_token_turns() -> None:
    shifted = [answered([next(iter(one)) for one in answer], logprob=-0.35) for answer in SURE]
    reason = wrong([SURE, SURE], [shifted])
    assert reason == "logprobs drift by 0.25 nats from the baseline's, 0 among its own passes"


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
def test_passes_of_one_server_are_hardly_ever_called_wrong(share: float) -> None:
    """Five passes each, as by default; each turns each prompt with one probability, all of them at one token."""
    draw = random.Random(1)

    def one_pass() -> Pass:
        prompts = [prompt for prompt in range(PROMPTS) if draw.random() < share]
        return turned(UNSURE, prompts, at=draw.randrange(LENGTH), margin=0.01)

    runs = [wrong([one_pass() for _ in range(5)], [one_pass() for _ in range(5)]) for _ in range(60)]
    assert sum(reason is not None for reason in runs) <= 1


def test_one_baseline_pass_shows_no_own_variation_and_is_not_held_against_a_server() -> None:
    assert wrong([UNSURE], [turned(UNSURE, range(8), at=3, margin=0.01)]) is None
