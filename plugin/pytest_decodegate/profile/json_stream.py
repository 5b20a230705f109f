"""A JSON object read member by member and its longest list item by item, so that a file of gigabytes fits.

Each value is decoded by json's own scanner from a window of the text; only the window and one item are in memory.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..errors import BadInput, unreadable

_WINDOW: Final = 2**20
_MOST_ITEM: Final = 2**26
"""Characters of one value, besides the list itself: more is no event of a profiler."""

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_BETWEEN: Final = re.compile(r"[ \t\n\r]*,[ \t\n\r]*(?=\{)")
_ENDS: Final = frozenset(",:]} \t\n\r")
"""What may stand behind a value."""

_GZIP: Final = b"\x1f\x8b"


class Member(NamedTuple):
    """One member of the object, or one item of its list: `key` is then the list's."""

    key: str
    value: Any
    is_item: bool


def members(path: Path, streamed: str) -> Iterator[Member]:
    """Members of the object in `path` (plain or gzip); the list called `streamed` comes item by item.

    Raises BadInput, with the place, for a file that cannot be read, ends early or is no such JSON.
    """
    with _opened(path) as text:
        yield from _Scanner(text, path).members(streamed)


@contextmanager
def _opened(path: Path) -> Iterator[io.TextIOBase]:
    """The text of `path`; what is wrong with the file, and not with the JSON, becomes BadInput."""
    try:
        with path.open("rb") as raw:
            packed = raw.peek(len(_GZIP))[: len(_GZIP)] == _GZIP
            plain = gzip.GzipFile(fileobj=raw) if packed else raw
            # Names come from compilers and people; a byte that is no UTF-8 must not cost the trace.
            yield io.TextIOWrapper(io.BufferedReader(plain, _WINDOW), encoding="utf-8", errors="replace")
    except EOFError as error:
        raise BadInput(f"{path}: the gzip file is truncated: copy it again, or wait until it is written") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise BadInput(f"{path}: the gzip file is damaged ({error}): copy it again") from error
    except OSError as error:
        raise unreadable(path, error) from error


class _Scanner:
    """A window of the text that moves forward. at: where in it the next value begins."""

    def __init__(self, text: io.TextIOBase, path: Path) -> None:
        self._text = text
        self._path = path
        self._window = ""
        self._at = 0
        self._passed = 0  # characters before the window
        self._decode = json.JSONDecoder().raw_decode

    def members(self, streamed: str) -> Iterator[Member]:
        """The members of the object that the text is."""
        if self._next() != "{":
            raise self._failure("is no JSON object; a trace of torch.profiler (*.pt.trace.json[.gz]) is one")

        self._at += 1
        first = True
        while self._follows("}", first):
            first = False
            key = self._value()
            if not isinstance(key, str) or self._next() != ":":
                raise self._failure("a key and a colon should stand here")

            self._at += 1
            if key == streamed and self._next() == "[":
                yield from self._items(key)
            else:
                yield Member(key, self._value(), False)

        if self._next():
            raise self._failure("more follows after the end of the object")

    def _items(self, key: str) -> Iterator[Member]:
        self._at += 1
        first = True
        while self._follows("]", first):
            first = False
            yield Member(key, self._value(), True)
            for value in self._objects():
                yield Member(key, value, True)

    def _objects(self) -> Iterator[Any]:
        """The objects after commas as far as they lie whole in the window; an object needs nothing behind it.

        Most of a trace passes here: whatever is not this simple is left to the caller's slower way.
        """
        window, at, decode, between = self._window, self._at, self._decode, _BETWEEN.match
        while comma := between(window, at):
            try:
                value, at = decode(window, comma.end())
            except (json.JSONDecodeError, RecursionError):
                return

            self._at = at
            yield value

    def _follows(self, end: str, first: bool) -> bool:
        """Whether another value follows; the comma before it, or the `end`, is passed."""
        sign = self._next()
        if sign == end or (sign == "," and not first):
            self._at += 1
        elif not sign:
            raise self._ends_early()
        elif not first:
            raise self._failure(f"is no JSON: a comma or {end!r} should stand here")

        return sign != end

    def _value(self) -> Any:
        """The value that begins here, with what ends it in the window: a number may go on otherwise, 12 as 12e+3."""
        self._next()
        while True:
            try:
                value, end = self._decode(self._window, self._at)
            except (json.JSONDecodeError, RecursionError) as error:
                problem: Exception | None = error
                may_go_on = self._may_go_on(error)
            else:
                problem, may_go_on = None, end == len(self._window) or isinstance(value, int | float)
                if self._window[end : end + 1] in _ENDS:
                    self._at = end
                    return value

            if len(self._window) - self._at > _MOST_ITEM:
                raise self._failure(f"one value of more than {_MOST_ITEM} characters") from problem
            if not self._more():
                raise (self._ends_early() if may_go_on else self._failure("is no JSON")) from problem

    def _may_go_on(self, problem: Exception) -> bool:
        """Whether the text is right as far as it goes: json then complains about its very end, or an open string."""
        if not isinstance(problem, json.JSONDecodeError):
            return True

        return problem.pos >= len(self._window.rstrip()) - 1 or "Unterminated" in problem.msg

    def _next(self) -> str:
        """The next character that is no space; "" at the end of the text."""
        while True:
            match = _SPACE.match(self._window, self._at)
            assert match is not None
            self._at = match.end()
            if self._at < len(self._window):
                return self._window[self._at]
            if not self._more():
                return ""

    def _more(self) -> bool:
        """Whether there was more text to put behind the window; what is done with leaves it."""
        # Doubled while a value is longer than the window, so that a long one is not scanned over and over.
        more = self._text.read(max(_WINDOW, len(self._window) - self._at))
        self._passed += self._at
        self._window, self._at = self._window[self._at :] + more, 0
        return bool(more)

    def _failure(self, what: str) -> BadInput:
        around = self._window[self._at : self._at + 60]
        return BadInput(f"{self._path}: at character {self._passed + self._at}, {around!r}: {what}")

    def _ends_early(self) -> BadInput:
        return BadInput(
            f"{self._path}: the JSON ends in the middle, after {self._passed + len(self._window)} characters: the "
            "profiler was stopped while it wrote, or the copy is cut: record or copy it again"
        )
