"""A connection of our own to an HTTP/1.1 server: bytes are stamped the moment they are read, and decoded later.

A client that wakes a task for each chunk spends three quarters of its time on that. Here a read costs a stamp, and
nobody is woken before an answer ends, or before its deadline.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import cast

from .http1 import Body, Head, HeadReader, NotHttp, Origin

Piece = tuple[float, bytes]

# One for all: the one thread that measures copies a read out before the next. A view, since TLS fills slices of it.
_BUFFER = memoryview(bytearray(65_536))

_PLAIN_END = b"\n\n\r\n"  # of a chunk that ends with an event
_DONE = re.compile(rb"[\r\n]data: ?\[DONE\][ \t]*[\r\n]")
_DONE_BYTES = 16  # that line with both its ends
_WAKE_SECONDS = 3600.0
_CLOSING_SECONDS = 0.25  # between [DONE] and the end of the body, which some servers never send


class LoopTurns:
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


class HttpAnswer:
    """What comes back for one request: `head` once it has come, then `pieces`: what each read brought, and when.

    began: whether a byte of it has come. failure: why it will not come to its end. is_done: whether the stream has said
    [DONE], which ends it whatever the connection does. most_bytes: of the body; more is a failure.
    """

    def __init__(self, turns: LoopTurns, most_bytes: int) -> None:
        self.head: Head | None = None
        self.pieces: list[Piece] = []
        self.failure: OSError | None = None
        self.is_done = False
        self.began = False
        self._turns = turns
        self._most_bytes = most_bytes
        self._unread: list[Piece] = []
        self._unread_bytes = 0
        self._reader = HeadReader()
        self._body: Body | None = None
        self._is_plain = False
        self._is_cut = False
        self._tail = b"\n"  # of the data so far
        self._changed = asyncio.Event()

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come."""
        return self.failure is not None or (self._body is not None and self._body.ended)

    @property
    def leaves_connection(self) -> bool:
        """Whether the connection may carry another request."""
        body, head = self._body, self.head
        return self.failure is None and bool(head and body and head.keeps_alive and body.ended and not body.spare)

    async def until_head(self) -> Head:
        """The head; raises what broke the connection before."""
        while self.head is None:
            if self.failure:
                raise self.failure

            await self._wait()

        return self.head

    async def until_end(self, deadline: Callable[[], float]) -> None:
        """Wait for the end of the body, or for [DONE]; raises TimeoutError at `deadline()`, asked anew when it is over.

        Raises what broke the connection before. A body that follows [DONE] no further is left alone.
        """
        loop = asyncio.get_running_loop()
        while not self.has_ended:
            was_done = self.is_done
            left_seconds = _CLOSING_SECONDS if was_done else deadline() - time.monotonic()
            if left_seconds <= 0:
                raise TimeoutError

            # At most for so long: the time of a deadline is no reason to sleep for ever.
            timer = loop.call_later(min(left_seconds, _WAKE_SECONDS), self._changed.set)
            try:
                await self._wait()
            finally:
                timer.cancel()
            if was_done and not self.has_ended:
                return

        if self.failure and not self.is_done:
            raise self.failure

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()
        self.look()

    def take(self, read: bytes) -> None:
        """Stamp a read. What it means is looked at later, unless something may begin or end with it."""
        self._unread.append((time.monotonic(), read))
        self._unread_bytes += len(read)
        plainly = self._is_plain and not self._is_cut and read.endswith(_PLAIN_END) and b"[DONE]" not in read
        if not plainly or self._unread_bytes > self._most_bytes:
            self._is_cut = True  # until it was looked at
            self._turns.add(self.look)

    def look(self) -> None:
        """Decode what was stamped so far, and wake who waits if that changes anything."""
        unread, self._unread, self._unread_bytes = self._unread, [], 0
        before = (self.head, self.is_done, self.has_ended)
        try:
            for at_s, read in unread:
                self._decode(at_s, read)
        except NotHttp as error:
            self.failure = self.failure or error

        if unread:
            self._is_cut = not unread[-1][1].endswith(_PLAIN_END)
        if (self.head, self.is_done, self.has_ended) != before:
            self._changed.set()

    def _decode(self, at_s: float, read: bytes) -> None:
        self.began = True
        if self._body is None:
            found = self._reader.feed(read)
            if found is None:
                return

            self.head, read = found
            self._body = Body(self.head, self._most_bytes)
            self._is_plain = self.head.is_plain
        if self.is_done:
            self._body.feed(read)
        elif data := self._body.feed(read):
            self.pieces.append((at_s, data))
            self._note_done(data)

    def _note_done(self, data: bytes) -> None:
        """See [DONE] on a line of its own, also where reads cut it; inside JSON no line can begin."""
        before, is_whole = self._tail, data.endswith(b"\n")
        if b"[DONE]" in data or (before != b"\n" and b"[DONE]" in before + data[:_DONE_BYTES]):
            self.is_done = _DONE.search(before + data) is not None

        # Of whole lines, as nearly all data is, nothing but the end of the last one matters to the next.
        self._tail = b"\n" if is_whole else (before + data)[-_DONE_BYTES:]

    def end(self, error: Exception | None) -> None:
        """The connection is gone: the body ends with it, or never."""
        self.look()
        if not self.has_ended:
            self.failure = self._broken(error)

        self._changed.set()

    def _broken(self, error: Exception | None) -> OSError | None:
        if error:
            return error if isinstance(error, OSError) else ConnectionResetError(str(error))
        if self._body is None:
            return ConnectionResetError("the connection was closed before an answer came")
        try:
            self._body.close()
        except NotHttp as failure:
            return failure

        return None


class HttpConnection(asyncio.BufferedProtocol):
    """One connection, for one request after the other. idle_since: monotonic seconds, when its last answer ended."""

    def __init__(self) -> None:
        self.idle_since = 0.0
        self._answer: HttpAnswer | None = None
        self._unasked = b""
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, at: Origin) -> HttpConnection:
        """Connect; raises OSError."""
        _, connection = await asyncio.get_running_loop().create_connection(
            cls, at.host, at.port, ssl=_tls() if at.tls else None, server_hostname=at.host if at.tls else None
        )
        return connection

    @property
    def is_open(self) -> bool:
        """Whether a request may be sent on it, as far as this side knows."""
        return self._transport is not None and not self._transport.is_closing()

    def ask(self, request: bytes, turns: LoopTurns, most_bytes: int) -> HttpAnswer:
        """Send `request`, whose answer arrives from now on."""
        assert self._transport
        self._answer = HttpAnswer(turns, most_bytes)
        if self.is_open:
            self._transport.write(request)
        else:
            self._answer.end(self._why_closed)

        return self._answer

    @property
    def _why_closed(self) -> OSError | None:
        return NotHttp(f"not an HTTP/1.1 server: it speaks first: {self._unasked[:80]!r}") if self._unasked else None

    def close(self) -> None:
        """End it, whatever is on its way."""
        if self._transport:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by its class

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Where asyncio puts the next bytes."""
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        """Stamp a read."""
        answer = self._answer
        if answer is None or answer.has_ended:
            self._unasked = _BUFFER[:nbytes].tobytes()
            self.close()
        else:
            answer.take(_BUFFER[:nbytes].tobytes())

    def eof_received(self) -> None:
        """Let asyncio close this side, too."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the answer that was on its way."""
        if self._answer:
            self._answer.end(exc)


@cache
def _tls() -> ssl.SSLContext:
    """What is trusted: the certificates of the system, or of SSL_CERT_FILE."""
    return ssl.create_default_context()
