"""Servers that misbehave as servers in public do, over real HTTP: what is measured of them, and what is said."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from statistics import fmean
from typing import Any

import pytest
from aiohttp import web
from loops import complete, windows
from scripted import STREAM, TOKENS, Handler, ScriptedServer, answer, as_asked, event, streaming, token

from pytest_decodegate.client import client as client_module
from pytest_decodegate.client import http1
from pytest_decodegate.client.endpoint import Endpoint
from pytest_decodegate.errors import BadInput, ServerError, ServerHung
from pytest_decodegate.measure import load
from pytest_decodegate.measure.window import Load
from pytest_decodegate.resources import progress
from pytest_decodegate.serving import pages
from pytest_decodegate.serving.server import attach

PACE_SECONDS = 0.012
LOAD = Load(1, prompt_tokens=8, output_tokens=24, requests=2)


def grouped(sizes: list[int], counted_by: str, paces: list[float], pace_s: float = PACE_SECONDS) -> Handler:
    """Tokens at an exact pace, in chunks of `sizes`, each sent when its last token is made; `paces` gets the real one.

    counted_by: what the server tells: "ids", "usage" in each chunk, or "sum" at the end.
    """

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=STREAM)
        await response.prepare(request)
        total, made, written = sum(sizes), 0, []
        began = time.monotonic()
        for size in sizes:
            made += size
            await asyncio.sleep(began + made * pace_s - time.monotonic())
            choice: dict[str, Any] = {"text": "x" * size, "finish_reason": "length" if made == total else None}
            body: dict[str, Any] = {"choices": [choice]}
            if counted_by == "ids":
                choice["token_ids"] = [5] * size
            elif counted_by == "usage":
                body["usage"] = {"completion_tokens": made}

            written.append(time.monotonic())
            await response.write(event(body))

        await response.write(event({"choices": [], "usage": {"completion_tokens": total}}) + event("[DONE]"))
        if len(sizes) > 1:
            paces.append((written[-1] - written[0]) / (total - sizes[0]))

        return response

    return handle


GROUPINGS = {
    "one by one": [1] * 24,
    "a burst first": [12] + [1] * 12,
    "a burst last": [1] * 12 + [12],
    "threes": [3] * 8,
    "uneven": [5, 1, 2, 4, 1, 1, 5, 3, 2],
}


@pytest.mark.parametrize(
    ("grouping", "counted_by"),
    [*((name, "ids") for name in GROUPINGS), ("a burst first", "usage"), ("uneven", "usage")],
)
def test_the_pace_is_read_whatever_the_grouping(scripted: ScriptedServer, grouping: str, counted_by: str) -> None:
    paces: list[float] = []
    scripted.completion = grouped(GROUPINGS[grouping], counted_by, paces)
    (window,) = windows(attach(scripted.url), LOAD)
    # What the server really did, request by request; the old formula is off by half with a burst first.
    assert fmean(window.tpot_s) == pytest.approx(fmean(paces), rel=0.2)


def test_a_burst_first_of_which_only_the_sum_is_told_is_refused(scripted: ScriptedServer) -> None:
    scripted.completion = grouped(GROUPINGS["a burst first"], "sum", [])
    (window,) = windows(attach(scripted.url), LOAD)
    assert window.tpot_s == ()
    assert "the first may hold 1 to 12" in window.broken[0]


def test_one_piece_is_refused(scripted: ScriptedServer) -> None:
    scripted.completion = grouped([24], "ids", [])
    (window,) = windows(attach(scripted.url), LOAD)
    assert "2 of 2 answers arrived in one piece" in window.broken[0]


def test_events_without_tokens_are_no_progress(scripted: ScriptedServer) -> None:
    scripted.completion = streaming([token(1), *[event({"choices": []})] * 2000], pause_s=0.02)
    with pytest.raises(ServerHung, match=r"nothing new for 0\.4 s.*; 1 of 4 tokens had come"):
        complete(scripted, stall_seconds=0.4)


def test_done_ends_an_answer_whatever_the_connection_does(scripted: ScriptedServer) -> None:
    done = asyncio.Event()

    async def silent(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=STREAM)
        await response.prepare(request)
        for piece in answer():
            await response.write(piece)

        await done.wait()  # until the client has left
        return response

    scripted.completion = silent
    timing = complete(scripted, stall_seconds=3600.0)
    assert timing.tokens == TOKENS
    scripted._loop.call_soon_threadsafe(done.set)


def test_done_inside_a_text_ends_nothing(scripted: ScriptedServer) -> None:
    first = event({"choices": [{"text": "data: [DONE]", "token_ids": [1], "finish_reason": None}]})
    scripted.completion = streaming([first, *answer()[1:]], pause_s=0.1)
    assert complete(scripted).tokens == TOKENS


def test_a_connection_that_was_closed_after_an_answer_is_replaced(scripted: ScriptedServer) -> None:
    async def closing(request: web.Request) -> web.StreamResponse:
        response = await as_asked(pause_s=0.002)(request)
        await response.write_eof()
        assert request.transport
        request.transport.close()  # although it had promised to keep it
        return response

    scripted.completion = closing
    (window,) = windows(attach(scripted.url), Load(2, 8, TOKENS, 6))
    assert len(window.ttft_s) == 6


def breaking(after: int, asked: list[int]) -> Handler:
    """Break the connection after so many bytes of an answer."""

    async def handle(request: web.Request) -> web.StreamResponse:
        asked.append(after)
        assert request.transport
        request.transport.write((b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + token(1))[:after])
        await asyncio.sleep(0.05)
        request.transport.abort()
        return web.Response()

    return handle


@pytest.mark.parametrize(("after", "requests"), [(0, 2), (1, 1), (60, 1), (1000, 1)])
def test_a_request_is_sent_again_once_and_never_after_the_first_byte(
    scripted: ScriptedServer, after: int, requests: int
) -> None:
    asked: list[int] = []
    scripted.completion = breaking(after, asked)
    with pytest.raises(ServerError) as caught:
        complete(scripted)

    assert len(asked) == requests
    assert ("1 of 4 tokens" in str(caught.value)) == (after == 1000)


def test_an_endless_answer_is_bounded(scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MOST_ANSWER_BYTES", 2**20)
    sent: list[int] = []

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=STREAM)
        await response.prepare(request)
        for number in range(10_000):
            sent.append(number)
            await response.write(b": " + b"x" * 65_536 + b"\n\n")

        return response

    scripted.completion = endless
    with pytest.raises(ServerError, match="the answer is longer than 1 MiB, and is not read on"):
        complete(scripted)

    assert len(sent) < 1000


def dripping(head: bytes) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(request: web.Request) -> web.StreamResponse:
        assert request.transport
        request.transport.write(head)
        while not request.transport.is_closing():
            request.transport.write(b" ")
            await asyncio.sleep(0.01)

        return web.Response()

    return handle


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: "])
def test_a_page_that_drips_has_a_deadline(monkeypatch: pytest.MonkeyPatch, head: bytes) -> None:
    monkeypatch.setattr(client_module, "PAGE_SECONDS", 0.3)
    drip = dripping(head)

    async def models(self: ScriptedServer, request: web.Request) -> web.StreamResponse:
        return await drip(request)

    monkeypatch.setattr(ScriptedServer, "_list_models", models)
    server = ScriptedServer()
    try:
        with pytest.raises(ServerError, match=r"asked for /v1/models: nothing new for 0\.3 s"):
            attach(server.url)
    finally:
        server.close()


def test_a_page_of_counters_that_never_comes_is_none(scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "PAGE_SECONDS", 0.2)
    scripted.completion = streaming(answer(), pause_s=0.01)

    async def hang(self: ScriptedServer, request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(3600)
        return web.Response()

    monkeypatch.setattr(ScriptedServer, "_show_metrics", hang)
    server = ScriptedServer()
    server.completion = scripted.completion
    try:
        (window,) = windows(attach(server.url), Load(1, 8, TOKENS, 2))
    finally:
        server.close()

    assert window.unchecked.endswith("(the server has no /metrics of vLLM)")


def test_a_server_of_chats_alone_is_told_by_the_path_that_is_missing(scripted: ScriptedServer) -> None:
    async def missing(request: web.Request) -> web.StreamResponse:
        return web.json_response({"detail": "Not Found"}, status=404)

    scripted.completion = missing
    with pytest.raises(ServerError, match="it serves 'the-model', but not at /v1/completions, where decodegate asks"):
        complete(scripted)


def test_a_redirect_names_where_it_leads(scripted: ScriptedServer) -> None:
    async def elsewhere(request: web.Request) -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": "/elsewhere"})

    scripted.completion = elsewhere
    with pytest.raises(ServerError, match="HTTP 307 and redirects to '/elsewhere': give the URL that this leads to"):
        complete(scripted)


def test_models_behind_a_redirect_are_refused_by_its_location(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pytest_decodegate.serving.server.fetch", lambda *_: client_module.HttpReply(301, "", "https://b/")
    )
    with pytest.raises(BadInput, match="/v1/models redirects to 'https://b/': give the URL"):
        attach("http://a")


def test_a_model_that_is_named_needs_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_decodegate.serving.server.fetch", lambda *_: client_module.HttpReply(404, "Not Found"))
    assert attach("http://a", model="m").given_facts == {"model": "m", "max_model_len": "unknown"}
    with pytest.raises(
        ServerError, match=r"HTTP 404 and lists no model; .* --perf-server-model NAME\. It says: 'Not F"
    ):
        attach("http://a")


def test_bytes_that_are_no_http_are_quoted(unused_tcp: int) -> None:
    with pytest.raises(ServerError, match=r"not an HTTP/1\.1 (answer|server).*: b'SSH"):
        pages.fetch(Endpoint(f"http://127.0.0.1:{unused_tcp}", "m"), "/v1/models")


@pytest.fixture
def unused_tcp() -> Iterator[int]:
    """The port of a server that speaks another protocol."""
    import socket
    import threading

    with socket.create_server(("127.0.0.1", 0)) as listening:

        def greet() -> None:
            for _ in range(2):  # it is asked again, as no byte of an answer was HTTP
                try:
                    with listening.accept()[0] as connection:
                        connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
                        connection.recv(1000)
                except OSError:
                    return

        thread = threading.Thread(target=greet, daemon=True)
        thread.start()
        yield listening.getsockname()[1]


UPGRADE = """
    import pytest
    from pytest_decodegate.metric import Metric
    from pytest_decodegate.measure.window import Load


    @pytest.mark.perf
    def test_tpot(perf, server):
        perf.measure_tpot(Metric.of("tpot", "serving", tolerance=0.3), server, Load(1, 4, 24, 2))
"""


@pytest.mark.parametrize(("told", "verdict"), [("ids", "REGRESSED"), ("sum", "INVALID")])
def test_a_server_twice_as_slow_does_not_pass_by_holding_tokens_back(
    pytester: pytest.Pytester, scripted: ScriptedServer, told: str, verdict: str
) -> None:
    """With 18 of 24 tokens in its first chunk it was the faster one by the old formula, at half the pace.

    A regression costs twice as many windows: it is confirmed.
    """
    slow = ScriptedServer()
    scripted.completion = grouped([1] * 24, "ids", [], PACE_SECONDS / 2)
    slow.completion = grouped([18] + [1] * 6, told, [], PACE_SECONDS)
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(UPGRADE)
    stacks = (f"--perf-base=server={scripted.url}", f"--perf-candidate=server={slow.url}")
    try:
        pytester.runpytest_inprocess(
            "-m", "perf", *stacks, "--perf-report=report", "--perf-replicates=4", "--perf-max-replicates=4"
        )
    finally:
        slow.close()

    rows = [json.loads(line) for line in (pytester.path / "report/results.jsonl").read_text().splitlines()]
    (row,) = (row for row in rows if "verdict" in row)
    assert row["verdict"] == verdict
    if verdict == "REGRESSED":
        assert row["change"] > 0.5


WEDGED = """
    import pytest
    from pytest_decodegate.metric import Metric
    from pytest_decodegate.measure.window import Load

    pytestmark = pytest.mark.perf


    @pytest.mark.parametrize("name", ["first", "second"])
    def test_tpot(perf, server, name):
        perf.measure_tpot(Metric.of(name, "cpu"), server, Load(1, 4, 4, 2))


    def test_quality(perf, server):
        perf.measure_quality(server)
"""


def test_a_wedged_server_costs_one_deadline_and_is_a_row_each_time(
    pytester: pytest.Pytester, scripted: ScriptedServer
) -> None:
    scripted.completion = streaming([token(1)], then_hang=True)
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(WEDGED)
    options = ("-m", "perf", f"--perf-server={scripted.url}", "--perf-warmup-timeout=1", "--perf-report=report", "-v")
    result = pytester.runpytest_inprocess(*options)
    assert result.parseoutcomes() == {"failed": 3}
    assert len(scripted.prompts) == 1
    rows = [json.loads(line) for line in (pytester.path / "report/results.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "event" not in row]
    assert [(row["metric"], row["verdict"]) for row in rows] == [
        (name, "INVALID") for name in ("first", "second", "quality")
    ]
    assert rows[0]["reasons"][0]["text"].endswith("overloaded; 1 of 4 tokens had come")
    assert rows[1]["reasons"][0]["text"].startswith("a server hung in this run, and is asked nothing more: ")
    result.stdout.fnmatch_lines(["first: INVALID: *", "first *INVALID *0 x window", "second *INVALID *0 x window"])


def test_one_of_two_stacks_that_hangs_ends_the_other_tests(pytester: pytest.Pytester, scripted: ScriptedServer) -> None:
    hanging = ScriptedServer()
    hanging.completion = streaming([token(1)], then_hang=True)
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(WEDGED)
    stacks = (f"--perf-base=server={scripted.url}", f"--perf-candidate=server={hanging.url}")
    options = ("-m", "perf", "-k", "tpot", "--perf-warmup-timeout=1", "--perf-report=report")
    try:
        pytester.runpytest_inprocess(*options, *stacks)
        asked = len(hanging.prompts)
    finally:
        hanging.close()

    rows = [json.loads(line) for line in (pytester.path / "report/results.jsonl").read_text().splitlines()]
    assert asked == 1
    assert [(row["metric"], row["side"]) for row in rows if row.get("event") == "failed"] == [("first", "candidate")]
    (second,) = (row for row in rows if "event" not in row)
    assert (second["metric"], second["verdict"]) == ("second", "INVALID")
    assert second["reasons"][0]["text"].startswith("a server hung in this run, and is asked nothing more: ")


RECORD = ("--perf-record", "--perf-replicates=2")


def test_the_wait_for_a_warm_up_is_said_with_its_deadline(
    pytester: pytest.Pytester, scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "_TICK_SECONDS", 0.05)
    monkeypatch.setattr(progress, "LOG_PERIOD_SECONDS", 0.0)
    scripted.completion = streaming(answer(), pause_s=0.05)
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(WEDGED)
    result = pytester.runpytest_inprocess("-m", "perf", "-k", "first", f"--perf-server={scripted.url}", *RECORD)
    result.stdout.fnmatch_lines(["*first: warming up, 0 s, at most 900 s without a token (--perf-warmup-timeout)*"])


def test_a_server_that_fails_is_a_row_of_the_table(pytester: pytest.Pytester, scripted: ScriptedServer) -> None:
    scripted.completion = streaming([token(1), event({"error": {"message": "EngineCore died"}})])
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(WEDGED)
    result = pytester.runpytest_inprocess("-m", "perf", "-v", "-k", "tpot", f"--perf-server={scripted.url}")
    assert result.parseoutcomes() == {"failed": 2, "deselected": 1}
    result.stdout.fnmatch_lines(["*- ServerError: *EngineCore died*", "second *INVALID *0 x window"])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_the_least_that_is_read_of_a_head_is_bounded() -> None:
    reader = http1.HeadReader()
    with pytest.raises(http1.NotHttp, match="not an HTTP"):
        for _ in range(70):
            reader.feed(b"HTTP/1.1 200 OK\r\nX: " if not reader._read else b"x" * 1024)
