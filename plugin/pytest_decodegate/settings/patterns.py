"""Patterns of metric names, as --perf-only and perf_tolerance take them."""

from __future__ import annotations

import fnmatch
import re

from ..metric import literal_brackets

_BETWEEN = re.compile(r",(?![^\[\]]*\])")
"""A comma that does not stand inside brackets: tpot[c=1],mla_decode[m=8,context=1024]."""


def matches(pattern: str, metric: str) -> bool:
    """Whether a metric's name matches: * and ? as in a shell, and a bracket is itself, for metric names hold some."""
    return fnmatch.fnmatchcase(metric, literal_brackets(pattern))


def split_patterns(text: str) -> list[str]:
    """Patterns that are joined by commas; those inside brackets belong to a name."""
    return [pattern.strip() for pattern in _BETWEEN.split(text) if pattern.strip()]
