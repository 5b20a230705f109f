"""HTTP/1.1 by the bytes and over a real connection: every framing of a body, and connections that are used again."""

from __future__ import annotations

import asyncio
import gzip
import shutil
import ssl
import subprocess
import zlib
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import example, given
from hypothesis import strategies as st
from loops import complete
from scripted import TOKENS, Handler, ScriptedServer, answer, streaming

from pytest_decodegate.client import connection
from pytest_decodegate.client.client import Client
from pytest_decodegate.client.connection import LoopTurns
from pytest_decodegate.client.http1 import Body, Head, HeadReader, NotHttp, origin, request, whole_chunks
from pytest_decodegate.client.stream import read
from pytest_decodegate.errors import BadInput, ServerError

DATA = st.binary(min_size=1, max_size=300)


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def chunked(some: list[bytes]) -> bytes:
    return b"".join(map(framed, some))


@given(st.lists(DATA, min_size=1, max_size=5))
def test_whole_chunks_are_their_data(some: list[bytes]) -> None:
    assert whole_chunks(chunked(some)) == b"".join(some)


@given(st.lists(DATA, max_size=5))
def test_the_last_chunk_is_no_data(some: list[bytes]) -> None:
    assert whole_chunks(chunked(some) + b"0\r\n\r\n") is None


@given(st.lists(st.from_regex(rb"data: [a-z{}]{1,60}\n\n", fullmatch=True), min_size=1, max_size=4), st.integers(1))
def test_part_of_a_chunk_is_not_whole(events: list[bytes], cut: int) -> None:
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


def test_chunk_extensions_are_not_read_the_quick_way() -> None:
    assert whole_chunks(b"4;name=value\r\nabcd\r\n") is None


def test_between_two_turns_there_is_room_for_reads() -> None:
    done: list[str] = []
    failures: list[object] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
        turns = LoopTurns()

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


BODY = b"data: 1\n\n" + b"y" * 700


def decoded(head: Head, pieces: list[bytes], most_bytes: int = 10_000) -> tuple[bytes, bool]:
    body = Body(head, most_bytes)
    data = b"".join(body.feed(piece) for piece in pieces)
    return data, body.ended


def in_pieces(whole: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(whole) + 1) for place in places), len(whole)]
    return [whole[start:end] for start, end in pairwise(edges)]


def head_with(**headers: str) -> Head:
    return Head(200, "1.1", {name.replace("_", "-"): value for name, value in headers.items()})


@given(st.lists(DATA, max_size=5), st.lists(st.integers(min_value=0), max_size=8), st.booleans(), st.booleans())
def test_a_chunked_body_may_be_cut_anywhere(
    some: list[bytes], places: list[int], trailer: bool, extended: bool
) -> None:
    chunks = b"".join(b"%x%b\r\n%b\r\n" % (len(data), b";a=1" if extended else b"", data) for data in some)
    whole = chunks + b"0\r\n" + (b"A: 1\r\n" if trailer else b"") + b"\r\n"
    assert decoded(head_with(transfer_encoding="chunked"), in_pieces(whole, places)) == (b"".join(some), True)


@given(st.lists(st.integers(min_value=0), max_size=8), st.sampled_from(["gzip", "deflate", "raw"]))
def test_a_packed_body_may_be_cut_anywhere(places: list[int], coding: str) -> None:
    packer = zlib.compressobj(wbits={"gzip": 31, "deflate": 15, "raw": -15}[coding])
    packed = packer.compress(BODY) + packer.flush()
    head = head_with(content_encoding="deflate" if coding == "raw" else coding, content_length=str(len(packed)))
    assert decoded(head, in_pieces(packed, places)) == (BODY, True)


@pytest.mark.parametrize(
    ("headers", "sent", "message"),
    [
        ({"transfer_encoding": "chunked"}, b"xyz\r\n", "begins with b'xyz' and not with its length"),
        ({"transfer_encoding": "chunked"}, b"1" * 70_000, "is endless"),
        ({"content_length": "many"}, b"", "Content-Length of 'many'"),
        ({"content_encoding": "br"}, b"", "packed as 'br', although it was asked for unpacked"),
        ({"content_encoding": "gzip"}, b"no gzip", "cannot be unpacked"),
        ({}, b"x" * 2_000_000, "longer than 1 MiB"),
        ({"content_encoding": "gzip"}, gzip.compress(bytes(2_000_000)), "longer than 1 MiB"),
    ],
)
def test_what_is_no_body_is_refused(headers: dict[str, str], sent: bytes, message: str) -> None:
    with pytest.raises(NotHttp, match=message):
        decoded(head_with(**headers), [sent], most_bytes=2**20)


@given(st.lists(st.integers(min_value=0), max_size=8))
def test_a_head_may_be_cut_anywhere_and_interim_ones_are_passed_over(places: list[int]) -> None:
    interim = b"HTTP/1.1 103 Early\r\nA: 0\r\n\r\n"
    whole = interim + b"HTTP/1.1 307 Go\r\nSet: a\r\nset: b\r\nLocation: /x\r\n\r\nrest"
    reader, found, following = HeadReader(), None, b""
    for piece in in_pieces(whole, places):
        if found is not None:
            following += piece
        elif told := reader.feed(piece):
            found, following = told

    assert found == Head(307, "1.1", {"set": "a, b", "location": "/x"})
    assert following == b"rest"


@pytest.mark.parametrize(
    "sent", [b"SSH-2.0-OpenSSH\r\n", b"HTTP/2 200\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"H" + b"x" * 9]
)
def test_what_is_no_http_is_refused_at_once(sent: bytes) -> None:
    with pytest.raises(NotHttp, match="not an HTTP"):
        HeadReader().feed(sent)


def test_a_request_says_where_it_goes() -> None:
    sent = request("POST", origin("https://[::1]:8000/a b"), "/v1", {"Authorization": "Bearer k"}, b"{}")
    assert sent.startswith(b"POST /a%20b/v1 HTTP/1.1\r\nHost: [::1]:8000\r\n")
    assert sent.endswith(b"Content-Length: 2\r\n\r\n{}")
    assert request("GET", origin("http://grün.example"), "/", {}).split(b"\r\n")[1] == b"Host: xn--grn-ioa.example"


def test_a_key_with_a_line_break_is_refused_and_not_shown() -> None:
    with pytest.raises(BadInput, match="header Authorization holds a character") as caught:
        request("GET", origin("http://a"), "/", {"Authorization": "Bearer sk\r\nX: 1"})

    assert "sk" not in str(caught.value)


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
# Unpacked it is a hundred times what is sent.
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
        [HEAD + b"HttpConnection: close\r\n\r\n", *answer()],
        [HEAD.replace(b"1.1", b"1.0") + b"\r\n", *answer()],
        [HEAD + b"Content-Length: %d\r\n\r\n" % len(b"".join(answer())), *answer()],
        [PACKED + CHUNKED, framed(zlib.compress(MUCH)) + b"0\r\n\r\n"],
        [PACKED + b"HttpConnection: close\r\n\r\n" + zlib.compress(MUCH)],
        [PACKED + b"HttpConnection: close\r\n\r\n", zlib.compress(MUCH)],
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
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    connection._tls.cache_clear()
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


def test_an_untrusted_certificate_is_named_and_what_to_do_about_it(
    certified: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    connection._tls.cache_clear()
    server = ScriptedServer(certified)
    try:
        with pytest.raises(ServerError, match=r"certificate is not trusted: self.signed certificate.* SSL_CERT_FILE"):
            complete(server)
    finally:
        server.close()
        connection._tls.cache_clear()
