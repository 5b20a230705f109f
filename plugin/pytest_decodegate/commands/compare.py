"""`decodegate compare`: stored baselines beside each other."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadInput

if TYPE_CHECKING:
    from ..compare.pairs import Compared
    from ..compare.standing import Terms

_SUFFIXES = {".md": "markdown", ".json": "json", ".html": "html", ".htm": "html"}

_FILES_HELP = (
    "baseline files; the first is the reference. Also globs, git:REV:PATH, and folders: the last recorded file of each "
    "machine class in it, or all of them when the folder is the only argument"
)


def add(commands: Any) -> None:
    """Register the command with the subparsers `commands`."""
    parser = commands.add_parser(
        "compare",
        help="compare stored baselines: change with interval and verdict per metric",
        description="Exit status: 0 all passed, 1 something regressed (or answers got wrong), 2 something is "
        "inconclusive, confounded or on one side only, 3 bad input.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help=_FILES_HELP)
    parser.add_argument(
        "--format", choices=("terminal", "markdown", "json", "html"), help="default: by the suffix of -o, else terminal"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the report there, and one line here")
    parser.add_argument("--change", metavar="NAMES", help="what was changed on purpose, as --perf-change: driver,nccl")
    parser.add_argument(
        "--allow", action="append", default=[], metavar="FIELD", help="compare although FIELD differs; may be repeated"
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    # What was loaded must be gone before collections start again.
    with _without_collections():
        report, answer, status = _compare(options)

    if options.output is None:
        print(report, end="")
    else:
        _write(options.output, report)
        print(f"{answer}; written to {options.output}")

    return status


def _compare(options: argparse.Namespace) -> tuple[str, str, int]:
    """The report, its last line, and the exit status."""
    from ..compare.pairs import compare_groups
    from ..compare.sides import groups
    from ..report.comparison import answer

    terms = _terms(options)
    compared = compare_groups(groups(options.files), terms)
    for field in sorted(terms.allowed - compared.allowed):
        print(f"decodegate: --allow {field}: nothing that differs has this name", file=sys.stderr)

    return _writer(options)(compared), answer(compared), compared.status


def _terms(options: argparse.Namespace) -> Terms:
    from ..compare.standing import Terms
    from ..machine.provenance import parse_declared

    declared = parse_declared(options.change) if options.change is not None else frozenset()
    return Terms(declared, frozenset(options.allow))


def _writer(options: argparse.Namespace) -> Callable[[Compared], str]:
    """The function that writes the format asked for; only its module is imported."""
    suffix = options.output.suffix.lower() if options.output else ""
    writers: Mapping[str, Callable[[], Callable[[Compared], str]]] = {
        "terminal": lambda: _terminal(colour=options.output is None),
        "markdown": _markdown,
        "json": _json,
        "html": _html,
    }
    return writers[options.format or _SUFFIXES.get(suffix, "terminal")]()


def _terminal(*, colour: bool) -> Callable[[Compared], str]:
    from ..report.comparison_text import text

    seen = colour and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return lambda compared: text(compared, colour=seen)


def _markdown() -> Callable[[Compared], str]:
    from ..report.markdown import markdown

    return markdown


def _json() -> Callable[[Compared], str]:
    from ..report.comparison_json import document

    return document


def _html() -> Callable[[Compared], str]:
    from ..report.html import page

    return page


def _write(path: Path, report: str) -> None:
    try:
        path.write_text(report, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{path}: cannot be written: {error.strerror}; name another file with -o") from error


@contextmanager
def _without_collections() -> Iterator[None]:
    """A big file is a million small objects and no cycle: the collector would walk them for a third of the time."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
