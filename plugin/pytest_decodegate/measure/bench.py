"""The gangs of one world size in this session: started together, checked after failures, seldom replaced."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from ..errors import DecodegateError, GangError
from ..gang.controller import Gang, GangOptions
from ..gang.logs import Marks
from .nccl_identity import NcclProbe

MOST_REPLACED = 2
"""A host that breaks ranks again and again will not be measured; say so instead of starting ranks for an hour."""


def _nobody(_gangs: int, _seconds: float) -> None:
    """Nobody wants to know what a start costs."""


class Bench:
    """Gangs of `world_size` ranks of one stack; `progress` is told what is waited for.

    nccl_probe: asks NCCL how it does what these gangs measure. on_ready: told how many gangs have started together, and
    the seconds that it took until all of their ranks had joined.
    """

    def __init__(
        self,
        world_size: int,
        options: GangOptions,
        *,
        progress: Callable[[str], None],
        name: str = "",
        on_ready: Callable[[int, float], None] = _nobody,
    ) -> None:
        options.ranks_per_node(world_size)  # refused here, not at the first use
        self.world_size = world_size
        self.nccl_probe = NcclProbe(world_size, options)
        self._options = options
        self._progress = progress
        self._on_ready = on_ready
        self._name = name
        self._gangs: list[Gang] = []
        self._causes: list[DecodegateError] = []
        self._started = 0
        self._marks: dict[Gang, Marks] = {}

    def gangs(self, count: int) -> list[Gang]:
        """`count` gangs that are ready for work; starts what is missing, all at once.

        What broke is replaced, at most twice a session, however many gangs broke together; after that every request
        raises a GangError with the first cause. Nothing that failed is run again.
        """
        broken = self._drop_broken()
        if len(self._causes) > MOST_REPLACED:
            raise GangError(
                f"ranks of world size {self.world_size} broke {len(self._causes)} times in this session and are not "
                f"started again; the first cause was:\n{self._causes[0]}",
                repeats=self._causes[0],
            )
        missing = count - len(self._gangs)
        for name in broken[: max(0, missing)]:
            self._progress(f"gang {name} broke and is replaced")
        if missing > 0:
            self._start(missing)

        return self._gangs[:count]

    def _drop_broken(self) -> list[str]:
        """Keep the gangs that can be used; the names of the others, which count as one cause."""
        broken = [gang for gang in self._gangs if not gang.check()]
        for gang in broken:
            gang.close()
        if broken:
            unknown = GangError(f"gang {broken[0].name!r} ended by itself between two calls")
            self._causes.append(next((gang.cause for gang in broken if gang.cause), unknown))

        self._gangs = [gang for gang in self._gangs if gang not in broken]
        return [gang.name for gang in broken]

    def _start(self, count: int) -> None:
        new = [self._new() for _ in range(count)]
        self._marks.update((gang, {}) for gang in new)
        self._progress(f"starting {count} x {self.world_size} ranks")
        asked = time.monotonic()
        try:
            for gang in new:
                gang.spawn()
            for gang in new:
                gang.connect(self._progress)
            for gang in new:
                gang.ready()
        except BaseException as error:
            for gang in new:
                gang.kill(error)
            for gang in new:
                gang.close()
            if isinstance(error, DecodegateError):
                self._causes.append(error)
            raise

        self._gangs += new
        self._on_ready(count, time.monotonic() - asked)

    def _new(self) -> Gang:
        self._started += 1
        nodes = self._options.nodes and self._options.nodes.for_gang(self._started)
        options = replace(self._options, nodes=nodes)
        return Gang(self.world_size, options, name=f"{self._name}w{self.world_size}-{self._started}")

    def output(self) -> list[tuple[str, str]]:
        """What ranks wrote since last asked, also those that are gone: (section title, text), at most 20 kB each."""
        sections = []
        for gang, marks in list(self._marks.items()):
            self._marks[gang] = gang.marks()
            for rank, stream, text in gang.output_since(marks):
                sections.append((f"{stream} rank {rank} of {gang.name}", text))
            if gang not in self._gangs:
                del self._marks[gang]  # it has written its last

        return sections

    def dismiss(self) -> None:
        """Tell all ranks to leave; close() waits for their end."""
        for gang in self._gangs:
            gang.dismiss()

        self.nccl_probe.dismiss()

    def close(self) -> None:
        """End all gangs; what had broken counts as if it had been replaced."""
        self.dismiss()
        self.nccl_probe.close()
        self._causes += [gang.cause for gang in self._gangs if gang.cause][:1]
        for gang in self._gangs:
            gang.close()

        self._gangs.clear()
