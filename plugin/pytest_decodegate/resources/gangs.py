"""The gangs of one session: how they are started, of which stacks, and which of them are alive."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ..measure.bench import Bench
from ..measure.paired_source import PairBench
from .hardware import ENVIRONMENT

if TYPE_CHECKING:
    from pathlib import Path

    from ..gang.controller import GangOptions
    from ..gang.options import StartLimit
    from ..measure.source import Progress
    from ..settings.settings import Settings
    from ..settings.stack import Stack
    from .hardware import Hardware


def gang_options(
    settings: Settings, folder: Path, debugging: Callable[[], bool], start_limit: Callable[[float], StartLimit]
) -> GangOptions:
    """Options of ranks that run under no stack of their own yet, and write their logs below `folder`.

    debugging: whether a person is looking, so that deadlines wait. start_limit: of GangOptions.
    """
    from ..gang.controller import GangOptions

    return GangOptions(
        log_root=folder,
        env=ENVIRONMENT,
        start_seconds=settings.start_seconds,
        deadline_seconds=settings.deadline_seconds,
        deadlines_off=debugging,
        nodes=settings.nodes,
        import_path=settings.import_path,
        start_limit=start_limit,
    )


class Gangs:
    """Gangs of the stack under test by world size, and new ones of any stack.

    options: of ranks, asked anew for each bench. on_ready: told the world size, how many gangs have started together
    and the seconds it took.
    """

    def __init__(
        self,
        settings: Settings,
        hardware: Hardware,
        options: Callable[[], GangOptions],
        progress: Progress,
        on_ready: Callable[[int, int, float], None],
    ) -> None:
        self._settings = settings
        self._hardware = hardware
        self._options = options
        self._progress = progress
        self._on_ready = on_ready
        self._benches: dict[int, Bench] = {}

    @property
    def nodes(self) -> int:
        """Nodes that each gang is spread over."""
        return len(self._settings.nodes.start) if self._settings.nodes else 1

    @property
    def most_ranks(self) -> int:
        """Ranks that can have a GPU each, or a core where there is no GPU."""
        fingerprint = self._hardware.fingerprint
        return self.nodes * (len(fingerprint.gpus) or fingerprint.host.cores)

    def too_few_gpus(self, world_size: int) -> str | None:
        """Why `world_size` ranks cannot have a GPU each, or None. Without any GPU the ranks run on the CPU."""
        if world_size % self.nodes:
            return f"world size {world_size} does not divide over {self.nodes} nodes"

        count = self.nodes * len(self._hardware.fingerprint.gpus)
        if count == 0 or count >= world_size:
            return None

        return f"world size {world_size} needs {world_size} GPUs; this run sees {count}"

    def new_bench(self, world_size: int, stack: Stack, name: str = "") -> Bench:
        """Gangs of `stack`, none of them started yet; `name` tells them from those of another stack."""
        on_ready = partial(self._on_ready, world_size)
        return Bench(
            world_size, stack.applied(self._options()), progress=self._progress.tick, name=name, on_ready=on_ready
        )

    def bench(self, world_size: int) -> Bench:
        """The gangs of one world size, of the stack under test; whoever held the machine before is asked to leave."""
        if world_size not in self._benches:
            self._benches[world_size] = self.new_bench(world_size, self._settings.stack)

        bench = self._benches[world_size]
        self._hardware.take(bench, bench.close)
        return bench

    def bench_alive(self) -> Bench:
        """Gangs of the stack under test, whatever their size: those that hold the machine, else small ones."""
        match self._hardware.lease.holder:
            case PairBench(candidate=bench) | (Bench() as bench):
                return bench
            case _:
                return self.bench(self.nodes)

    def close(self, world_size: int) -> None:
        """Stop the gangs of one world size, if they run."""
        if bench := self._benches.get(world_size):
            self._hardware.lease.release(bench)

    def output(self) -> list[tuple[str, str]]:
        """What the ranks wrote since last asked: (section title, text)."""
        return [section for bench in self._benches.values() for section in bench.output()]
