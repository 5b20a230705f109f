from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.client.sse import Event, EventParser

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
