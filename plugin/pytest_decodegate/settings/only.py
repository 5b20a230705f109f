"""Choosing perf tests by the names of their metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from ..metric import BESIDE_TPOT, beside_tpot
from .markers import declared_metrics
from .patterns import matches, split_patterns

MOST_NAMED = 8
"""Metrics that an error names as examples."""


def deselect(config: pytest.Config, items: list[pytest.Item], some: Sequence[pytest.Item]) -> int:
    """Take `some` out of `items`; how many were there."""
    out = set(some) & set(items)
    if out:
        config.hook.pytest_deselected(items=[item for item in items if item in out])
        items[:] = [item for item in items if item not in out]

    return len(out)


def deselect_others(
    config: pytest.Config, items: list[pytest.Item], perf_items: Sequence[pytest.Item], texts: Sequence[str]
) -> None:
    """Leave only perf tests in `items` whose metrics match a pattern; a test that declares none matches none.

    texts: values of --perf-only. Raises UsageError for a pattern that matches no metric of the collected tests.
    """
    patterns = [pattern for text in texts for pattern in split_patterns(text)]
    declared = {item: declared_metrics(item).names for item in perf_items}
    names = {item: (*own, *_beside(own)) for item, own in declared.items()}
    everything = list(dict.fromkeys(name for own in declared.values() for name in own))
    for pattern in patterns or [""]:
        if not any(matches(pattern, name) for own in names.values() for name in own):
            some = ", ".join(everything[:MOST_NAMED]) or "none"
            raise pytest.UsageError(
                f"--perf-only: {pattern!r} matches no metric of the {len(perf_items)} collected perf test(s), which "
                f"declare {len(everything)}: {some}{', ...' if len(everything) > MOST_NAMED else ''}"
            )

    def is_wanted(item: pytest.Item) -> bool:
        return any(matches(pattern, name) for pattern in patterns for name in names.get(item, ()))

    deselect(config, items, [item for item in items if not is_wanted(item)])


def _beside(names: Sequence[str]) -> Iterator[str]:
    """Metrics that come from the windows of those of `names` that are TPOTs: gated where the user gives them a band."""
    yield from (beside_tpot(name, stem) for name in names if "tpot" in name for stem in BESIDE_TPOT)
