"""What stacks ask for and what reaches no metric of the run: a GO would say that it does nothing.

Slowdowns, which the gate would seem to have missed, and what servers are told.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..workloads.runtime.slowdown import VARIABLE, Slowdown

if TYPE_CHECKING:
    from ..settings.stack import Stack


@dataclass(frozen=True, slots=True)
class Measured:
    """A metric that was judged. ranks: of each of its gangs; 0 for a metric of servers."""

    metric: str
    ranks: int

    def is_reached_by(self, slowdown: Slowdown) -> bool:
        """Whether its bursts or its servers are longer by `one`."""
        from ..serving.slowed import reaches_servers

        if not slowdown.matches(self.metric):
            return False

        return (slowdown.rank or 0) < self.ranks if self.ranks else reaches_servers(slowdown)


def unreached(stacks: Sequence[Stack], measured: Collection[Measured], *, asked: bool = False) -> str | None:
    """Why a run that measured `measured` proves nothing of what its stacks ask for; None if it may.

    asked: whether a server was asked for answers, besides.
    """
    served = asked or any(not each.ranks for each in measured)
    return _slowed_nothing(stacks, measured) or (None if served else _told_nobody(stacks))


def _slowed_nothing(stacks: Sequence[Stack], measured: Collection[Measured]) -> str | None:
    missed = list(dict.fromkeys(_missed(stacks, measured)))
    if not missed:
        return None

    names = ", ".join(each.metric for each in measured) or "none"
    return (
        f"{VARIABLE}: {' and '.join(missed)} slowed nothing down, so nothing was seen of what it does; metrics "
        f"measured: {names}; correct the pattern, or select a test that measures what it names"
    )


def _told_nobody(stacks: Sequence[Stack]) -> str | None:
    words = list(dict.fromkeys(word for stack in stacks for word in stack.of_servers))
    if not words:
        return None

    return (
        f"{' and '.join(words)}: only servers are told that, and none was measured, so what it does was not seen; "
        "select a test that measures a server, such as tpot"
    )


def _missed(stacks: Sequence[Stack], measured: Collection[Measured]) -> Iterator[str]:
    for stack in stacks:
        for slowdown in stack.slowdowns:
            if not any(each.is_reached_by(slowdown) for each in measured):
                yield repr(slowdown.pattern) + ("" if slowdown.rank is None else f" in rank {slowdown.rank}")
