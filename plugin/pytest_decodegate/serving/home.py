"""Which server a perf run measures: the user's, attached or launched, or one that the machine can hold."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import BadInput
from ..printable import printable
from ..process.processes import scrubbed
from ..redaction import redact_arguments
from .command import read_command
from .models import LocalModel, slice_layers, write_rank_slice, write_tiny_model
from .profiler import profiled
from .server import ATTACHED_TOKEN_IDS, ServerOptions, Starting, begin
from .slowed import checked, server_slowdown, slowed_options


@dataclass(frozen=True, slots=True)
class ServerLaunch:
    """How any server is launched. folder: an empty one, for model and log. environment: added to pytest's own.

    python: of the environment that has vLLM. traces: of a server with a profiler, the folder that it writes to.
    """

    folder: Path
    environment: Mapping[str, str]
    start_seconds: float
    python: str = sys.executable
    traces: Path | None = None

    def __call__(self, model: LocalModel, port: int = 0) -> Starting:
        """Start vLLM on `model`.

        port: 0 takes a free one. Raises BadInput if it is taken, or if this Python has no vllm.
        """
        if self.python == sys.executable and importlib.util.find_spec("vllm") is None:
            raise BadInput(
                f"a server needs 'vllm', which {sys.executable} does not have; run pytest in the environment that "
                "serves the model, or attach to a running server with --perf-server URL"
            )

        options = ServerOptions(
            python=self.python,
            model=model if self.traces is None else profiled(model, self.traces, self.python),
            environment={**scrubbed(os.environ), **self.environment},
            log_path=self.folder / "server.log",
            port=port,
            start_seconds=self.start_seconds,
        )
        if not (fraction := server_slowdown(options.environment)):
            return begin(options)

        slower = slowed_options(options, fraction, self.folder / "slowed")
        return begin(slower).then(lambda server: checked(server, fraction))


def launch_own(
    start: ServerLaunch, *, gpus: int, memory_gib: int, pins: Mapping[str, str], layers: int | None = None
) -> Starting:
    """The Kimi rank-slice over so many GPUs, or a tiny model on vLLM's CPU build without one.

    memory_gib: of the smallest GPU; it decides how many layers are kept, unless `layers` does. pins: of --perf-pin.
    """
    folder = start.folder / "model"
    if not gpus:
        return start(write_tiny_model(folder).pinned(pins))

    model = write_rank_slice(folder, world_size=gpus, layers=layers or slice_layers(memory_gib))
    return start(model.pinned(pins))


def launch_users(start: ServerLaunch, words: Sequence[str], pins: Mapping[str, str]) -> Starting:
    """Start vLLM with the user's own command line; raises BadInput if it names no model or a port that is taken.

    pins: of --perf-pin, which win over the same flags among `words`.
    """
    command = read_command(words)
    local = LocalModel(
        folder=Path(command.model),
        vocabulary=len(ATTACHED_TOKEN_IDS),
        arguments=(*command.arguments, "--no-enable-prefix-caching"),
        facts={"model": command.model, "arguments": printable(" ".join(redact_arguments(command.arguments)))},
    )
    starting = start(local.pinned(pins), port=command.port)
    return starting.then(lambda server: replace(server, token_ids=ATTACHED_TOKEN_IDS))
