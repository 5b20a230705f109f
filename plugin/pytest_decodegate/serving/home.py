"""Which server a perf run measures: the user's, attached or launched, or one that the machine can hold."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import BadInput
from ..gang.processes import scrubbed
from .models import LocalModel, slice_layers, write_rank_slice, write_tiny_model
from .server import ATTACHED_TOKEN_IDS, Server, ServerOptions, launch

_CHOSEN = ("--port", "--host", "--served-model-name")


@dataclass(frozen=True, slots=True)
class Launch:
    """How any server is launched. folder: an empty one, for model and log. environment: added to pytest's own."""

    folder: Path
    environment: Mapping[str, str]
    start_seconds: float
    on_wait: Callable[[str], None]

    def __call__(self, model: LocalModel) -> Server:
        """Start vLLM on `model` and wait until it serves; raises ServerError with the end of its log."""
        options = ServerOptions(
            python=sys.executable,
            model=model,
            environment={**scrubbed(os.environ), **self.environment},
            log_path=self.folder / "server.log",
            start_seconds=self.start_seconds,
        )
        return launch(options, on_wait=self.on_wait)


def launch_own(start: Launch, *, gpus: int, memory_gib: int) -> Server:
    """The Kimi rank-slice over all visible GPUs, or a tiny model on vLLM's CPU build without one.

    memory_gib: of the smallest GPU; it decides how many layers are kept.
    """
    folder = start.folder / "model"
    return start(
        write_rank_slice(folder, world_size=gpus, layers=slice_layers(memory_gib)) if gpus else write_tiny_model(folder)
    )


def launch_users(start: Launch, arguments: Sequence[str]) -> Server:
    """Start vLLM with the user's own command line, which must name a model; raises BadInput if it does not."""
    model, rest = _split_model(arguments)
    local = LocalModel(
        folder=Path(model),
        vocabulary=len(ATTACHED_TOKEN_IDS),
        arguments=(*rest, "--no-enable-prefix-caching"),
        facts={"model": model, "arguments": " ".join(rest)},
    )
    return replace(start(local), token_ids=ATTACHED_TOKEN_IDS)


def _split_model(arguments: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--model")
    known, rest = parser.parse_known_args(list(arguments))
    for flag in _CHOSEN:
        if any(word == flag or word.startswith(f"{flag}=") for word in rest):
            raise BadInput(f"--perf-serve: leave out {flag}; decodegate chooses it, so that it measures its own server")

    if known.model is None and rest and not rest[0].startswith("-"):
        return rest[0], tuple(rest[1:])  # as in `vllm serve MODEL ...`
    if known.model is None:
        raise BadInput(
            f"--perf-serve: {' '.join(arguments)!r} names no model; begin with its name or give --model NAME"
        )

    return known.model, tuple(rest)
