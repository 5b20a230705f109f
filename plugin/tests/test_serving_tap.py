"""What is stamped without aiohttp and what goes through it, by the bytes and over a real connection."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from hypothesis import example, given
from hypothesis import strategies as st
from loops import complete
from scripted import TOKENS, Handler, ScriptedServer, answer, streaming

from pytest_decodegate.client.client import Client
from pytest_decodegate.client.stream import read
from pytest_decodegate.client.tap import Turns, whole_chunks
from pytest_decodegate.errors import ServerError

DATA = st.binary(min_size=1, max_size=300)


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def chunked(some: list[bytes]) -> bytes:
    return b"".join(map(framed, some))


@given(st.lists(DATA, min_size=1, max_size=5))
def test_whole_chunks_are_their_data(some: list[bytes]) -> None:
    assert whole_chunks(chunked(some)) == b"".join(some)


@given(st.lists(DATA, max_size=5))
def test_the_last_chunk_is_for_aiohttp(some: list[bytes]) -> None:
    assert whole_chunks(chunked(some) + b"0\r\n\r\n") is None


@given(st.lists(st.from_regex(rb"data: [a-z{}]{1,60}\n\n", fullmatch=True), min_size=1, max_size=4), st.integers(1))
def test_part_of_a_chunk_is_for_aiohttp(events: list[bytes], cut: int) -> None:
    read = chunked(events)
    edges = {0}
    for event in events:
        edges.add(max(edges) + len(chunked([event])))

    at = cut % len(read)
    if at not in edges:
        assert whole_chunks(read[:at]) is None
        assert whole_chunks(read[at:]) is None


@given(st.binary(max_size=80) | st.text("0aF5\r\n", max_size=40).map(str.encode))
@example(b"4\r\nabcd\r\n0a5")
@example(b"\r\n\r\n")
@example(b"-1\r\n\r\n")
def test_any_bytes_are_read_and_never_grow(read: bytes) -> None:
    assert len(whole_chunks(read) or b"") <= max(len(read) - 5, 0)


def test_chunk_extensions_are_for_aiohttp() -> None:
    assert whole_chunks(b"4;name=value\r\nabcd\r\n") is None


def test_between_two_turns_there_is_room_for_reads() -> None:
    done: list[str] = []
    failures: list[object] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
        turns = Turns()

        def end(name: str) -> None:
            done.append(name)
            loop.call_soon(done.append, "read")
            if name == "second":
                raise failure

        for name in ("first", "second", "third"):
            turns.add(partial(end, name))

        while len(done) < 6:
            await asyncio.sleep(0)

    failure = OSError("broken")
    asyncio.run(run())
    assert done == ["first", "read", "second", "read", "third", "read"]
    assert failures == [failure]


@pytest.fixture
def scripted() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    yield server
    server.close()


def raw(pieces: Sequence[bytes]) -> Handler:
    """Write `pieces` to the connection as they are, status line and all, and close it."""

    async def handle(request: web.Request) -> web.StreamResponse:
        assert request.transport
        for piece in pieces:
            request.transport.write(piece)
            await asyncio.sleep(0.002)

        request.transport.close()
        return web.Response()

    return handle


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
PACKED = HEAD + b"Content-Encoding: deflate\r\n"
# Unpacked it is more than aiohttp decodes before somebody takes it.
MUCH = b": " + bytes(3_000_000) + b"\n\n" + b"".join(answer())


@pytest.mark.parametrize(
    "pieces",
    [
        [HEAD + CHUNKED, *map(framed, answer()), b"0\r\n\r\n"],
        [HEAD + CHUNKED + framed(answer()[0]), *map(framed, answer()[1:]), b"0\r\nTrailer: 1\r\n\r\n"],
        [HEAD + CHUNKED + b"".join(map(framed, answer())) + b"0\r\n\r\n"],
        [
            HEAD + CHUNKED + framed(answer()[0])[:1],
            framed(answer()[0])[1:] + b"".join(map(framed, answer()[1:])),
            b"0\r\n\r\n",
        ],
        [HEAD + CHUNKED, *(bytes([byte]) for piece in answer() for byte in framed(piece)), b"0", b"\r\n\r", b"\n"],
        [HEAD + b"Connection: close\r\n\r\n", *answer()],
        [HEAD.replace(b"1.1", b"1.0") + b"\r\n", *answer()],
        [HEAD + b"Content-Length: %d\r\n\r\n" % len(b"".join(answer())), *answer()],
        [PACKED + CHUNKED, framed(zlib.compress(MUCH)) + b"0\r\n\r\n"],
        [PACKED + b"Connection: close\r\n\r\n" + zlib.compress(MUCH)],
        [PACKED + b"Connection: close\r\n\r\n", zlib.compress(MUCH)],
    ],
    ids=[
        "chunks",
        "first with head",
        "all at once",
        "size cut",
        "bytes",
        "until close",
        "of HTTP 1.0",
        "length",
        "packed",
        "packed with head",
        "packed until close",
    ],
)
def test_every_framing_of_a_body(scripted: ScriptedServer, pieces: list[bytes]) -> None:
    scripted.completion = raw(pieces)
    assert complete(scripted).tokens == TOKENS


def test_a_body_that_ends_inside_its_framing(scripted: ScriptedServer) -> None:
    scripted.completion = raw([HEAD + CHUNKED, *map(framed, answer()[:2]), b"fff\r\n"])
    with pytest.raises(ServerError, match=rf"{scripted.url}, asked for a completion: "):
        complete(scripted)


def test_connections_are_used_again_but_not_that_of_an_answer_given_up(scripted: ScriptedServer) -> None:
    connections: list[object] = []
    written: list[float] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        connections.append(request.transport)
        if len(connections) == 2:
            return await streaming(answer()[:3], pause_s=0.02, then_hang=True, written=written)(request)

        return await streaming(answer())(request)

    async def ask() -> list[int]:
        async with Client(scripted.endpoint, stall_seconds=10.0) as client:
            await client.complete([1], output_tokens=TOKENS)
            given_up = asyncio.create_task(client.complete([2], output_tokens=TOKENS))
            while len(written) < 3:
                await asyncio.sleep(0.01)

            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up

            return [read(await client.complete([3], output_tokens=TOKENS)).tokens for _ in range(2)]

    scripted.completion = handle
    assert asyncio.run(ask()) == [TOKENS, TOKENS]
    first, given_up, new, again = map(id, connections)
    assert first == given_up
    assert new == again != first


@pytest.fixture
def certified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """A server's TLS with a certificate of its own, which every client of this test trusts."""
    if not shutil.which("openssl"):
        pytest.skip("no openssl on this host to make a certificate with")

    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=localhost")
    named = ("-addext", "subjectAltName=IP:127.0.0.1")
    out = ("-keyout", str(key), "-out", str(certificate))
    subprocess.run(["openssl", "req", "-x509", *made, *named, *out], check=True, capture_output=True)
    trusting = partial(aiohttp.TCPConnector, ssl=ssl.create_default_context(cafile=certificate))
    monkeypatch.setattr(aiohttp, "TCPConnector", trusting)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


def test_over_tls_no_byte_is_lost(certified: ssl.SSLContext) -> None:
    server = ScriptedServer(certified)
    # More than a record of TLS at once: asyncio then fills what is left of the buffer, slice by slice.
    server.completion = streaming([b": " + b"x" * 50_000 + b"\n\n", *answer()])
    try:
        assert complete(server).tokens == TOKENS
    finally:
        server.close()
