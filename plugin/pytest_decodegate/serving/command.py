"""The user's own vLLM command line, as --perf-launch gives it."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadInput
from .flags import REFUSED


@dataclass(frozen=True, slots=True)
class UsersCommand:
    """model: a name or a folder. port: 0 takes a free one. arguments: all the rest, in order."""

    model: str
    port: int
    arguments: tuple[str, ...]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise BadInput(f"--perf-launch: {message}")


_DEGREES = (
    ("-tp", "--tensor-parallel-size"),
    ("-pp", "--pipeline-parallel-size"),
    ("-dp", "--data-parallel-size"),
)


def gpus_of(words: Sequence[str]) -> int:
    """GPUs that vLLM uses with the command line `words`: its ranks, one unless flags say otherwise."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    for short, long in _DEGREES:
        parser.add_argument(short, long, long.replace("-", "_").replace("__", "--", 1), type=int, default=1)

    degrees = vars(parser.parse_known_args(list(words))[0])
    return math.prod(degrees.values())


def _means(word: str, flag: str) -> bool:
    """Whether vLLM takes `word` for `flag`: it also reads --api_key, and an option that is cut short."""
    name = word.partition("=")[0].replace("_", "-")
    return len(name) > len(flag) - 3 and flag.startswith(name)


def read_command(words: Sequence[str]) -> UsersCommand:
    """Find model and port in `words` ("MODEL ..." or "--model MODEL ..."); raises BadInput without a usable model."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--model")
    parser.add_argument("--port", type=int, default=0)
    known, rest = parser.parse_known_args(list(words))
    for name, reason in REFUSED.items():
        if any(_means(word, f"--{name}") for word in rest):
            raise BadInput(f"--perf-launch: leave out --{name}; {reason}")

    if known.model is None and rest and not rest[0].startswith("-"):
        known.model, rest = rest[0], rest[1:]  # as in `vllm serve MODEL ...`
    if known.model is None:
        raise BadInput(f"--perf-launch: {' '.join(words)!r} names no model; begin with its name or give --model NAME")

    # The server runs in a folder of its own, where a relative path would lead nowhere.
    model = str(Path(known.model).absolute()) if Path(known.model).exists() else known.model
    return UsersCommand(model, known.port, tuple(rest))
