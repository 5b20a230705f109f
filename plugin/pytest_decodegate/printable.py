"""Foreign text made harmless where it enters: nothing in it moves a cursor, hides a word or commands a CI runner."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any, Final

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]{0,30}m")
_CONTROL: Final = re.compile(r"\x1b\[[0-9;?]{0,30}[A-Za-z]")
_COMMAND: Final = re.compile(r"^[ \t]*::|##\[", re.MULTILINE)
"""What GitHub Actions and Azure Pipelines take for a command when it stands in the output of a job."""


def without_colours(text: str) -> str:
    """`text` as the program meant it that coloured it: without colours and moves of the cursor (ECMA-48, CSI)."""
    return _CONTROL.sub("", text)


def as_on_disk(text: str) -> str:
    """`text` with names of files as they are on the disk, in UTF-8; under an ASCII locale Python holds their bytes as
    lone surrogates, and the same name would differ from run to run.
    """
    return text.encode(errors="surrogateescape").decode(errors="replace")


def printable(text: str) -> str:
    """`text` in one line, as it reads: what cannot be seen or would break the line is written as an escape.

    Colours are left out. What has been made printable stays as it is.
    """
    if not text.isprintable():
        text = "".join(map(_character, _COLOUR.sub("", text)))

    return _COMMAND.sub(_spelled, text)


def printable_lines(text: str) -> str:
    """The same for a text whose lines and tabs stay; a carriage return, which could hide a line, ends it."""
    if not text.replace("\n", "").replace("\t", "").isprintable():
        text = _COLOUR.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
        text = "".join(character if character in "\n\t" else _character(character) for character in text)

    return _COMMAND.sub(_spelled, text)


def printable_values(value: Any) -> Any:
    """A JSON value with every text in it, keys as well, made printable; other values as they are."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable_values(key): printable_values(inner) for key, inner in value.items()}

    return [printable_values(inner) for inner in value] if isinstance(value, list) else value


def _character(character: str) -> str:
    # Not `isprintable`: that also tells of characters that this Python does not know yet, and of wide spaces.
    unseen = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    return character.encode("unicode_escape").decode() if unseen else character


def _spelled(match: re.Match[str]) -> str:
    """The command with its first character as an escape."""
    command = match[0].lstrip()
    indent = match[0].removesuffix(command)
    return f"{indent}\\x{ord(command[0]):02x}{command[1:]}"
