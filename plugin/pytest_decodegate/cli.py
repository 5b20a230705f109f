"""The command `decodegate`: what can be asked without running a test."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from .commands import (
    baselines,
    compare,
    doctor,
    history,
    import_results,
    ledger,
    profile,
    selftest,
    slice_model,
    upgrade,
)
from .errors import DecodegateError

BAD_INPUT = 3
"""Exit status for input that the user can mend; 0, 1 and 2 belong to the answers of the commands."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit status; BAD_INPUT, with one line on stderr, for bad input."""
    typed = sys.argv[1:] if arguments is None else list(arguments)
    options = _parser().parse_args(typed)
    options.typed = ["decodegate", *typed]
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # an ASCII terminal has no plus-minus
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough (head, less); what is left must not be flushed at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except DecodegateError as error:
        print(f"decodegate: {error}", file=sys.stderr)  # noqa: T201 - this is a command
        return BAD_INPUT

    return code


class _Parser(argparse.ArgumentParser):
    """Ends with BAD_INPUT where argparse ends with 2, which is an answer here."""

    def error(self, message: str) -> NoReturn:
        """Say how it is used and what is wrong, and exit."""
        self.print_usage(sys.stderr)
        self.exit(BAD_INPUT, f"{self.prog}: error: {message}\n")


class _Version(argparse.Action):
    """Prints the installed version and exits; the metadata are read only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from importlib.metadata import version

        print(f"decodegate {version('pytest-decodegate')}")  # noqa: T201 - this is a command
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="decodegate", description="May this upgrade of an LLM inference host go in?")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    every = (doctor, slice_model, compare, baselines, history, profile, ledger, import_results, upgrade, selftest)
    for command in every:
        command.add(commands)

    return parser


if __name__ == "__main__":
    sys.exit(main())
