"""The tree of exceptions, drawn once.

DecodegateError
├── BadInput      an option, marker, ini value, file or environment that the user can mend
├── GangError     the ranks could not do what they were asked
│   ├── RankRaised   one or more ranks raised an exception
│   ├── RankDied     a rank, or torchrun above it, is gone
│   └── RankHung     a rank did not answer before its deadline
└── ServerError   the inference server did not start, died, or broke the protocol
    └── ServerHung   it was silent past its deadline
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from .cause import Cause, Finding
from .printable import printable_lines
from .redaction import redact_text


class DecodegateError(Exception):
    """Base of every error that decodegate raises on purpose.

    Errors quote files, servers, logs and command lines: no secret and nothing that a terminal or a CI runner would obey
    is in their text, whoever wrote it.

    cause: what is behind it. about: what tells it from other errors of that cause, the whole text unless it is known
    better. why: a line that says why where the first line of the text does not, such as an exception of a log.
    repeats: the error that this one only says again; it is then the same failure.
    """

    usual: ClassVar[Cause] = Cause.EXCEPTION

    def __init__(
        self,
        text: object = "",
        *,
        cause: Cause | None = None,
        about: str = "",
        why: str = "",
        repeats: DecodegateError | None = None,
    ) -> None:
        shown = printable_lines(redact_text(str(text)))
        super().__init__(shown)
        self.cause: Cause = repeats.cause if repeats else cause or self.usual
        self.about: str = repeats.about if repeats else printable_lines(redact_text(about)) or shown
        self._why = printable_lines(redact_text(why))
        self._repeats = repeats

    @property
    def origin(self) -> DecodegateError:
        """The error that was the first to say so: this one, unless it repeats another."""
        return self._repeats.origin if self._repeats else self

    @property
    def brief(self) -> str:
        """Kind, first line and reason, in one line; of the origin, for an error that repeats it."""
        if self._repeats:
            return self._repeats.brief

        head = next((line.strip() for line in str(self).splitlines() if line.strip()), "")
        reason = f": {self._why}" if self._why and self._why not in head else ""
        return f"{type(self).__name__}: {head.removesuffix(':') if reason else head}{reason}"

    @property
    def finding(self) -> Finding:
        """What a report says of it: kind and text, with the cause."""
        return Finding(f"{type(self).__name__}: {self}", self.cause, self.about, self.brief)


class BadInput(DecodegateError):
    """The user gave something unusable; the message names it and says what to do."""

    usual = Cause.BAD_INPUT


def unreadable(path: Path, error: OSError) -> BadInput:
    """The error for a file of the user's that `error` kept from being read."""
    return BadInput(f"{path}: cannot be read: {error.strerror}; check the path and its permissions")


class GangError(DecodegateError):
    """A gang of ranks could not do what it was asked."""


class RankRaised(GangError):
    """One or more ranks raised; the earliest is shown as the cause."""


class RankDied(GangError):
    """A rank, or the torchrun above it, ended without answering."""

    usual = Cause.CRASH


class RankHung(GangError):
    """A rank stayed silent past its deadline; the message holds its last stack."""

    usual = Cause.HANG


class ServerError(DecodegateError):
    """The inference server failed; the message quotes the end of its log."""

    usual = Cause.SERVER


class ServerHung(ServerError):
    """The inference server did not send a token, or a page, before a deadline."""

    usual = Cause.HANG
