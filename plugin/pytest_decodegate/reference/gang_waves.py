"""Gangs in waves: a metric that needs more replicates than gangs may live at once gets fresh ones in place of those."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ..measure.source import Taken, joined

if TYPE_CHECKING:
    from ..measure.gang_source import GangSource
    from ..metric import Level


class GangWaves:
    """A Source: replicates on gangs that have not measured this metric before, at most `most` of them alive at once.

    start: gives a source over the gangs that are there. renew: ends these gangs, so that `start` finds fresh ones.
    Leaving it closes the workload on the gangs of the last wave.
    """

    level: Level = "gang"

    def __init__(self, start: Callable[[], GangSource], renew: Callable[[], None], most: int) -> None:
        self._start = start
        self._renew = renew
        self._most = most
        self._open = ExitStack()
        self._waves: list[Taken] = []
        self._source: GangSource | None = None
        self._used = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._open.__exit__(kind, error, tb)

    def take(self, count: int) -> Taken:
        """Measure `count` more replicates, unless numbers are known to be wrong or a rule is broken; all so far."""
        wanted = count
        while wanted > 0 and self._sound:
            source = self._current()
            size = min(wanted, self._most - self._used)
            taken = source.take(size)
            self._waves[-1] = taken
            self._used += size
            wanted -= size

        return joined(self._waves)

    @property
    def _sound(self) -> bool:
        return all(wave.sound for wave in self._waves)

    def _current(self) -> GangSource:
        """The source of this wave, or of the next one if the gangs of this one are used up."""
        if self._source is None or self._used >= self._most:
            if self._source is not None:
                self._open.close()
                self._renew()

            self._source = self._open.enter_context(self._start())
            self._used = 0
            self._waves.append(Taken(self.level))

        return self._source
