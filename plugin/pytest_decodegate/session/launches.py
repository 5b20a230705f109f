"""What it costs to have ranks at all, by world size: until those that were asked for are ready, and to a verdict."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Launch:
    """The largest launch of a world size before its first verdict.

    ready_seconds, verdict_seconds: from when the gangs were asked for until all ranks of all gangs had joined their
    process groups, and to the first verdict; None until there is one.
    """

    world_size: int
    gangs: int
    ready_seconds: float
    verdict_seconds: float | None = None

    def __str__(self) -> str:
        ranks = f"{self.gangs} x {self.world_size} rank{'' if self.world_size == 1 else 's'}"
        verdict = "" if self.verdict_seconds is None else f", the first verdict after {self.verdict_seconds:.1f} s"
        return f"launch of {ranks}: ready after {self.ready_seconds:.1f} s{verdict}"


class Launches:
    """The launches of one session. announce: takes the launch of each world size once, at its first verdict."""

    def __init__(self, announce: Callable[[Launch], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._announce = announce
        self._clock = clock
        self._known: dict[int, Launch] = {}
        self._asked_at: dict[int, float] = {}

    def ready(self, world_size: int, gangs: int, seconds: float) -> None:
        """`gangs` gangs are ready, `seconds` after they were asked for."""
        known = self._known.get(world_size)
        if known is None or (known.verdict_seconds is None and gangs > known.gangs):
            self._known[world_size] = Launch(world_size, gangs, seconds)
            self._asked_at[world_size] = self._clock() - seconds

    def judged(self, world_size: int) -> None:
        """Something that ran on gangs of that size came to a verdict."""
        known = self._known.get(world_size)
        if known is None or known.verdict_seconds is not None:
            return

        seconds = self._clock() - self._asked_at[world_size]
        self._known[world_size] = launch = replace(known, verdict_seconds=seconds)
        self._announce(launch)

    def lines(self) -> list[str]:
        """A sentence for each world size, by size."""
        return [str(self._known[size]) for size in sorted(self._known)]
