"""The torchruns of a gang, one for each node, and the listener that their ranks connect to: start, wait and end."""

from __future__ import annotations

import queue
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ..cause import cause_of_text, last_exception
from ..errors import RankDied, RankHung
from ..process.import_path import import_variables
from . import exit_reasons, protocol
from .agent import Agent
from .listener import Listener
from .options import GangOptions
from .rank import Rank

PACKAGE = Path(__file__).parents[1]
STEP_SECONDS = 1.0


class Agents:
    """The agents of gang `name`: they run at once, in a folder of their own; their ranks come by admit_ranks()."""

    def __init__(self, world_size: int, options: GangOptions, name: str) -> None:
        self._world_size = world_size
        self._options = options
        self._name = name
        rank_count = options.ranks_per_node(world_size)
        options.log_root.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=options.log_root))
        self._limit = options.start_limit(options.start_seconds)
        self._deadline = time.monotonic() + self._limit.seconds
        self._listener = Listener(options.nodes.listen_host, folder) if options.nodes else Listener()
        self._agents: list[Agent] = []
        self._id = folder.name
        own = self._environment(folder)
        try:
            for node in range(world_size // rank_count):
                self._agents.append(Agent(node, rank_count, options, folder, own))
        except BaseException:
            self.stop()
            raise

    def _environment(self, folder: Path) -> dict[str, str]:
        return {
            # This plugin first. The site-packages of pytest's Python must not reach another Python.
            **import_variables(self._options.python, self._options.import_path, [import_folder(folder)]),
            protocol.ADDRESS: self._listener.address,
            protocol.KEY_FILE: str(self._listener.key_file),
            protocol.GANG_ID: self._id,
        }

    @property
    def seconds_left(self) -> float:
        """Of the time to start."""
        return self._deadline - time.monotonic()

    @property
    def running(self) -> bool:
        """Whether every torchrun runs."""
        return all(agent.running for agent in self._agents)

    def admit_ranks(self, ranks: dict[int, Rank], on_wait: Callable[[str], None]) -> None:
        """Fill `ranks` until all are there, then let nobody else in; on_wait is told once a second.

        Raises RankDied if torchrun ends before, RankHung if time runs out; both quote torchrun and the ranks.
        """
        started = time.monotonic()
        while missing := sorted(set(range(self._world_size)) - set(ranks)):
            self._check(missing)
            try:
                admitted = self._listener.ranks.get(timeout=min(STEP_SECONDS, max(0.0, self.seconds_left)))
            except queue.Empty:
                waited = time.monotonic() - started
                on_wait(f"gang {self._name}: {len(ranks)} of {self._world_size} ranks are up after {waited:.0f} s")
                continue

            if admitted.hello.rank in missing:
                ranks[admitted.hello.rank] = Rank(admitted, self._id)
            else:  # it has the key, but it is no rank of this gang, or one that is here already
                admitted.connection.close()

        self._listener.close()

    def _check(self, missing: list[int]) -> None:
        who = exit_reasons.ranks_text(missing)
        if not self.running:
            text = f"gang {self._name!r}: torchrun ended before {who} came up\n{self._explain_start()}"
            log = "\n".join(agent.start_log() for agent in self._agents)
            why = next(filter(None, (agent.hint() for agent in self._agents)), last_exception(log))
            raise RankDied(text, cause=cause_of_text(log), about=why or "torchrun ended before ranks came up", why=why)
        if self.seconds_left <= 0:
            limit = f"{self._limit.seconds:.3g} s{self._limit.why}"
            raise RankHung(f"gang {self._name!r}: {who} did not connect within {limit}\n{self._explain_start()}")

    def _explain_start(self) -> str:
        strangers = exit_reasons.strangers(self._listener.refused)
        return "\n".join([*strangers, *(agent.explain_start() for agent in self._agents)])

    def wait(self, seconds: float) -> None:
        """Wait until every torchrun has ended, at most `seconds`."""
        deadline = time.monotonic() + seconds
        for agent in self._agents:
            agent.wait(max(0.0, deadline - time.monotonic()))

    def summary(self) -> str:
        """The failure as torchrun reports it, on each node that reports one."""
        return "\n".join(filter(None, (agent.summary() for agent in self._agents)))

    def exit_codes(self) -> Mapping[int, int]:
        """Exit code by rank as torchrun reports it; negative for a signal."""
        return {rank: code for agent in self._agents for rank, code in agent.exit_codes().items()}

    def terminate(self) -> None:
        """Ask every torchrun to end, and return at once."""
        for agent in self._agents:
            agent.terminate()

    def stop(self) -> None:
        """End every torchrun with all its descendants, and stop listening; bounded. Safe to call again."""
        self.terminate()
        for agent in self._agents:
            agent.stop()

        self._listener.close()


def import_folder(folder: Path) -> Path:
    """A new folder below `folder` for PYTHONPATH, from which this package alone can be imported."""
    path = folder / "path"
    path.mkdir()
    (path / PACKAGE.name).symlink_to(PACKAGE, target_is_directory=True)
    return path
