"""`decodegate upgrade`: may this stack go in? Both stacks measured in turn, and one answer."""

from __future__ import annotations

import argparse
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadInput
from ..process.import_path import inherited
from .two_stacks import measured

if TYPE_CHECKING:
    from ..report.screen import About

_STACK_HELP = (
    "python=PATH, nccl=PATH, vllm=VERSION, env:NAME=VALUE, flag:--NAME=VALUE, tp=N, model=PATH_OR_NAME, several joined "
    "by commas, or server=URL for both"
)


def add(commands: Any) -> None:
    """Register the command with the subparsers `commands`."""
    parser = commands.add_parser(
        "upgrade",
        help="measure two stacks in turn and say whether the candidate may go in",
        description="Exit status: 0 GO, 1 NO-GO, 2 NOT PROVEN, 3 bad input.",
    )
    for name, what in (("--base", "what runs today"), ("--candidate", "what may go in")):
        parser.add_argument(
            name,
            action="append",
            metavar="STACK",
            help=f"{what}: {_STACK_HELP}; may be repeated (default: the environment of this command)",
        )
    parser.add_argument("-m", dest="markers", metavar="EXPR", help="only perf tests that match this marker expression")
    parser.add_argument(
        "--allow", metavar="NAMES", help="what else differs on purpose, as --perf-change of pytest: model,flag:dtype"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the answer and all metrics there as JSON")
    parser.add_argument(
        "--open",
        type=Path,
        metavar="FILE",
        help="measure only what an earlier answer, its --json, did not pass",
    )
    parser.add_argument("arguments", nargs="*", metavar="PYTEST_ARGUMENT", help="passed to pytest; options after --")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from ..report.upgrade import document, text
    from ..settings.rank_python import check_ranks
    from ..settings.stack import parse_stack
    from ..settings.values import check_writable
    from ..settings.venvs import environment_of

    if not (options.base or options.candidate):
        raise BadInput(
            "give --base, --candidate or both; `--candidate this` alone compares this environment with itself"
        )

    if options.json is not None:
        check_writable(options.json, "--json")

    base, candidate = (
        parse_stack(texts or [], option, environment_of)
        for option, texts in (("--base", options.base), ("--candidate", options.candidate))
    )
    check_ranks(base, "--base", inherited())
    check_ranks(candidate, "--candidate", inherited())
    only = [f"--perf-only={names}"] if (names := _open_names(options.open)) else []
    allowed = [f"--perf-change={options.allow}"] if options.allow else []
    run = measured(base, candidate, options.markers, [*only, *allowed, *options.arguments], options.typed)
    print(text(run, _about(options)), end="")
    if options.json is not None:
        _write(options.json, document(run))

    return run.decision.answer.status


def _open_names(answer: Path | None) -> str:
    """The metrics that an earlier answer did not settle, for --perf-only; "" without one.

    Raises BadInput for a file that is no such answer, or where nothing is left to measure.
    """
    from ..report.upgrade import unsettled

    if answer is None:
        return ""
    try:
        names = unsettled(answer.read_bytes())
    except OSError as error:
        raise BadInput(f"--open {answer}: cannot be read: {error.strerror}; name the --json of an upgrade") from error
    except ValueError as error:
        raise BadInput(f"--open {answer}: is no answer of `decodegate upgrade --json`: {error}") from error
    if not names:
        raise BadInput(f"--open {answer}: it left nothing open; its metrics all passed")

    return ",".join(names)


def _about(options: argparse.Namespace) -> About:
    """What the screen says besides: as wide as the terminal, all rows where pytest was told -v."""
    from ..report.screen import About

    verbose = any(word == "--verbose" or re.fullmatch("-v+", word) for word in options.arguments)
    reports = (f"report: {options.json.absolute()}",) if options.json is not None else ()
    return About(options.typed, reports, shutil.get_terminal_size().columns, verbose)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:  # or Python would end with 1, which is an answer
        raise BadInput(f"--json: {str(path)!r} cannot be written any more: {error}; the answer stands above") from error
