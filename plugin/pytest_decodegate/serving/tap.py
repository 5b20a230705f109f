"""Between a connection and aiohttp: stamps bytes the moment they are read, at a fraction of what a task a chunk costs.

asyncio's own way allocates 256 KiB for every read, and aiohttp's wakes a task for each: together three quarters of the
time that a client spends on a token. Here a read costs a stamp, and nobody is woken before the end of the answer.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import aiohttp
from aiohttp.client_proto import ResponseHandler

# One for all: the one thread that measures copies a read out before the next. A view, since TLS fills slices of it.
_BUFFER = memoryview(bytearray(65_536))
_HEXADECIMAL = b"0123456789abcdefABCDEF"

Piece = tuple[float, bytes]


class Tap(asyncio.BufferedProtocol):
    """Records the body of one streamed answer, from its headers on.

    pieces: what each read brought and when, with transfer and content encoding removed; what came together with the
    headers has the time at which aiohttp handed those on.
    """

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.pieces: list[Piece] = []
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
        """Stamp a read. aiohttp sees it only if it is more than whole chunks: between two of them its state is one."""
        now_s = time.monotonic()
        read = _BUFFER[:nbytes].tobytes()
        if self._is_plain and (data := whole_chunks(read)):
            self.pieces.append((now_s, data))
            return

        self._handler.data_received(read)
        self._take(now_s)
        # At once: from its end on the connection may be given to another request.
        if self._content.is_eof():
            self._transport.set_protocol(self._handler)

    def eof_received(self) -> None:
        """Hand on that the server has closed its side."""
        self._handler.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Hand on the end of the connection, which may be that of the answer and complete it."""
        self._handler.connection_lost(exc)
        self._take(time.monotonic())

    def pause_writing(self) -> None:
        """Hand on that the request is sent faster than it is taken."""
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        """Hand on that the request may be sent on."""
        self._handler.resume_writing()

    def _take(self, now_s: float) -> None:
        """Record what aiohttp has decoded by now."""
        # Until nothing is left: taking some lets aiohttp decode on, where much was sent at once or unpacked.
        while self._content.exception() is None and (data := self._content.read_nowait()):
            self.pieces.append((now_s, data))

    def _progress_s(self) -> float:
        """When an event arrived last; comments do not count."""
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
