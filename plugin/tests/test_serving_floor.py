import json
import sys
import time
import urllib.request

import pytest

from pytest_decodegate.client.floor import STEP_SECONDS, client_floor
from pytest_decodegate.client.http1 import whole_chunks
from pytest_decodegate.client.paced import ending, frames, paced
from pytest_decodegate.client.stream import Exchange, read
from pytest_decodegate.errors import ServerError


def test_the_floor_is_measured_once_and_says_so() -> None:
    floor = client_floor(4)
    assert client_floor(4) is floor
    # Off by less than a step in sixty: what it really is depends on who else uses these cores.
    assert abs(floor.tpot_error) < 1
    assert 0 < floor.cpu_seconds < STEP_SECONDS
    assert str(floor).startswith("the client at 4 streams and 400 tok/s reads a known TPOT ")


def test_the_frames_are_an_answer() -> None:
    steps = [frames(0, 2, 3, ids=True, usage=True), frames(2, 3, 3, ids=True, usage=True)]
    data = [whole_chunks(step) for step in steps]
    pieces = tuple((2.0 * number, piece) for number, piece in enumerate(data) if piece)
    timing = read(Exchange(0.0, pieces, 3))
    assert (timing.tokens, timing.counted_by, timing.tpot_s, timing.prompt_tokens) == (3, "token_ids", 2.0, 16)
    assert ending(3).endswith(b"[DONE]\n\n\r\n0\r\n\r\n")


@pytest.mark.parametrize(("ids", "usage"), [(False, False), (True, False), (False, True)])
def test_the_frames_say_what_was_asked_for(ids: bool, usage: bool) -> None:
    first = frames(0, 1, 2, ids=ids, usage=usage)
    assert (b"token_ids" in first, b"usage" in first) == (ids, usage)


def test_the_server_says_how_it_really_sent() -> None:
    body = json.dumps({"max_tokens": 5, "stream_options": {}}).encode()
    with paced(0.005) as server:
        began_s = time.monotonic()
        with urllib.request.urlopen(f"{server.endpoint.url}/v1/completions", data=body) as answer:
            assert answer.read().count(b"data: ") == 5 + 2

        took_s = time.monotonic() - began_s
        (sent_s,) = server.sent_tpot_s()
        assert 0 <= 4 * sent_s <= took_s
        assert took_s > 3 * server.step_seconds
        assert server.sent_tpot_s() == []


def test_a_server_that_does_not_start_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ServerError, match="ended with exit code 1"), paced(0.01):
        pass
