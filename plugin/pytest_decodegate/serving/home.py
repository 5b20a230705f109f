"""Which server a perf run measures: the user's, attached or launched, or one that the machine can hold."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..errors import BadInput
from ..process.processes import scrubbed
from .command import read_command
from .flags import FlagValue, clashes, flag_words
from .models import LocalModel, slice_layers, write_rank_slice, write_tiny_model
from .profiler import profiled
from .read_back import read_back
from .server import ATTACHED_TOKEN_IDS, Server, ServerOptions, Starting, begin, ordinary_ids
from .slowed import checked, server_slowdown, slowed_options


@dataclass(frozen=True, slots=True)
class ServerLaunch:
    """How any server is launched. folder: an empty one, for model and log. environment: added to pytest's own.

    python: of the environment that has vLLM. traces: of a server with a profiler, the folder that it writes to.
    flags: of the command line beside the model's own. vllm: the version that it must say it is.
    """

    folder: Path
    environment: Mapping[str, str]
    start_seconds: float
    python: str = sys.executable
    traces: Path | None = None
    flags: Mapping[str, FlagValue] = field(default_factory=dict)
    vllm: str | None = None

    def __call__(self, model: LocalModel, port: int = 0) -> Starting:
        """Start vLLM on `model`.

        port: 0 takes a free one. Raises BadInput if it is taken, if this Python has no vllm, or for a flag that the
        model has already.
        """
        if clash := clashes(self.flags, model.arguments):
            raise BadInput(f"--{clash[0]}: the model is served with {clash[0]} of its own, which is part of its metric")

        if self.python == sys.executable and importlib.util.find_spec("vllm") is None:
            raise BadInput(
                f"a server needs 'vllm', which {sys.executable} does not have; run pytest in the environment that "
                "serves the model, or attach to a running server with --perf-server URL"
            )

        options = ServerOptions(
            python=self.python,
            model=self._with_flags(model if self.traces is None else profiled(model, self.traces, self.python)),
            environment={**scrubbed(os.environ), **self.environment},
            log_path=self.folder / "server.log",
            port=port,
            start_seconds=self.start_seconds,
        )
        if not (fraction := server_slowdown(options.environment)):
            return begin(options).then(self._checked)

        slower = slowed_options(options, fraction, self.folder / "slowed")
        return begin(slower).then(self._checked).then(lambda server: checked(server, fraction))

    def _with_flags(self, model: LocalModel) -> LocalModel:
        return replace(model, arguments=(*model.arguments, *flag_words(self.flags)))

    def _checked(self, server: Server) -> Server:
        return read_back(server, self.flags, self.vllm)


def launch_own(
    start: ServerLaunch,
    *,
    gpus: int,
    memory_gib: int,
    pins: Mapping[str, str],
    layers: int | None = None,
    servers: int = 1,
) -> Starting:
    """The Kimi rank-slice over so many GPUs, or a tiny model on vLLM's CPU build without one.

    memory_gib: of the smallest GPU; it decides how many layers are kept, unless `layers` does. pins: of --perf-pin.
    servers: how many share that memory.
    """
    # Its weights are invented, so that nobody is to hear of it; a worker would post that to vLLM's makers meanwhile.
    start = replace(start, environment={"VLLM_NO_USAGE_STATS": "1", **start.environment})
    folder = start.folder / "model"
    if not gpus:
        return start(write_tiny_model(folder).kept().pinned(pins))

    depth = layers or slice_layers(memory_gib, servers)
    model = write_rank_slice(folder, world_size=gpus, layers=depth, servers=servers)
    return start(model.kept().pinned(pins))


def launch_users(start: ServerLaunch, words: Sequence[str], pins: Mapping[str, str]) -> Starting:
    """Start vLLM with the user's own command line; raises BadInput if it names no model or a port that is taken.

    pins: of --perf-pin, which win over the same flags among `words`.
    """
    command = read_command(words)
    local = LocalModel(
        folder=Path(command.model),
        vocabulary=len(ATTACHED_TOKEN_IDS),
        arguments=(*command.arguments, "--no-enable-prefix-caching"),
        facts={"model": command.model},  # its flags are of the provenance, where they may be the change under test
    )
    starting = start(local.pinned(pins), port=command.port)
    ids = _token_ids(Path(command.model))
    return starting.then(lambda server: replace(server, token_ids=ids, invented=False))


def _token_ids(folder: Path) -> range:
    """What prompts for the user's model may be made of: no more than the vocabulary that its config tells.

    An id beyond it ends some servers: vLLM 0.26 with an assert on the device.
    """
    try:
        config = json.loads((folder / "config.json").read_bytes())
        size = config.get("vocab_size") or config["text_config"]["vocab_size"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ATTACHED_TOKEN_IDS  # a name that vLLM resolves, or a config of another kind

    if not isinstance(size, int) or size >= ATTACHED_TOKEN_IDS.stop:
        return ATTACHED_TOKEN_IDS

    return ordinary_ids(size)
