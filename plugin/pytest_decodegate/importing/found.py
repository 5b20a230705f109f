"""What a foreign file says, and how its fields are read: a wrong one is named with file, field and value."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NoReturn

from ..baseline.schema import Session
from ..errors import BadInput
from ..metric import Json, Metric
from ..printable import printable_values

_LARGEST: Final = 1e30
"""Beyond it and below its inverse no baseline holds a value, and sums leave the range of a float."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to import."""

    path: Path
    content: bytes

    def element_id(self, number: int) -> str:
        """The id of the sessions of the file's so-manieth result, from 1: the same file gives the same."""
        digest = hashlib.sha256(self.content).hexdigest()[:12]
        return f"import-{digest}" if number == 1 else f"import-{digest}-{number}"


@dataclass(frozen=True, slots=True)
class Found:
    """What one result says.

    sessions: one of each metric, or several of a command that was run again. machine, stack: what it says of them; it
    is silent about the rest.
    """

    tool: str
    sessions: tuple[tuple[Metric, Session], ...]
    machine: Mapping[str, Json] = field(default_factory=dict)
    stack: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fields:
    """An object inside a JSON file. where: its path and the pointer to the object, as errors begin."""

    where: str
    values: Mapping[str, Any]

    def wrong(self, name: str, reason: str) -> BadInput:
        """The error for a field, with its value."""
        value = f"{self.values[name]!r:.80}" if name in self.values else "missing"
        return BadInput(f"{self.where}: field {name!r} is {value}: {reason}")

    def wrong_element(self, name: str, index: int, reason: str) -> BadInput:
        """The error for one element of a list, with its place and value."""
        return BadInput(f"{self.where}: field '{name}[{index}]' is {self.values[name][index]!r:.80}: {reason}")

    def wrong_length(self, name: str, reason: str) -> BadInput:
        """The error for a list of another length than the rest of the file tells."""
        return BadInput(f"{self.where}: field {name!r} has {len(self.values[name])} elements: {reason}")

    def number(self, name: str, *, least: float = 0.0) -> float:
        """A finite number above `least`, of a size that a baseline can hold."""
        value = self.values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least < value < _LARGEST:
            raise self.wrong(name, f"a finite number above {least:g} is needed")
        if 0 < value < 1 / _LARGEST:
            raise self.wrong(name, f"a number above {1 / _LARGEST:g} is needed")

        return float(value)

    def count(self, name: str) -> int:
        """A whole number above zero."""
        value = self.number(name)
        if value != int(value):
            raise self.wrong(name, "a whole number is needed")

        return int(value)

    def numbers(self, name: str) -> list[float]:
        """A list of finite numbers, none below zero."""
        values = self._list(name, "finite numbers")
        for index, value in enumerate(values):
            if not _is_number(value):
                raise self.wrong_element(name, index, "a finite number is needed, as in the whole list")

        return values

    def text(self, name: str) -> str:
        """A text that is not empty."""
        value = self.values.get(name)
        if not isinstance(value, str) or not value:
            raise self.wrong(name, "a text is needed")

        return value

    def plain(self, name: str) -> Json:
        """A text, number, truth or nothing, as a contract holds it; None if it is missing."""
        value = self.values.get(name)
        if isinstance(value, float) and not math.isfinite(value):
            raise self.wrong(name, "no JSON number, and no limit either")
        if value is not None and not isinstance(value, str | int | float):
            raise self.wrong(name, "a text or number is needed")

        return value

    def objects(self, name: str) -> list[Fields]:
        """A list of objects."""
        values = self._list(name, "objects")
        for index, value in enumerate(values):
            if not isinstance(value, dict):
                raise self.wrong_element(name, index, "an object is needed, as in the whole list")

        return [Fields(f"{self.where}, {name}[{index}]", value) for index, value in enumerate(values)]

    def object(self, name: str) -> Fields:
        """An object."""
        value = self.values.get(name)
        if not isinstance(value, dict):
            raise self.wrong(name, "an object is needed")

        return Fields(f"{self.where}, {name}", value)

    def inner(self, name: str) -> Fields:
        """An object that may be missing; then one without fields."""
        return self.object(name) if self.values.get(name) is not None else Fields(f"{self.where}, {name}", {})

    def _list(self, name: str, what: str) -> list[Any]:
        value = self.values.get(name)
        if not isinstance(value, list):
            raise self.wrong(name, f"a list of {what} is needed")

        return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _LARGEST


def documents(source: SourceFile) -> list[Fields]:
    """The JSON objects in a file: it is one, a list of them (a sweep), or they stand one after the other (JSON lines).

    Empty if the file is no JSON at all; raises BadInput if it begins as JSON and is damaged, with line and column.
    """
    text = source.content.decode("utf-8-sig", errors="replace")
    if text.lstrip()[:1] not in ("{", "["):
        return []

    try:
        return list(_documents(str(source.path), text))
    except json.JSONDecodeError as error:
        _refuse_damaged(source, error)
    except RecursionError:
        return []


def _documents(path: str, text: str) -> Iterator[Fields]:
    decoder, at, found = json.JSONDecoder(), 0, 0
    while (at := _next(text, at)) < len(text):
        line = text.count("\n", 0, at) + 1
        value, at = decoder.raw_decode(text, at)
        alone = not found and _next(text, at) == len(text)
        where = path if alone else f"{path}, line {line}"
        found += 1
        elements = value if isinstance(value, list) else [value]
        for index, element in enumerate(elements):
            place = f"[{index}]" if isinstance(value, list) else ""
            if not isinstance(element, dict):
                raise BadInput(f"{where}: of no known tool: {place} is {element!r:.80}, which is no object")

            yield Fields(where + place, printable_values(element))


def _next(text: str, at: int) -> int:
    """Where the next value begins; text.lstrip() would copy a file of many lines as often."""
    while at < len(text) and text[at].isspace():
        at += 1

    return at


def _refuse_damaged(source: SourceFile, error: json.JSONDecodeError) -> NoReturn:
    raise BadInput(
        f"{source.path}: of no known tool: it begins as JSON, but at line {error.lineno}, column {error.colno} stands "
        f"{error.doc[error.pos : error.pos + 20]!r} ({error.msg}); was it cut short while it was written?"
    ) from None


def joined_cards(where: str, known: Sequence[Json], listed: Sequence[Json]) -> list[Json]:
    """The cards of one host that two runs name, of which one may have used fewer; raises BadInput if they differ."""
    unnamed: Json = {"name": None}
    for index, (first, other) in enumerate(zip(known, listed, strict=False)):
        if first != other and unnamed not in (first, other):
            raise BadInput(
                f"{where}: field 'gpus[{index}]' is {other!r}, elsewhere {first!r}: a baseline is of one machine"
            )

    return list(known if len(known) > len(listed) else listed)


def instant(text: str, pattern: str) -> datetime | None:
    """A local time as a tool writes it; None if it does not fit."""
    try:
        return datetime.strptime(text, pattern).astimezone()
    except ValueError:
        return None
