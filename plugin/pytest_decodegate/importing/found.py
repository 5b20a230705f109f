"""What a foreign file says, and how its fields are read: a wrong one is named with file, field and value."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypeGuard

from ..baseline.schema import Session
from ..errors import BadInput
from ..metric import Json, Metric
from ..printable import printable_values


@dataclass(frozen=True, slots=True)
class Source:
    """A file to import. recorded: when, if the file itself does not say so, for example its modification time."""

    path: Path
    content: bytes
    recorded: datetime

    @property
    def session_id(self) -> str:
        """The id of its sessions: the same file gives the same."""
        return f"import-{hashlib.sha256(self.content).hexdigest()[:12]}"


@dataclass(frozen=True, slots=True)
class Found:
    """What one file says.

    sessions: one of each metric. machine, stack: what it says of them; it is silent about the rest.
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

    def number(self, name: str, *, least: float = 0.0) -> float:
        """A finite number above `least`."""
        value = self.values.get(name)
        if not _is_number(value) or not least < value:
            raise self.wrong(name, f"a finite number above {least:g} is needed")

        return float(value)

    def numbers(self, name: str) -> list[float]:
        """A list of finite numbers, none below zero."""
        values = self.values.get(name)
        if not isinstance(values, list) or not all(_is_number(value) for value in values):
            raise self.wrong(name, "a list of finite numbers is needed")

        return values

    def text(self, name: str) -> str:
        """A text that is not empty."""
        value = self.values.get(name)
        if not isinstance(value, str) or not value:
            raise self.wrong(name, "a text is needed")

        return value

    def objects(self, name: str) -> list[Fields]:
        """A list of objects."""
        values = self.values.get(name)
        if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
            raise self.wrong(name, "a list of objects is needed")

        return [Fields(f"{self.where}, {name}[{index}]", value) for index, value in enumerate(values)]

    def object(self, name: str) -> Fields:
        """An object."""
        value = self.values.get(name)
        if not isinstance(value, dict):
            raise self.wrong(name, "an object is needed")

        return Fields(f"{self.where}, {name}", value)


def _is_number(value: Any) -> TypeGuard[float]:
    # An integer of JSON may have more digits than a float can hold.
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max


def document(source: Source) -> Fields | None:
    """The JSON object in a file; None if it is none."""
    try:
        values = json.loads(source.content)
    except (ValueError, RecursionError):
        return None

    return Fields(str(source.path), printable_values(values)) if isinstance(values, dict) else None


def instant(text: str, pattern: str) -> datetime | None:
    """A local time as a tool writes it; None if it does not fit."""
    try:
        return datetime.strptime(text, pattern).astimezone()
    except ValueError:
        return None
