import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_decodegate.client.stream import ONE_PIECE, Exchange, RequestTiming, TokenClock, read
from pytest_decodegate.errors import ServerError

DONE = "[DONE]"


def chunk(**choice: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "finish_reason": None, **choice}]}


def with_usage(body: dict[str, Any], tokens: int) -> dict[str, Any]:
    return {**body, "usage": {"prompt_tokens": 16, "completion_tokens": tokens}}


def final_usage(tokens: int) -> dict[str, Any]:
    return with_usage({"choices": []}, tokens)


def event(body: dict[str, Any] | str) -> bytes:
    return f"data: {body if isinstance(body, str) else json.dumps(body)}\n\n".encode()


def timing_of(*timed: tuple[float, dict[str, Any] | str], asked: int = 4) -> RequestTiming:
    pieces = tuple((at_s, event(body)) for at_s, body in timed)
    return read(Exchange(sent_s=10.0, pieces=pieces, asked_tokens=asked))


def test_tokens_and_times_from_ids() -> None:
    timing = timing_of(
        (10.5, chunk(text="a", token_ids=[7])),
        (10.7, chunk(text="", token_ids=[8])),  # half a character: a token without text
        (11.1, chunk(text="bc", token_ids=[9, 10], finish_reason="length")),
        (11.2, final_usage(4)),
        (11.3, DONE),
    )
    assert (timing.tokens, timing.counted_by, timing.finish_reason) == (4, "token_ids", "length")
    assert timing.ttft_s == pytest.approx(0.5)
    assert timing.tpot_s == pytest.approx(0.6 / 3)
    assert timing.latency_s == pytest.approx(1.3)
    assert timing.itl_s is None
    assert timing.prompt_tokens == 16


def test_intervals_between_tokens_only_where_a_chunk_is_a_token() -> None:
    timing = timing_of(
        (11.0, chunk(token_ids=[1])), (11.1, chunk(token_ids=[2])), (11.3, chunk(token_ids=[3])), (11.3, DONE)
    )
    assert timing.itl_s == pytest.approx((0.1, 0.2))


def test_role_only_first_chunk_is_no_token() -> None:
    timing = timing_of(
        (10.1, with_usage(chunk(delta={"role": "assistant", "content": ""}), 0)),
        (10.5, with_usage(chunk(delta={"content": "a"}), 1)),
        (10.6, with_usage(chunk(delta={"reasoning_content": "b"}), 2)),
        (10.7, DONE),
    )
    assert (timing.tokens, timing.counted_by) == (2, "continuous_usage")
    assert timing.ttft_s == pytest.approx(0.5)


def test_continuous_usage_counts_several_tokens_in_a_chunk() -> None:
    timing = timing_of(
        (11.0, with_usage(chunk(text="a"), 1)),
        (11.4, with_usage(chunk(text="bcd"), 4)),
        (11.5, final_usage(4)),
        (11.5, DONE),
    )
    assert (timing.tokens, timing.counted_by, timing.arrivals) == (4, "continuous_usage", ((11.0, 1), (11.4, 3)))


@pytest.mark.parametrize("in_own_chunk", [True, False])
def test_final_usage_counts_and_text_times(in_own_chunk: bool) -> None:
    last = chunk(text="c", finish_reason="length")
    tail = [(11.2, last), (11.3, final_usage(9))] if in_own_chunk else [(11.2, with_usage(last, 9))]
    timing = timing_of((11.0, chunk(text="a")), (11.1, chunk(text="b")), *tail, (11.4, DONE))
    assert (timing.tokens, timing.counted_by) == (9, "final_usage")
    assert (timing.first_token_s, timing.last_token_s) == (11.0, 11.2)
    assert timing.itl_s is None


def test_without_ids_or_usage_it_refuses_and_names_the_flag() -> None:
    with pytest.raises(ServerError, match="--enable-force-include-usage"):
        timing_of((11.0, chunk(text="a")), (11.1, chunk(text="b", finish_reason="length")), (11.1, DONE))


def test_ids_and_usage_must_agree() -> None:
    with pytest.raises(ServerError, match="2 tokens in the chunks, 3 in the usage"):
        timing_of((11.0, chunk(token_ids=[1])), (11.1, chunk(token_ids=[2])), (11.2, final_usage(3)), (11.2, DONE))


@pytest.mark.parametrize(
    "error",
    [
        event({"error": {"message": "engine is dead"}}),
        event({"object": "error", "error": "engine is dead"}),
        event({"object": "error", "message": "engine is dead", "code": 500}),
        b'event: error\ndata: {"detail": "engine is dead"}\n\n',
    ],
)
def test_error_inside_a_good_stream(error: bytes) -> None:
    pieces = ((11.0, event(chunk(token_ids=[1]))), (11.1, error), (11.2, event(DONE)))
    with pytest.raises(ServerError, match=r"after 1 of 4 tokens.*engine is dead"):
        read(Exchange(10.0, pieces, 4))


def test_missing_done_is_fine_after_a_finish_reason() -> None:
    timing = timing_of((11.0, chunk(token_ids=[1])), (11.1, chunk(token_ids=[2], finish_reason="length")))
    assert timing.tokens == 2


def test_early_close() -> None:
    with pytest.raises(ServerError, match="closed the stream after 1 of 4 tokens"):
        timing_of((11.0, chunk(token_ids=[1])))


def test_empty_answer() -> None:
    with pytest.raises(ServerError, match="after 0 of 4 tokens"):
        read(Exchange(10.0, (), 4))


@pytest.mark.parametrize(
    "data",
    [
        "not json",
        "[1]",
        "17",
        '{"choices": [1]}',
        '{"choices": {"a": 1}}',
        '{"choices": [], "usage": 3}',
        '{"choices": [], "usage": {"completion_tokens": "many"}}',
        '{"choices": [{"token_ids": 5}]}',
    ],
)
def test_what_is_not_of_the_format_is_quoted(data: str) -> None:
    with pytest.raises(ServerError, match="the server sent") as caught:
        timing_of((11.0, data))

    assert data[:20] in str(caught.value)


def test_a_single_token_has_no_time_per_token() -> None:
    assert timing_of((11.0, chunk(token_ids=[1], finish_reason="length")), (11.0, DONE), asked=1).tpot_s is None


@given(st.lists(st.integers(1, 3), min_size=2, max_size=20), st.lists(st.integers(0, 10**6), max_size=10))
def test_any_cut_of_the_bytes_gives_the_same_tokens(sizes: list[int], places: list[int]) -> None:
    body = b"".join(event(chunk(text="é", token_ids=[5] * size)) for size in sizes)
    stream = body + event(final_usage(sum(sizes))) + event(DONE)
    edges = [0, *sorted(place % len(stream) for place in places), len(stream)]
    pieces = tuple((float(number), stream[start:end]) for number, (start, end) in enumerate(pairwise(edges)))
    timing = read(Exchange(0.0, pieces, sum(sizes)))
    assert timing.tokens == sum(sizes) == sum(tokens for _, tokens in timing.arrivals)
    assert 0 <= timing.first_token_s <= timing.last_token_s <= timing.ended_s == len(pieces) - 1


CHUNKS = st.builds(
    lambda ids, finish, usage: {
        "choices": [{"text": "é", "token_ids": ids, "finish_reason": finish}],
        **({"usage": {"completion_tokens": usage}} if usage else {}),
    },
    st.lists(st.integers(0, 9), max_size=3),
    st.sampled_from([None, "length"]),
    st.integers(0, 3),
)
FAILED = ('{"error": "dead"}', '{"object": "error", "message": "dead"}')
ODD = st.sampled_from(["{}", "", "1", "{},{}", *FAILED, '{"choices": 5}', '{"usage": null}', DONE, '{"a": "x', 'y"}'])


@given(st.lists(st.lists(CHUNKS | ODD, min_size=1, max_size=3), max_size=4))
def test_the_quick_way_of_reading_gives_what_the_slow_one_gives(reads: list[list[dict[str, Any] | str]]) -> None:
    data = [b"".join(map(event, bodies)) for bodies in reads] + [event(final_usage(2)), event(DONE)]
    outcomes = []
    for start in (b"", b": a comment, so the slow way\n\n"):
        pieces = tuple((float(number), start + piece if number == 0 else piece) for number, piece in enumerate(data))
        try:
            outcomes.append(str(read(Exchange(0.0, pieces, 2))))
        except ServerError as error:
            outcomes.append(str(error))

    assert outcomes[0] == outcomes[1]


def sent(groups: list[list[int]], pace_s: float, counted_by: str, late_s: float = 0.0) -> Exchange:
    """Tokens made every `pace_s`; those of a group leave when its last is made, in chunks of so many tokens.

    late_s: between two chunks of a group, as a network cuts a burst.
    """
    pieces, made = [], 0
    total = sum(map(sum, groups))
    for group in groups:
        at_s = (made + sum(group)) * pace_s
        for number, tokens in enumerate(group):
            made += tokens
            choice: dict[str, Any] = {"text": "x" * tokens, "finish_reason": "length" if made == total else None}
            body: dict[str, Any] = {"choices": [choice]}
            if counted_by == "token_ids":
                choice["token_ids"] = [7] * tokens
            elif counted_by == "continuous_usage":
                body["usage"] = {"completion_tokens": made}

            pieces.append((at_s + number * late_s, event(body)))

    pieces += [(pieces[-1][0], event(final_usage(total))), (pieces[-1][0], event(DONE))]
    return Exchange(0.0, tuple(pieces), total)


GROUPS = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=5), min_size=1, max_size=12)


@given(GROUPS, st.floats(1e-4, 0.5), st.sampled_from(["token_ids", "continuous_usage", "final_usage"]), st.booleans())
@example([[1, 20, 40, 40], [1]], 0.5, "token_ids", False)
def test_any_grouping_of_tokens_gives_the_pace_or_nothing(
    groups: list[list[int]], pace_s: float, counted_by: str, is_cut: bool
) -> None:
    late_s = 0.002 * pace_s if is_cut else 0.0
    timing = read(sent(groups, pace_s, counted_by, late_s))
    # A burst that the network cuts ends later by what its chunks are apart: the resolution.
    resolution = 5 * late_s / pace_s
    if len(groups) == 1:
        assert timing.tpot_s is None  # all at once: no time has passed
    elif timing.tpot_s is None and timing.is_counted:  # as good as all at once
        assert sum(map(sum, groups[1:])) < 1.1 * ONE_PIECE * sum(groups[0])
    elif timing.tpot_s is None:
        assert sum(map(sum, groups)) > sum(map(len, groups))
    else:
        assert timing.tpot_s == pytest.approx(pace_s, rel=1e-6 + resolution)


@given(st.integers(1, 100), st.integers(2, 100), st.floats(1e-3, 0.1))
def test_a_slower_server_never_looks_faster_by_what_it_holds_back(held: int, then: int, pace_s: float) -> None:
    honest = read(sent([[1]] * (held + then), pace_s, "token_ids")).tpot_s
    slower = read(sent([[held], *[[1]] * then], 1.2 * pace_s, "token_ids")).tpot_s
    assert honest
    assert slower == pytest.approx(1.2 * honest)


def test_one_token_per_arrival_is_timed_as_it_always_was() -> None:
    times = [11.0, 11.02, 11.09, 11.1, 11.2]  # tokens that come unevenly, but not at once
    timing = timing_of(*((at_s, chunk(token_ids=[1])) for at_s in times), (11.2, DONE), asked=5)
    assert timing.tpot_s == pytest.approx((times[-1] - times[0]) / (len(times) - 1))


def test_the_clock_of_tokens_runs_with_tokens_alone() -> None:
    clock = TokenClock(1.0)
    pieces = [(2.0, b": ping\n\n"), (3.0, event({"choices": []})), (4.0, event(chunk(text="")))]
    assert clock.read(pieces) == 1.0
    pieces += [(5.0, event(chunk(token_ids=[1]))[:9]), (6.0, event(chunk(token_ids=[1]))[9:])]
    assert clock.read(pieces) == 6.0
    pieces += [(7.0, event(with_usage(chunk(text=""), 2))), (8.0, event(with_usage(chunk(text=""), 2)))]
    assert (clock.read(pieces), clock.tokens) == (7.0, 2)
    assert clock.read([*pieces, (9.0, event(final_usage(2))), (9.5, event("nonsense")), (9.9, event(DONE))]) == 7.0
