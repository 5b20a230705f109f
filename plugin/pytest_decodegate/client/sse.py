"""Server-sent events, parsed as bytes arrive."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ..errors import ServerError

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BETWEEN = b"\n\ndata: "  # from the end of one plain event to the data of the next
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """One event: its type ("message" unless the server says otherwise) and its data lines joined by newlines."""

    kind: str
    data: str


MOST_LINE_BYTES: Final = 4 * 2**20
"""Of one line: a chunk with all logprobs has some ten thousand."""


class EventParser:
    """Turns a byte stream into events; how the bytes were cut into pieces makes no difference.

    Follows the WHATWG rules with one exception: `close` also gives an event that no blank line ended, because servers
    leave that line out after their last event. Linear in the bytes; a line of more than MOST_LINE_BYTES raises
    ServerError.
    """

    def __init__(self) -> None:
        self._rest: list[bytes] = []  # of a line that has not ended
        self._rest_bytes = 0
        self._at_start = True
        self._kind = ""
        self._data: list[str] = []

    def feed(self, piece: bytes) -> list[Event]:
        """The events that `piece` completes."""
        if not (self._rest or self._data or self._kind or self._at_start) and (plain := plain_data(piece)):
            return [Event("message", data.decode(errors="replace")) for data in plain]
        if self._at_start or b"\n" in piece or b"\r" in piece or self._ends_with_return:
            return self._read(self._taken() + piece)

        self._keep(piece)
        return []

    def close(self) -> list[Event]:
        """The events that were still open when the stream ended."""
        unread = self._taken()
        if self._at_start:
            unread = unread.removeprefix(_BYTE_ORDER_MARK)
            self._at_start = False

        events = self._read(unread)
        for line in (self._taken().removesuffix(b"\r"), b""):
            events += self._line(line)

        return events

    @property
    def _ends_with_return(self) -> bool:
        return bool(self._rest) and self._rest[-1].endswith(b"\r")

    def _keep(self, rest: bytes) -> None:
        if rest:
            self._rest.append(rest)
            self._rest_bytes += len(rest)
        if self._rest_bytes > MOST_LINE_BYTES:
            raise ServerError(
                f"the server sent a line of more than {MOST_LINE_BYTES / 2**20:.0f} MiB, which is no chunk of an answer"
            )

    def _taken(self) -> bytes:
        """What was kept, which is kept no longer."""
        rest, self._rest, self._rest_bytes = b"".join(self._rest), [], 0
        return rest

    def _read(self, unread: bytes) -> list[Event]:
        if self._at_start:
            if len(unread) < len(_BYTE_ORDER_MARK):
                self._keep(unread)
                return []

            unread = unread.removeprefix(_BYTE_ORDER_MARK)
            self._at_start = False

        # A carriage return at the very end may be half of a CRLF: it waits for the next piece.
        held = b"\r" if unread.endswith(b"\r") else b""
        *lines, rest = _LINE_END.split(unread.removesuffix(b"\r"))
        self._keep(rest + held)
        return [event for line in lines for event in self._line(line)]

    def _line(self, line: bytes) -> list[Event]:
        if not line:
            return self._dispatch()

        name, _, value = line.decode(errors="replace").partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._kind = value

        return []

    def _dispatch(self) -> list[Event]:
        events = [Event(self._kind or "message", "\n".join(self._data))] if self._data else []
        self._kind, self._data = "", []
        return events


def plain_data(piece: bytes) -> list[bytes] | None:
    """The data of its events if it is nothing but events of one data line each, as nearly all pieces are; else None."""
    if not (piece.startswith(b"data: ") and piece.endswith(b"\n\n")) or b"\r" in piece:
        return None

    data = piece[6:-2].split(_BETWEEN)
    return data if piece.count(b"\n") == 2 * len(data) else None
