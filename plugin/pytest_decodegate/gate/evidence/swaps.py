"""What really ran, then and now: kernels, backends, algorithms that an upgrade may swap in silence. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ...cause import Cause, Finding
from ...machine.provenance import Difference
from ...metric import FOLLOWS_STACK, Json

_FIELDS = frozenset(f"contract.{name}" for name in FOLLOWS_STACK)


def is_swap(difference: Difference) -> bool:
    """Whether a difference of identities only says that something else ran."""
    return difference.field in _FIELDS


def swap_findings(swaps: Iterable[Difference]) -> tuple[Finding, ...]:
    """One for each kernel that came, went or runs more or less often, and for each other swap."""
    return tuple(found for swap in swaps for found in _of(swap))


def _of(swap: Difference) -> Iterator[Finding]:
    if isinstance(swap.base, Mapping) and isinstance(swap.new, Mapping):
        yield from kernel_changes(swap.base, swap.new)
    else:
        name = swap.field.removeprefix("contract.")
        yield Finding(f"{name} changed: {swap.base} -> {swap.new}", Cause.KERNEL_SWAP, name)


def kernel_changes(base: Mapping[str, Json], new: Mapping[str, Json]) -> Iterator[Finding]:
    """What differs between two profiles, a finding each. base, new: launches per call by kernel name."""
    for name in sorted({*base, *new}):
        before, now = base.get(name), new.get(name)
        if before is None:
            yield Finding(f"a kernel appeared: {name}, {now} a call", Cause.KERNEL_SWAP, name)
        elif now is None:
            yield Finding(f"a kernel is gone: {name}, {before} a call before", Cause.KERNEL_SWAP, name)
        elif before != now:
            yield Finding(f"a kernel runs {now} times a call, {before} before: {name}", Cause.KERNEL_SWAP, name)
