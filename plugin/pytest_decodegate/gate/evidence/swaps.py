"""What really ran, then and now: kernels, backends, algorithms that an upgrade may swap in silence. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ...machine.provenance import Difference
from ...metric import FOLLOWS_STACK, Json

_FIELDS = frozenset(f"contract.{name}" for name in FOLLOWS_STACK)


def is_swap(difference: Difference) -> bool:
    """Whether a difference of identities only says that something else ran."""
    return difference.field in _FIELDS


def told(swaps: Iterable[Difference]) -> tuple[str, ...]:
    """One sentence for each kernel that came, went or runs more or less often, and for each other swap."""
    return tuple(sentence for swap in swaps for sentence in _told(swap))


def _told(swap: Difference) -> Iterator[str]:
    if isinstance(swap.base, Mapping) and isinstance(swap.new, Mapping):
        yield from kernel_changes(swap.base, swap.new)
    else:
        yield f"{swap.field.removeprefix('contract.')} changed: {swap.base} -> {swap.new}"


def kernel_changes(base: Mapping[str, Json], new: Mapping[str, Json]) -> Iterator[str]:
    """What differs between two profiles, a sentence each. base, new: launches per call by kernel name."""
    for name in sorted({*base, *new}):
        before, now = base.get(name), new.get(name)
        if before is None:
            yield f"a kernel appeared: {name}, {now} a call"
        elif now is None:
            yield f"a kernel is gone: {name}, {before} a call before"
        elif before != now:
            yield f"a kernel runs {now} times a call, {before} before: {name}"
