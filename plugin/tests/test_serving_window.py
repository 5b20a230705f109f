from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_decodegate.cause import Cause
from pytest_decodegate.client.counters import Counters
from pytest_decodegate.client.stream import Exchange
from pytest_decodegate.errors import BadInput, ServerError
from pytest_decodegate.measure.window import Load, Recording, read

LOAD = Load(concurrency=2, prompt_tokens=16, output_tokens=5, requests=4)
ALONE = replace(LOAD, concurrency=1)
STEP_S = 0.01


def exchange(start_s: float, *, tokens: int = 5, step_s: float = STEP_S, asked: int = 5) -> Exchange:
    """An answer whose first token comes one step after `start_s`, then one token every step."""
    pieces = []
    for number in range(1, tokens + 1):
        finish = "length" if number == tokens else None
        body = {"choices": [{"text": "a", "token_ids": [number], "finish_reason": finish}]}
        pieces.append((start_s + number * step_s, f"data: {json.dumps(body)}\n\n".encode()))

    return Exchange(start_s, tuple(pieces), asked)


@dataclass
class Parts:
    """What a window consists of, as `recording` takes it; tests spoil some of it."""

    ramp: list[Exchange] = field(default_factory=list)
    measured: list[Exchange] = field(default_factory=list)
    company: list[Exchange] = field(default_factory=list)

    def map(self, change: Callable[[Exchange], Exchange]) -> Parts:
        """Whole answers changed, and those of the ramp that are shorter left."""
        short = [one for one in self.ramp if one.asked_tokens < LOAD.output_tokens]
        whole = [one for one in self.ramp if one not in short]
        return Parts([*short, *map(change, whole)], list(map(change, self.measured)), list(map(change, self.company)))

    @property
    def count(self) -> int:
        """Requests."""
        return len(self.ramp) + len(self.measured) + len(self.company)

    @property
    def tokens(self) -> int:
        """Asked for."""
        return sum(one.asked_tokens for one in [*self.ramp, *self.measured, *self.company])


def steady(load: Load = LOAD, step_s: float = STEP_S) -> Parts:
    """What a perfect server would have delivered: each stream a token a step, one request after the other."""
    found, last_step = Parts(), 0
    begins = max(load.ramp)
    due = [(0, tokens) for tokens in load.ramp]
    heapify(due)
    while due:
        at, tokens = heappop(due)
        one = exchange(at * step_s, step_s=step_s, tokens=tokens, asked=tokens)
        if at == 0:
            found.ramp.append(one)
        elif at >= begins and len(found.measured) < load.requests:
            found.measured.append(one)
            last_step = at + tokens
        else:
            found.company.append(one)

        if len(found.measured) < load.requests or at + tokens < last_step:
            heappush(due, (at + tokens, load.output_tokens))

    return found


def counted(load: Load = LOAD, **changes: float) -> Counters:
    sent = steady(load)
    values = {"tpot_sum": sent.count * STEP_S, "tpot_count": sent.count, "generation_tokens": sent.tokens}
    return Counters({**values, "prefix_hits": 0, "preemptions": 0, "queue_sum": 0, **changes})


def recording(parts: Parts, *, log: str = "", counters: Counters | None = None) -> Recording:
    return Recording(tuple(parts.ramp), tuple(parts.measured), tuple(parts.company), log, counters)


def test_a_perfect_window() -> None:
    window = read(recording(steady(), counters=counted()), LOAD)
    assert window.broken == ()
    assert window.tpot_s == pytest.approx([STEP_S] * 4)
    assert window.ttft_s == pytest.approx([STEP_S] * 4)
    assert window.output_tok_s == pytest.approx(2 / STEP_S)
    assert window.facts["formula"] == "tpot_client_v2"
    assert window.facts["counted_by"] == "token_ids"
    assert window.facts["latency_median_s"] == pytest.approx(5 * STEP_S)
    assert window.facts["itl_s"] == pytest.approx(dict.fromkeys(["p50", "p90", "p99", "max"], STEP_S))


def test_no_time_between_tokens_is_told_where_a_chunk_holds_several() -> None:
    body = {"choices": [{"text": "ab", "token_ids": [1, 2], "finish_reason": None}]}
    more = {"choices": [{"text": "c", "token_ids": [3], "finish_reason": None}]}
    last = {"choices": [{"text": "de", "token_ids": [4, 5], "finish_reason": "length"}]}

    def in_chunks(one: Exchange) -> Exchange:
        chunks = ((0.01, body), (0.025, more), (0.05, last))
        pieces = tuple((one.sent_s + at, f"data: {json.dumps(chunk)}\n\n".encode()) for at, chunk in chunks)
        return replace(one, pieces=pieces)

    window = read(recording(steady().map(in_chunks)), LOAD)
    assert window.tpot_s == pytest.approx([0.04 / 3] * 4)
    assert "itl_s" not in window.facts
    assert (window.facts["first_arrival_tokens"], window.facts["largest_burst_tokens"]) == (2, 2)


def regrouped(one: Exchange, chunks: list[tuple[float, list[int]]], *, usage: int | None = None) -> Exchange:
    """`one` with other chunks: when each came, and the ids in it, left out where `usage` is the only count."""
    pieces = []
    for number, (at_s, ids) in enumerate(chunks, start=1):
        finish = "length" if number == len(chunks) else None
        choice = {"text": "é" * len(ids), "finish_reason": finish, **({} if usage else {"token_ids": ids})}
        pieces.append((one.sent_s + at_s, f"data: {json.dumps({'choices': [choice]})}\n\n".encode()))

    if usage:
        body = {"choices": [], "usage": {"completion_tokens": usage}}
        pieces.append((pieces[-1][0], f"data: {json.dumps(body)}\n\n".encode()))

    return replace(one, pieces=tuple(pieces))


def test_a_first_arrival_of_several_tokens_makes_no_server_faster() -> None:
    chunks = [(3 * STEP_S, [1, 2, 3]), (4 * STEP_S, [4]), (5 * STEP_S, [5])]
    parts = steady(ALONE).map(lambda one: regrouped(one, chunks))
    window = read(recording(parts, counters=counted(ALONE)), ALONE)
    assert window.broken == ()
    assert window.tpot_s == pytest.approx([STEP_S] * 4)
    assert window.facts["first_arrival_tokens"] == 3


def test_where_only_the_sum_of_the_tokens_is_known_the_time_per_token_is_not() -> None:
    chunks = [(3 * STEP_S, [1, 2, 3]), (4 * STEP_S, [4]), (5 * STEP_S, [5])]
    window = read(recording(steady(ALONE).map(lambda one: regrouped(one, chunks, usage=5))), ALONE)
    assert window.tpot_s == ()
    (reason,) = window.broken
    assert "4 of 4 answers do not tell how many tokens each chunk holds" in reason
    assert "5 tokens in 3 chunks, of which the first may hold 1 to 3" in reason


def test_as_many_chunks_as_tokens_hold_one_each() -> None:
    chunks = [(number * STEP_S, [number]) for number in range(1, 6)]
    window = read(recording(steady().map(lambda one: regrouped(one, chunks, usage=5))), LOAD)
    assert (window.broken, window.facts["counted_by"]) == ((), "final_usage")
    assert window.tpot_s == pytest.approx([STEP_S] * 4)


def test_two_points_are_no_pace() -> None:
    chunks = [(2 * STEP_S, [1, 2]), (5 * STEP_S, [3, 4, 5])]
    (reason,) = read(recording(steady().map(lambda one: regrouped(one, chunks))), LOAD).broken
    assert "4 of 4 answers arrived in too few pieces to be timed (in one, 3 of the 3 tokens" in reason


def test_ramp_and_company_are_not_measured() -> None:
    parts = steady()
    parts.ramp[0] = exchange(-1.0, step_s=0.2, tokens=3, asked=3)
    parts.company[-1] = exchange(parts.company[-1].sent_s, step_s=0.5)
    assert read(recording(parts), LOAD).tpot_s == pytest.approx([STEP_S] * 4)


def test_without_counters_it_is_a_fact_and_no_failure() -> None:
    window = read(recording(steady()), LOAD)
    assert window.broken == ()
    assert window.unchecked.endswith("(the server has no /metrics of vLLM)")


def test_missing_tokens_break_the_window() -> None:
    parts = steady()
    parts.measured[3] = replace(exchange(parts.measured[3].sent_s, tokens=3))
    (reason,) = read(recording(parts), LOAD).broken
    assert "1 of 8 answers do not have the tokens asked for (one has 3 of 5, finish reason 'length')" in reason


def test_a_server_that_serves_one_by_one_breaks_the_window() -> None:
    each = iter(range(100))
    parts = steady().map(lambda one: exchange(next(each) * 0.06))
    assert "asked for concurrency 2, but at most 1 streams" in " ".join(read(recording(parts), LOAD).broken)


@pytest.mark.parametrize(("admitted", "broken"), [(32, False), (31, False), (30, True), (28, True)])
def test_a_server_that_admits_fewer_streams_than_asked_breaks_the_window(admitted: int, broken: bool) -> None:
    """One of many may always be in its prefill; a server that keeps four waiting decodes the others faster."""
    served, asked = (Load(streams, 1, 128, 64) for streams in (admitted, 32))
    reasons = read(recording(steady(served)), asked).broken
    assert any(f"asked for concurrency 32, but at most {admitted} streams" in reason for reason in reasons) is broken


def test_a_window_of_one_answer_is_asked_for_no_trend() -> None:
    """Its context only grows, and with it the time per token: on any server."""
    load = Load(1, 1, 1024, 1)
    assert read(recording(slowing(load, 0.06)), load).broken == ()


def test_one_answer_that_keeps_company_in_one_piece_does_not_end_the_check_of_the_servers_own_count() -> None:
    load = Load(8, 1, 64, 24)
    parts, wrong = steady(load), counted(load, tpot_sum=2 * steady(load).count * STEP_S)
    first = parts.company[0]
    parts.company[0] = replace(first, pieces=tuple((first.pieces[-1][0], data) for _, data in first.pieces))
    reasons = " ".join(read(recording(parts, counters=wrong), load).broken)
    assert "TPOT" in reasons, reasons


def test_answers_in_one_piece_break_the_window_and_give_no_sample() -> None:

    def in_one(one: Exchange) -> Exchange:
        return replace(one, pieces=((one.pieces[-1][0], b"".join(data for _, data in one.pieces)),))

    window = read(recording(steady().map(in_one)), LOAD)
    assert window.tpot_s == ()
    assert "4 of 4 answers arrived in one piece" in window.broken[0]


def test_compilation_breaks_the_window() -> None:
    line = "WARNING Triton kernel JIT compilation during inference: f. This causes a latency spike"
    assert line in read(recording(steady(), log=line + "\n"), LOAD).broken[0]


def test_counters_break_the_window() -> None:
    window = read(recording(steady(), counters=counted(prefix_hits=16.0)), LOAD)
    assert "16 tokens came from the prefix cache" in window.broken[0]


def test_the_cross_check_limit_is_the_loads() -> None:
    counters = counted(tpot_sum=steady().count * STEP_S * 1.05)
    assert read(recording(steady(), counters=counters), LOAD).broken
    assert not read(recording(steady(), counters=counters), replace(LOAD, cross_check=0.1)).broken


def test_a_failed_request_fails_the_window() -> None:
    broken = Exchange(0.0, ((0.1, b'data: {"error": "out of memory"}\n\n'),), 5)
    with pytest.raises(ServerError, match="out of memory"):
        read(recording(replace(steady(), company=[broken])), LOAD)


LOADS = st.builds(
    Load,
    concurrency=st.integers(1, 40),
    prompt_tokens=st.just(1),
    output_tokens=st.integers(32, 128),
    requests=st.integers(1, 20),
)


@settings(max_examples=30)
@given(LOADS, st.floats(1e-4, 0.1))
def test_measured_requests_run_at_full_concurrency(load: Load, step_s: float) -> None:
    window = read(recording(steady(load, step_s)), load)
    assert window.broken == ()
    assert window.tpot_s == pytest.approx([step_s] * load.requests)
    assert window.output_tok_s == pytest.approx(load.concurrency / step_s, rel=0.05)


@given(st.integers(1, 128), st.integers(2, 256))
def test_first_answers_spread_the_streams_evenly_over_the_time_of_one(concurrency: int, tokens: int) -> None:
    load = Load(concurrency, 1, tokens, 1)
    phases = sorted((ramp - 1) % tokens for ramp in load.ramp)
    assert all(load.shortest <= ramp < tokens + load.shortest for ramp in load.ramp)
    # In any stretch of an answer as many begin as its length asks for, give or take one.
    for low, high in combinations(range(0, tokens, max(1, tokens // 8)), 2):
        begun = sum(low <= phase < high for phase in phases)
        assert abs(begun - concurrency * (high - low) / tokens) <= 1 + 1e-9


def test_one_stream_begins_with_a_whole_answer() -> None:
    assert Load(1, 64, 128, 8).ramp == (128,)


@given(st.integers(2, 256), st.floats(-2, 2))
def test_company_stays_until_the_last_is_measured_and_an_eighth_longer_at_most(tokens: int, share: float) -> None:
    load = Load(2, 1, tokens, 1)
    company = load.company(share)
    assert load.shortest <= company <= tokens
    assert company >= min(tokens, share * tokens)
    assert company <= max(load.shortest, (max(share, 0.0) + 1 / 8) * tokens + 1)
    assert company >= tokens / 8, "or the others would flood a server whose last answer is late with short ones"


def slowing(load: Load, change: float) -> Parts:
    """A server whose steps become longer, by `change` from the beginning of the window to its end, along a line."""
    parts = steady(load)
    begins, ends = (max(one.pieces[-1][0] for one in some) for some in (parts.ramp, parts.measured))

    def later(at_s: float) -> float:
        gone = (at_s - begins) / (ends - begins)
        return at_s + (change * gone / 2 * (at_s - begins) if gone > 0 else 0.0)

    def slower(one: Exchange) -> Exchange:
        return Exchange(later(one.sent_s), tuple((later(at), data) for at, data in one.pieces), one.asked_tokens)

    return Parts(*(list(map(slower, part)) for part in (parts.ramp, parts.measured, parts.company)))


@pytest.mark.parametrize("streams", [1, 8, 32])
@pytest.mark.parametrize("change", [-0.05, 0.05])
def test_a_window_that_is_not_stationary_is_broken_and_says_by_how_much(streams: int, change: float) -> None:
    load = Load(streams, 1, 128, max(8, 2 * streams))
    (reason,) = read(recording(slowing(load, change)), load).broken
    assert re.match(rf"the rate is not stationary: the time per token moves by \{'+-'[change < 0]}[45]\.\d%", reason)
    assert re.search(r"from \d+\.\d{3} ms in its first sixteenth to \d+\.\d{3} ms in its last", reason)
    assert reason.endswith(
        f"comes by chance once in {math.factorial(16) // 2} windows): the server, or its host, is not at rest yet"
    )
    assert reason.cause is Cause.WINDOW


def test_a_trend_too_small_to_matter_breaks_nothing_and_is_a_fact() -> None:
    load = Load(1, 1, 128, 8)
    window = read(recording(slowing(load, 0.01)), load)
    assert window.broken == ()
    assert window.facts["trend"] == pytest.approx(
        {"change": 0.01 * 15 / 16, "chance": 2 / math.factorial(16)}, rel=0.05
    )


def test_a_window_too_short_for_a_trend_has_none() -> None:
    load = Load(1, 1, 24, 8)
    window = read(recording(slowing(load, 0.5)), load)
    assert (window.broken, window.parts) == ((), ())
    assert "trend" not in window.facts


@pytest.mark.parametrize("field", ["concurrency", "prompt_tokens", "output_tokens", "requests"])
def test_impossible_loads_are_refused(field: str) -> None:
    with pytest.raises(BadInput, match=f"{field} is 0; it must be at least"):
        replace(LOAD, **{field: 0})
