import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.client.counters import Counters
from pytest_decodegate.client.stream import Exchange
from pytest_decodegate.errors import BadInput, ServerError
from pytest_decodegate.measure.window import Load, Recording, read

LOAD = Load(concurrency=2, prompt_tokens=16, output_tokens=5, requests=4)
STEP_S = 0.01


def exchange(start_s: float, *, tokens: int = 5, step_s: float = STEP_S, asked: int = 5) -> Exchange:
    """An answer whose first token comes one step after `start_s`, then one token every step."""
    pieces = []
    for number in range(1, tokens + 1):
        finish = "length" if number == tokens else None
        body = {"choices": [{"text": "a", "token_ids": [number], "finish_reason": finish}]}
        pieces.append((start_s + number * step_s, f"data: {json.dumps(body)}\n\n".encode()))

    return Exchange(start_s, tuple(pieces), asked)


def steady(load: Load = LOAD, step_s: float = STEP_S) -> list[Exchange]:
    """What a perfect server would have delivered: streams in lock step, one request after the other."""
    return [
        exchange(
            number // load.concurrency * (load.output_tokens + 1) * step_s,
            step_s=step_s,
            tokens=load.output_tokens,
            asked=load.output_tokens,
        )
        for number in range(load.sent)
    ]


def counted(load: Load = LOAD, **changes: float) -> Counters:
    values = {"tpot_sum": load.sent * STEP_S, "tpot_count": load.sent, "generation_tokens": load.sent * 5}
    return Counters({**values, "prefix_hits": 0, "preemptions": 0, "queue_sum": 0, **changes})


def recording(exchanges: list[Exchange], *, log: str = "", counters: Counters | None = None) -> Recording:
    return Recording(tuple(exchanges), log, counters)


def test_a_perfect_window() -> None:
    window = read(recording(steady(), counters=counted()), LOAD)
    assert window.broken == ()
    assert window.tpot_s == pytest.approx([STEP_S] * 4)
    assert window.ttft_s == pytest.approx([STEP_S] * 4)
    assert window.output_tok_s == pytest.approx(2 * 5 / (6 * STEP_S))
    assert window.facts["requests_per_s"] == pytest.approx(2 / (6 * STEP_S))
    assert window.facts["formula"] == "tpot_client_v2"
    assert window.facts["counted_by"] == "token_ids"
    assert window.facts["latency_median_s"] == pytest.approx(5 * STEP_S)
    assert window.facts["itl_s"] == pytest.approx(dict.fromkeys(["p50", "p90", "p99", "max"], STEP_S))


def test_no_time_between_tokens_is_told_where_a_chunk_holds_several() -> None:
    body = {"choices": [{"text": "ab", "token_ids": [1, 2], "finish_reason": None}]}
    more = {"choices": [{"text": "c", "token_ids": [3], "finish_reason": None}]}
    last = {"choices": [{"text": "de", "token_ids": [4, 5], "finish_reason": "length"}]}
    exchanges = [
        replace(
            one,
            pieces=tuple(
                (one.sent_s + at, f"data: {json.dumps(chunk)}\n\n".encode())
                for at, chunk in ((0.01, body), (0.025, more), (0.05, last))
            ),
        )
        for one in steady()
    ]
    window = read(recording(exchanges), LOAD)
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
    window = read(recording([regrouped(one, chunks) for one in steady()], counters=counted()), LOAD)
    assert window.broken == ()
    assert window.tpot_s == pytest.approx([STEP_S] * 4)
    assert window.facts["first_arrival_tokens"] == 3


def test_where_only_the_sum_of_the_tokens_is_known_the_time_per_token_is_not() -> None:
    chunks = [(3 * STEP_S, [1, 2, 3]), (4 * STEP_S, [4]), (5 * STEP_S, [5])]
    window = read(recording([regrouped(one, chunks, usage=5) for one in steady()]), LOAD)
    assert window.tpot_s == ()
    (reason,) = window.broken
    assert "4 of 4 answers do not tell how many tokens each chunk holds" in reason
    assert "5 tokens in 3 chunks, of which the first may hold 1 to 3" in reason


def test_as_many_chunks_as_tokens_hold_one_each() -> None:
    chunks = [(number * STEP_S, [number]) for number in range(1, 6)]
    window = read(recording([regrouped(one, chunks, usage=5) for one in steady()]), LOAD)
    assert (window.broken, window.facts["counted_by"]) == ((), "final_usage")
    assert window.tpot_s == pytest.approx([STEP_S] * 4)


def test_two_points_are_no_pace() -> None:
    chunks = [(2 * STEP_S, [1, 2]), (5 * STEP_S, [3, 4, 5])]
    (reason,) = read(recording([regrouped(one, chunks) for one in steady()]), LOAD).broken
    assert "4 of 4 answers arrived in too few pieces to be timed (in one, 3 of the 3 tokens" in reason


def test_ramp_and_company_are_not_measured() -> None:
    exchanges = steady()
    exchanges[0] = exchange(-1.0, step_s=0.2)
    exchanges[-1] = exchange(exchanges[-1].sent_s, step_s=0.5)
    assert read(recording(exchanges), LOAD).tpot_s == pytest.approx([STEP_S] * 4)


def test_without_counters_it_is_a_fact_and_no_failure() -> None:
    window = read(recording(steady()), LOAD)
    assert window.broken == ()
    assert window.unchecked.endswith("(the server has no /metrics of vLLM)")


def test_missing_tokens_break_the_window() -> None:
    exchanges = steady()
    exchanges[3] = replace(exchange(exchanges[3].sent_s, tokens=3))
    (reason,) = read(recording(exchanges), LOAD).broken
    assert "1 of 7 answers do not have the tokens asked for (one has 3 of 5, finish reason 'length')" in reason


def test_a_server_that_serves_one_by_one_breaks_the_window() -> None:
    exchanges = [exchange(number * 0.06) for number in range(LOAD.sent)]
    assert "asked for concurrency 2, but at most 1 streams" in " ".join(read(recording(exchanges), LOAD).broken)


def test_answers_in_one_piece_break_the_window_and_give_no_sample() -> None:
    exchanges = [
        Exchange(one.sent_s, ((one.pieces[-1][0], b"".join(data for _, data in one.pieces)),), 5) for one in steady()
    ]
    window = read(recording(exchanges), LOAD)
    assert window.tpot_s == ()
    assert "4 of 4 answers arrived in one piece" in window.broken[0]


def test_compilation_breaks_the_window() -> None:
    line = "WARNING Triton kernel JIT compilation during inference: f. This causes a latency spike"
    assert line in read(recording(steady(), log=line + "\n"), LOAD).broken[0]


def test_counters_break_the_window() -> None:
    window = read(recording(steady(), counters=counted(prefix_hits=16.0)), LOAD)
    assert "16 tokens came from the prefix cache" in window.broken[0]


def test_the_cross_check_limit_is_the_loads() -> None:
    counters = counted(tpot_sum=LOAD.sent * STEP_S * 1.05)
    assert read(recording(steady(), counters=counters), LOAD).broken
    assert not read(recording(steady(), counters=counters), replace(LOAD, cross_check=0.1)).broken


def test_a_failed_request_fails_the_window() -> None:
    broken = Exchange(0.0, ((0.1, b'data: {"error": "out of memory"}\n\n'),), 5)
    with pytest.raises(ServerError, match="out of memory"):
        read(recording([*steady()[:-1], broken]), LOAD)


@given(st.integers(1, 9), st.integers(1, 20), st.floats(1e-4, 0.1))
def test_measured_requests_run_at_full_concurrency(concurrency: int, requests: int, step_s: float) -> None:
    load = Load(concurrency=concurrency, prompt_tokens=1, output_tokens=4, requests=requests)
    window = read(recording(steady(load, step_s)), load)
    assert window.broken == ()
    assert window.tpot_s == pytest.approx([step_s] * requests)


@given(st.integers(1, 64), st.integers(1, 100))
def test_how_many_are_sent(concurrency: int, requests: int) -> None:
    load = Load(concurrency=concurrency, prompt_tokens=1, output_tokens=2, requests=requests)
    in_flight = [min(load.sent - done, concurrency) for done in range(concurrency, concurrency + requests)]
    assert set(in_flight) == {concurrency}
    assert all(before >= after for before, after in pairwise([*in_flight, load.sent - concurrency - requests]))


@pytest.mark.parametrize("field", ["concurrency", "prompt_tokens", "output_tokens", "requests"])
def test_impossible_loads_are_refused(field: str) -> None:
    with pytest.raises(BadInput, match=f"{field} is 0; it must be at least"):
        replace(LOAD, **{field: 0})
