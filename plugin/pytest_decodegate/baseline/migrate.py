"""Older versions of the `decodegate` object, brought to the newest step by step; nothing is dropped on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .schema import SCHEMA


def migrated(document: Any) -> Any:
    """`document`, a parsed file, as a file of version SCHEMA; what is of no known version comes back as it is."""
    while (step := _STEPS.get(_version(document))) is not None:
        document = step(document)

    return document


def _version(document: Any) -> int:
    head = document.get("decodegate") if isinstance(document, dict) else None
    version = head.get("schema") if isinstance(head, dict) else None
    return version if isinstance(version, int) and not isinstance(version, bool) else SCHEMA


def _from_1(document: Any) -> Any:
    """Version 2 keeps a log of edits, and where a new level was accepted."""
    benchmarks = document.get("benchmarks")
    if isinstance(benchmarks, list):
        benchmarks = [_with_accepted(entry) for entry in benchmarks]

    return {**document, "decodegate": {**document["decodegate"], "schema": 2, "log": []}, "benchmarks": benchmarks}


def _with_accepted(entry: Any) -> Any:
    # A damaged entry stays as it is, so that the reader refuses it by its pointer.
    if not isinstance(entry, dict) or not isinstance(entry.get("extra_info"), dict):
        return entry

    return {**entry, "extra_info": {**entry["extra_info"], "accepted": None}}


_STEPS: Mapping[int, Callable[[Any], Any]] = {1: _from_1}
