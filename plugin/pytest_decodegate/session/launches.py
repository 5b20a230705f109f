"""What it costs to have ranks at all, by world size: until those that were asked for are ready, and to a verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..metric import Json


@dataclass(frozen=True, slots=True)
class Launch:
    """The largest launch of a world size before its first verdict.

    at: when the gangs were asked for, of the clock. ready_seconds, verdict_seconds: from then until all ranks of all
    gangs had joined their process groups, and to the first verdict; None until there is one.
    """

    world_size: int
    gangs: int
    at: float
    ready_seconds: float
    verdict_seconds: float | None = None

    def __str__(self) -> str:
        ranks = f"{self.gangs} x {self.world_size} rank{'' if self.world_size == 1 else 's'}"
        verdict = "" if self.verdict_seconds is None else f", the first verdict after {self.verdict_seconds:.1f} s"
        return f"launch of {ranks}: ready after {self.ready_seconds:.1f} s{verdict}"

    def fields(self) -> dict[str, Json]:
        """For the report: "world_size", "gangs", "ranks", "ready_seconds", "verdict_seconds"."""
        return {
            "world_size": self.world_size,
            "gangs": self.gangs,
            "ranks": self.gangs * self.world_size,
            "ready_seconds": self.ready_seconds,
            "verdict_seconds": self.verdict_seconds,
        }


class Launches:
    """The launches of one session. write: takes the name of an event and its fields, once for each world size."""

    def __init__(
        self, write: Callable[[str, Mapping[str, Json]], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write = write
        self._clock = clock
        self._known: dict[int, Launch] = {}

    def ready(self, world_size: int, gangs: int, seconds: float) -> None:
        """`gangs` gangs are ready, `seconds` after they were asked for."""
        known = self._known.get(world_size)
        if known is None or (known.verdict_seconds is None and gangs > known.gangs):
            self._known[world_size] = Launch(world_size, gangs, self._clock() - seconds, seconds)

    def judged(self, world_size: int) -> None:
        """Something that ran on gangs of that size came to a verdict."""
        known = self._known.get(world_size)
        if known is None or known.verdict_seconds is not None:
            return

        self._known[world_size] = launch = replace(known, verdict_seconds=self._clock() - known.at)
        self._write("launch", launch.fields())

    def lines(self) -> list[str]:
        """A sentence for each world size, by size."""
        return [str(self._known[size]) for size in sorted(self._known)]
