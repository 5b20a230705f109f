import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.client.sse import MOST_LINE_BYTES, Event, EventParser
from pytest_decodegate.errors import ServerError

STREAM = (
    '﻿: keep-alive\r\n\r\ndata: {"text": "grün 🙂"}\n\ndata: one\rdata:two\r\revent: error\r\ndata:  three\r\n\r\n'
    "id: 7\nretry: 5\n\nnonsense\n\ndata\n\ndata: [DONE]"
).encode()
EVENTS = [
    Event("message", '{"text": "grün 🙂"}'),
    Event("message", "one\ntwo"),
    Event("error", " three"),
    Event("message", ""),
    Event("message", "[DONE]"),
]


def parse(pieces: list[bytes]) -> list[Event]:
    parser = EventParser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + parser.close()


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[start:end] for start, end in pairwise(edges)]


def test_reads_comments_types_line_ends_and_an_open_last_event() -> None:
    assert parse([STREAM]) == EVENTS


def test_byte_by_byte() -> None:
    assert parse([bytes([byte]) for byte in STREAM]) == EVENTS


@given(st.lists(st.integers(min_value=0)))
def test_cuts_make_no_difference(places: list[int]) -> None:
    assert parse(cut(STREAM, places)) == EVENTS


@given(st.text("abdt: \r\n🙂", max_size=60).map(str.encode), st.lists(st.integers(min_value=0), max_size=8))
def test_cuts_make_no_difference_in_any_stream(stream: bytes, places: list[int]) -> None:
    assert parse(cut(stream, places)) == parse([stream])


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), min_size=1), min_size=1))
def test_data_survives(data: list[str]) -> None:
    stream = "".join(f"data: {line}\n\n" for line in data).encode()
    assert [event.data for event in parse([stream])] == data


def test_events_come_as_soon_as_they_are_complete() -> None:
    parser = EventParser()
    assert parser.feed(b"data: 1\n") == []
    assert parser.feed(b"\n") == [Event("message", "1")]
    assert parser.close() == []


def test_broken_utf8_does_not_stop_the_parser() -> None:
    assert [event.data for event in parse([b"data: \xff\n\ndata: 2\n\n"])] == ["�", "2"]


@given(
    st.lists(st.sampled_from(["data: 1", "data: ", "data:2", ": ping", "event: e", "x", ""]), max_size=9), st.booleans()
)
def test_pieces_of_whole_events_read_as_any_other(lines: list[str], again: bool) -> None:
    stream = "".join(line + "\n" for line in lines).encode()
    pieces = [b"data: 0\n\n", stream, *([stream] if again else [])]
    assert parse(pieces) == parse([bytes([byte]) for byte in b"".join(pieces)])


def cpu_seconds(kilobytes: int) -> float:
    """Of a line of so many KiB in reads of 1 KiB, the least of three."""
    found = []
    for _ in range(3):
        parser, began = EventParser(), time.process_time()
        for _ in range(kilobytes):
            parser.feed(b"x" * 1024)

        assert parser.feed(b"\n\n") == []
        found.append(time.process_time() - began)

    return min(found)


def test_a_line_costs_what_its_bytes_cost() -> None:
    short, long = cpu_seconds(256), cpu_seconds(4000)
    # Quadratic it would cost sixteen times as much a byte.
    assert long / 4000 < 4 * max(short, 1e-4) / 256


def test_a_line_without_end_is_refused() -> None:
    parser = EventParser()
    with pytest.raises(ServerError, match="a line of more than 4 MiB, which is no chunk of an answer"):
        for _ in range(MOST_LINE_BYTES // 65_536 + 1):
            parser.feed(b"x" * 65_536)


@given(st.lists(st.sampled_from([b"data: a", b"\r", b"\n", b"b"]), max_size=12))
def test_line_ends_that_are_cut_make_no_difference(pieces: list[bytes]) -> None:
    assert parse(pieces) == parse([b"".join(pieces)])
