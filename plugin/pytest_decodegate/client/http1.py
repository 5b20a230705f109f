"""HTTP/1.1 as bytes: a request to send, the head and the body of its answer. No socket, no clock.

Every step is linear in the bytes that came, and bounded: by MOST_HEAD_BYTES for a head, by the caller for a body.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import quote, urlsplit

from ..errors import BadInput

MOST_HEAD_BYTES: Final = 65_536
"""Of a status line with its headers, and of the line of a chunk's length."""

_HEXADECIMAL = b"0123456789abcdefABCDEF"
_HEAD_END = b"\r\n\r\n"
_MOST_DIGITS = 15


class NotHttp(OSError):
    """What came is no HTTP/1.1 answer, or more than was to be expected."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a URL leads. host: without brackets. named: as the Host header wants it. path: before every request's."""

    host: str
    port: int
    tls: bool
    named: str
    path: str


def origin(url: str) -> Origin:
    """The parts of a base URL; raises BadInput for a host that no DNS could hold."""
    parts = urlsplit(url)
    tls, host = parts.scheme == "https", parts.hostname or ""
    try:
        host = host if host.isascii() else host.encode("idna").decode()
    except UnicodeError as error:
        raise BadInput(f"server URL {url!r}: {host!r} is no name of a host: {error}") from error

    named = f"[{host}]" if ":" in host else host
    port = parts.port or (443 if tls else 80)
    return Origin(host, port, tls, f"{named}:{port}" if parts.port else named, quote(parts.path, safe="/%"))


def request(method: str, at: Origin, path: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    """A request as it is sent; raises BadInput for a header that no request can carry."""
    own = {"Host": at.named, "Accept": "*/*", "User-Agent": "decodegate"}
    # Compression would hold tokens back until a block is full.
    own |= {"Accept-Encoding": "identity", **headers}
    if body:
        own |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    for name, value in own.items():
        if not (value.isascii() and value.isprintable()):
            # Not quoted: it may be the API key.
            raise BadInput(f"the value of the header {name} holds a character that no header can carry")

    lines = [f"{method} {at.path}{path} HTTP/1.1", *(f"{name}: {value}" for name, value in own.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


@dataclass(frozen=True, slots=True)
class Head:
    """Status line and headers, whose names are in lower case. version: of HTTP, "1.1"."""

    status: int
    version: str
    headers: Mapping[str, str]

    @property
    def content_type(self) -> str:
        """The media type in lower case without its parameters; "" if none is given."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def is_chunked(self) -> bool:
        """Whether the body comes in chunks of told lengths."""
        return self.headers.get("transfer-encoding", "").lower().rpartition(",")[2].strip() == "chunked"

    @property
    def is_plain(self) -> bool:
        """Whether the chunks hold nothing but the body itself, as nearly all streams do."""
        return self.is_chunked and "content-encoding" not in self.headers

    @property
    def keeps_alive(self) -> bool:
        """Whether the connection may carry another request after this answer."""
        said = self.headers.get("connection", "").lower()
        return "close" not in said if self.version == "1.1" else "keep-alive" in said


class HeadReader:
    """Takes bytes until the head of an answer is complete; interim answers (1xx) are passed over."""

    def __init__(self) -> None:
        self._read = bytearray()

    def feed(self, read: bytes) -> tuple[Head, bytes] | None:
        """The head and what follows it, None if more is needed; raises NotHttp."""
        start = max(0, len(self._read) - len(_HEAD_END))
        self._read += read
        while (end := self._read.find(_HEAD_END, start)) >= 0:
            head, following = _parse_head(bytes(self._read[:end])), bytes(self._read[end + len(_HEAD_END) :])
            if head.status >= 200 or head.status == 101:
                return head, following

            self._read, start = bytearray(following), 0

        if len(self._read) > MOST_HEAD_BYTES or not b"HTTP/1.".startswith(self._read[:7]):
            raise NotHttp(f"not an HTTP/1.1 answer: {bytes(self._read[:80])!r}")

        return None


def _parse_head(raw: bytes) -> Head:
    status_line, *lines = raw.decode("latin-1").split("\r\n")
    version, _, rest = status_line.partition(" ")
    code = rest.split(" ", 1)[0]
    if not (version.startswith("HTTP/1.") and code.isdecimal() and len(code) == 3):
        raise NotHttp(f"not an HTTP/1.1 answer: {status_line[:80]!r}")

    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        name, value = name.strip().lower(), value.strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value

    return Head(int(code), version.removeprefix("HTTP/"), headers)


class _Framing(Protocol):
    """Where a body ends. ended: whether it has. spare: what came after its end."""

    ended: bool
    spare: bytes

    def feed(self, read: bytes) -> bytes: ...

    def close(self) -> None: ...


class _Chunked:
    """RFC 9112, section 7.1: chunks of told lengths, the last one empty, then trailers that are skipped.

    is_between: whether the next byte begins a chunk.
    """

    def __init__(self) -> None:
        self.is_between = True
        self.ended = False
        self.spare = b""
        self._line = bytearray()
        self._left = 0  # of the chunk that is being read, with its line end
        self._in_trailers = False

    def feed(self, read: bytes) -> bytes:
        data, at = [], 0
        while at < len(read) and not self.ended:
            if self._left:
                taken = read[at : at + self._left]
                # The last two bytes of a chunk are its line end.
                data.append(taken[: max(0, self._left - 2)])
                self._left -= len(taken)
                at += len(taken)
            else:
                at = self._feed_line(read, at)

        if self.ended:
            self.spare += read[at:]

        self.is_between = not (self._left or self._line or self._in_trailers or self.ended)
        return b"".join(data)

    def _feed_line(self, read: bytes, at: int) -> int:
        end = read.find(b"\n", at)
        self._line += read[at : end + 1 if end >= 0 else len(read)]
        if len(self._line) > MOST_HEAD_BYTES:
            raise NotHttp("the line of a chunk's length, or a trailer, is endless")
        if end < 0:
            return len(read)

        line = bytes(self._line).strip()
        self._line.clear()
        self._take_line(line)
        return end + 1

    def _take_line(self, line: bytes) -> None:
        if self._in_trailers:
            self.ended = not line
            return

        digits = line.partition(b";")[0].strip()
        if not digits or digits.strip(_HEXADECIMAL) or len(digits) > _MOST_DIGITS:
            raise NotHttp(f"a chunk of the answer begins with {line[:80]!r} and not with its length")

        size = int(digits, 16)
        self._left, self._in_trailers = (size + 2, False) if size else (0, True)

    def close(self) -> None:
        if not self.ended:
            raise NotHttp("the connection was closed in the middle of an answer")


class _Counted:
    """A body of Content-Length bytes."""

    def __init__(self, length: str) -> None:
        if not length.isdecimal():
            raise NotHttp(f"the answer has a Content-Length of {length[:80]!r}")

        self._left = int(length)
        self.ended = self._left == 0
        self.spare = b""

    def feed(self, read: bytes) -> bytes:
        data = read[: self._left]
        self._left -= len(data)
        self.ended = self._left == 0
        self.spare += read[len(data) :]
        return data

    def close(self) -> None:
        if not self.ended:
            raise NotHttp(f"the connection was closed {self._left} bytes before the end of an answer")


class _UntilClose:
    """A body that ends with its connection."""

    def __init__(self) -> None:
        self.ended = False
        self.spare = b""

    def feed(self, read: bytes) -> bytes:
        return read

    def close(self) -> None:
        self.ended = True


def _framing(head: Head) -> _Framing:
    if head.status in (204, 304):
        return _Counted("0")
    if head.is_chunked:
        return _Chunked()

    return _Counted(length) if (length := head.headers.get("content-length")) else _UntilClose()


class Body:
    """The body of an answer with transfer and content coding taken off; most_bytes: of it, more raise NotHttp."""

    def __init__(self, head: Head, most_bytes: int) -> None:
        self._framing = framing = _framing(head)
        self._chunked = framing if isinstance(framing, _Chunked) else None
        self._unpacker = _unpacker(head.headers.get("content-encoding", "identity").lower())
        self._most_bytes = self._left = most_bytes

    @property
    def ended(self) -> bool:
        """Whether all of it has come."""
        return self._framing.ended

    @property
    def spare(self) -> bytes:
        """What came after its end, which nobody asked for."""
        return self._framing.spare

    def feed(self, read: bytes) -> bytes:
        """The data that `read` brings; raises NotHttp for what is no body, and for more than was to be expected."""
        data = whole_chunks(read) if self._chunked and self._chunked.is_between else None
        if data is None:
            data = self._framing.feed(read)
        if self._unpacker and data:
            data = self._unpack(data)

        self._left -= len(data)
        if self._left < 0:
            raise NotHttp(f"the answer is longer than {self._most_bytes / 2**20:.0f} MiB, and is not read on")

        return data

    def _unpack(self, data: bytes) -> bytes:
        assert self._unpacker
        try:
            # One byte more than is left: enough to see that there is too much.
            return self._unpacker.decompress(data, self._left + 1)
        except zlib.error as error:
            raise NotHttp(f"the answer cannot be unpacked: {error}") from error

    def close(self) -> None:
        """The connection has ended; raises NotHttp unless the body has, too, or ends with it."""
        self._framing.close()


class _Deflate:
    """What servers call deflate: zlib's format, or without its head as some send it."""

    def __init__(self) -> None:
        self._inner: zlib._Decompress | None = None

    def decompress(self, data: bytes, most: int) -> bytes:
        if self._inner is None:
            self._inner = zlib.decompressobj() if data[0] & 0x0F == 8 else zlib.decompressobj(-zlib.MAX_WBITS)

        return self._inner.decompress(data, most)


def _unpacker(coding: str) -> zlib._Decompress | _Deflate | None:
    if coding in ("", "identity"):
        return None
    if coding in ("gzip", "x-gzip"):
        return zlib.decompressobj(16 + zlib.MAX_WBITS)
    if coding == "deflate":
        return _Deflate()

    raise NotHttp(f"the answer is packed as {coding[:80]!r}, although it was asked for unpacked")


def whole_chunks(read: bytes) -> bytes | None:
    """The data in `read` if that is nothing but whole chunks of a chunked body (RFC 9112, section 7.1), else None.

    The quick way for what nearly all reads are; None for the last chunk too, which has no data.
    """
    data = []
    end = 0
    while end < len(read):
        line_end = read.find(b"\r\n", end)
        digits = read[end:line_end]
        if line_end <= end or digits.strip(_HEXADECIMAL) or len(digits) > _MOST_DIGITS:
            return None

        start = line_end + 2
        end = start + int(digits, 16) + 2
        if end == start + 2 or read[end - 2 : end] != b"\r\n":
            return None

        data.append(read[start : end - 2])

    return data[0] if len(data) == 1 else b"".join(data)
