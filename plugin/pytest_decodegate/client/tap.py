"""Between a connection and aiohttp: stamps bytes the moment they are read, at a fraction of what a task a chunk costs.

asyncio's own way allocates 256 KiB for every read, and aiohttp's wakes a task for each: together three quarters of the
time that a client spends on a token. Here a read costs a stamp, and nobody is woken before the end of the answer.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import aiohttp
from aiohttp.client_proto import ResponseHandler

# One for all: the one thread that measures copies a read out before the next. A view, since TLS fills slices of it.
_BUFFER = memoryview(bytearray(65_536))
_HEXADECIMAL = b"0123456789abcdefABCDEF"
_END = b"\r\n\r\n"  # of every chunked body, with trailers or without (RFC 9112, section 7.1)

Piece = tuple[float, bytes]


class Turns:
    """Callbacks, one in each turn of the event loop: between two of them other streams are read and stamped.

    Streams of one batch end together. To end one takes as long as to stamp twenty, so the last would be stamped late.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def add(self, callback: Callable[[], None]) -> None:
        """Run `callback` in a turn of its own, after those that were added before."""
        self._waiting.append(callback)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        callback = self._waiting[0]
        try:
            callback()
        finally:
            self._waiting.popleft()
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._next)


class Tap(asyncio.BufferedProtocol):
    """Records the body of one streamed answer, from its headers on.

    pieces: what each read brought and when, with transfer and content encoding removed; what came together with the
    headers has the time at which aiohttp handed those on. turns: shared by the streams of one loop.
    """

    def __init__(self, response: aiohttp.ClientResponse, turns: Turns) -> None:
        self.pieces: list[Piece] = []
        self._unread: list[Piece] = []
        self._turns = turns
        self._began_s = time.monotonic()
        self._content = response.content
        self._take(self._began_s)
        coding = response.headers.get("Transfer-Encoding", "").lower()
        self._is_plain = coding == "chunked" and "Content-Encoding" not in response.headers
        connection = response.connection
        if connection and connection.transport and not self._content.is_eof():
            self._transport = connection.transport
            assert isinstance(connection.protocol, ResponseHandler)
            self._handler = connection.protocol
            self._transport.set_protocol(self)

    async def ended(self, *, stall_seconds: float) -> None:
        """Wait for the end of the answer; raises TimeoutError if no event comes for so long, or what aiohttp raises."""
        while not self._content.is_eof():
            if error := self._content.exception():
                raise error

            left_seconds = self._progress_s() + stall_seconds - time.monotonic()
            if left_seconds <= 0:
                raise TimeoutError

            with suppress(TimeoutError):
                async with asyncio.timeout(left_seconds):
                    await self._content.wait_eof()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Where asyncio puts the next bytes."""
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        """Stamp a read. What it means is looked at later, unless the body may end with it."""
        read = _BUFFER[:nbytes].tobytes()
        self._unread.append((time.monotonic(), read))
        if not self._is_plain:
            self._read()
        elif read.endswith(_END) or nbytes < len(_END):
            self._turns.add(self._read)

    def eof_received(self) -> None:
        """Hand on that the server has closed its side."""
        self._read()
        self._handler.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Hand on the end of the connection, which may be that of the answer and complete it."""
        self._read()
        self._handler.connection_lost(exc)
        self._take(time.monotonic())

    def pause_writing(self) -> None:
        """Hand on that the request is sent faster than it is taken."""
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        """Hand on that the request may be sent on."""
        self._handler.resume_writing()

    def _read(self) -> None:
        """Take the data out of what was stamped."""
        unread, self._unread = self._unread, []
        for at_s, read in unread:
            self._decode(at_s, read)

        # At once: from its end on the connection may be given to another request.
        if unread and self._content.is_eof():
            self._transport.set_protocol(self._handler)

    def _decode(self, at_s: float, read: bytes) -> None:
        """Show aiohttp a read only if it is more than whole chunks: between two of them its state is one."""
        if self._is_plain and (data := whole_chunks(read)) and not self._content.is_eof():
            self.pieces.append((at_s, data))
            return

        self._handler.data_received(read)
        self._take(at_s)

    def _take(self, now_s: float) -> None:
        """Record what aiohttp has decoded by now."""
        # Until nothing is left: taking some lets aiohttp decode on, where much was sent at once or unpacked.
        while self._content.exception() is None and (data := self._content.read_nowait()):
            self.pieces.append((now_s, data))

    def _progress_s(self) -> float:
        """When an event arrived last; comments do not count."""
        self._read()
        following = b""
        for at_s, data in reversed(self.pieces):
            if b"data:" in data + following:
                return at_s

            following = (data + following)[:4]

        return self._began_s


def whole_chunks(read: bytes) -> bytes | None:
    """The data in `read` if that is nothing but whole chunks of a chunked body (RFC 9112, section 7.1), else None.

    None for the last chunk too, which has no data. Mistaking the middle of a chunk for whole ones would take a line of
    nothing but hexadecimal digits that by chance gives the length of the rest: JSON in an event has no such line.
    """
    data = []
    end = 0
    while end < len(read):
        line_end = read.find(b"\r\n", end)
        digits = read[end:line_end]
        if line_end <= end or digits.strip(_HEXADECIMAL):
            return None

        start = line_end + 2
        end = start + int(digits, 16) + 2
        if end == start + 2 or read[end - 2 : end] != b"\r\n":
            return None

        data.append(read[start : end - 2])

    return data[0] if len(data) == 1 else b"".join(data)
