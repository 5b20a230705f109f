"""Options of a gang: its Python, environment, nodes, and how long everything may take."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..errors import BadInput
from ..process.import_path import inherited

COMMAND = "{command}"


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class StartLimit:
    """The time for ranks to start, in seconds. why: what made it shorter than was asked, "" if nothing did."""

    seconds: float
    why: str = ""


@dataclass(frozen=True, slots=True)
class Nodes:
    """Several hosts for one gang.

    start: for each host the command that starts a program there: "srun -N1 -w node1", or "ssh node1 {command}", where
    {command} stands for the program as one quoted word for a remote shell; "" is this host.
    rdzv_endpoint: HOST:PORT where torchrun's agents meet, on one of the hosts, as all hosts see it.
    listen_host: address of this host that all hosts reach; ranks connect to it by TCP (authenticated, not encrypted).

    GangOptions.log_root must then be a folder that all hosts share: it holds the key, the logs and this package.
    """

    start: tuple[str, ...]
    rdzv_endpoint: str
    listen_host: str

    def __post_init__(self) -> None:
        host, _, port = self.rdzv_endpoint.rpartition(":")
        if not host or not port.isdigit():
            raise BadInput(
                f"rendezvous endpoint {self.rdzv_endpoint!r} is not HOST:PORT; give for example 'node0:29400'"
            )
        if not self.start:
            raise BadInput("no start command for any node; give one for each, for example 'ssh node1 {command}'")

    def for_gang(self, number: int) -> Nodes:
        """The same nodes for the `number`-th gang, from 1: gangs that live at once each meet at a port of their own.

        0 is the gang that asks NCCL (see measure/nccl_identity.py).
        """
        host, _, port = self.rdzv_endpoint.rpartition(":")
        return replace(self, rdzv_endpoint=f"{host}:{int(port) + number - 1}")


def on_node(start: str, command: Sequence[str]) -> list[str]:
    """`command` as started on a node by the start command `start`."""
    words = shlex.split(start)
    if any(COMMAND in word for word in words):
        return [word.replace(COMMAND, shlex.join(command)) for word in words]

    return [*words, *command]


@dataclass(frozen=True, slots=True)
class GangOptions:
    """Options of the ranks of one stack.

    log_root: the gang makes a folder of its own in it, and leaves it there.
    python: the ranks' Python executable, which must have torch; not necessarily pytest's.
    env: added to pytest's environment (LD_PRELOAD, NCCL_*, ...).
    start_seconds: from spawn until every rank has joined its process group.
    deadline_seconds: of a call that names none; collectives time out a little later, as a backstop.
    grace_seconds: what the other ranks get once one has raised.
    teardown_seconds: for ranks to drop their state and their process group.
    deadlines_off: asked whenever a deadline has passed; True (a debugger is open) means wait on.
    nodes: where the ranks run, if not all on this host.
    import_path: folders that pytest's own Python imports from, for ranks that run under it.
    start_limit: asked with start_seconds when ranks are spawned; another plugin's timeout may leave less.
    """

    log_root: Path
    python: str = sys.executable
    env: Mapping[str, str] = field(default_factory=dict)
    start_seconds: float = 120.0
    deadline_seconds: float = 300.0
    grace_seconds: float = 2.0
    teardown_seconds: float = 10.0
    deadlines_off: Callable[[], bool] = _never
    nodes: Nodes | None = None
    import_path: tuple[str, ...] = field(default_factory=inherited)
    start_limit: Callable[[float], StartLimit] = StartLimit

    def __post_init__(self) -> None:
        for name in ("start_seconds", "deadline_seconds", "grace_seconds", "teardown_seconds"):
            if not getattr(self, name) > 0:
                raise BadInput(f"gang option {name} is {getattr(self, name)!r}; give a number of seconds above zero")

    @property
    def collective_seconds(self) -> float:
        """Timeout of the process group."""
        return self.deadline_seconds + 60.0

    def ranks_per_node(self, world_size: int) -> int:
        """Ranks on each node; raises BadInput if there are none or they cannot be shared out evenly."""
        nodes = len(self.nodes.start) if self.nodes else 1
        if world_size < 1:
            raise BadInput(f"world size {world_size} is not a number of ranks; give at least 1")
        if world_size % nodes:
            raise BadInput(
                f"world size {world_size} cannot be shared out over {nodes} nodes; give a multiple of {nodes}"
            )

        return world_size // nodes
