"""The command `decodegate`: what can be asked without running a test."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .commands import doctor, slice_model
from .errors import DecodegateError

BAD_INPUT = 3
"""Exit status for input that the user can mend; 0, 1 and 2 belong to the answers of the commands."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit status; BAD_INPUT, with one line on stderr, for bad input."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.run(options)
    except DecodegateError as error:
        print(f"decodegate: {error}", file=sys.stderr)  # noqa: T201 - this is a command
        return BAD_INPUT

    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="decodegate", description="May this upgrade of an LLM inference host go in?")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (doctor, slice_model):
        command.add(commands)

    return parser
