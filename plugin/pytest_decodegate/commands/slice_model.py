"""`decodegate slice`: write a local model with the per-rank dims of Kimi-K2.5 at TP=8."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Register the command with the subparsers `commands`."""
    parser = commands.add_parser("slice", help="write a local model with the per-rank dims of Kimi-K2.5 at TP=8")
    parser.add_argument("--world", type=int, required=True, metavar="N", help="GPUs that will serve it")
    parser.add_argument("--layers", type=int, default=4, metavar="L", help="layers to keep, at least 2 (default: 4)")
    parser.add_argument("folder", type=Path, help="folder to write config and tokenizer into")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from ..serving.models import write_rank_slice

    model = write_rank_slice(options.folder, world_size=options.world, layers=options.layers)
    print(f"wrote a {options.layers}-layer rank slice for {options.world} GPU(s) to {options.folder}")
    print(f"serve it with: {shlex.join(['vllm', 'serve', str(options.folder), *model.arguments])}")
    print("in an environment with: " + " ".join(f"{k}={v}" for k, v in model.variables(os.environ).items()))
    return 0
