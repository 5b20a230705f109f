"""An error of many lines, in one: what happened, and why, for a list of causes. Pure functions."""

from __future__ import annotations

import re

MOST_CHARACTERS = 300
"""Of the reason: a compiler's command line has thousands."""

_INTRODUCTION = "the first cause was:"
"""Ends the first line of an error that only repeats an earlier one."""

_EXCEPTION = re.compile(r"(?:^|\s)((?:\w+\.)*\w*(?:Error|Exception): .+)")
_KIND = re.compile(r"^\w+(?:Error|Died|Hung|Raised): ")
_NUMBER = re.compile(r"[0-9.]+")


def brief(text: str) -> str:
    """The first line, and the line that says why where the first does not: a hint, or the last Python exception.

    A rank that raised has its exception in the first line; a Python that cannot start has it at the end of a log.
    """
    head, *rest = _lines(text)
    if " raised " in head:
        return head

    why = _why(rest)
    return f"{head.removesuffix(':')}: {why}" if why and why not in head else head


def alike(text: str) -> str:
    """Equal for errors with one cause: numbers and the kind of our error are what differs between metrics."""
    return _NUMBER.sub("0", _KIND.sub("", brief(text)))


def _lines(text: str) -> list[str]:
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    return lines[1:] if len(lines) > 1 and lines[0].endswith(_INTRODUCTION) else lines


def _why(rest: list[str]) -> str:
    """A hint of ours stands above the heading of a log; of a log the last exception counts."""
    if len(rest) > 1 and rest[1].endswith(":") and not rest[0].endswith(":"):
        return rest[0][:MOST_CHARACTERS]

    exceptions = [found[1] for line in rest if (found := _EXCEPTION.search(line))]
    return exceptions[-1][:MOST_CHARACTERS] if exceptions else ""
