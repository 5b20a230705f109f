"""`decodegate compare`: stored baselines beside each other."""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadInput

if TYPE_CHECKING:
    from ..compare.pairs import Compared
    from ..compare.standing import Terms

_SUFFIXES = {"": "terminal", ".txt": "terminal", ".md": "markdown", ".json": "json", ".html": "html", ".htm": "html"}

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
        "--format",
        choices=("terminal", "markdown", "json", "html"),
        help="default: by the suffix of -o (.md, .json, .html, .txt), else terminal",
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the report there, and one line here")
    parser.add_argument(
        "--report",
        type=Path,
        metavar="DIR",
        help="write report.html, report.md, results.jsonl, results.csv and comparison.json there as well",
    )
    parser.add_argument("--change", metavar="NAMES", help="what was changed on purpose, as --perf-change: driver,nccl")
    parser.add_argument(
        "--allow", action="append", default=[], metavar="FIELD", help="compare although FIELD differs; may be repeated"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="name the metrics that are on one side only")
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

    if options.report is not None:
        _write_report(options, compared)

    return _writer(options)(compared), answer(compared), compared.status


def _terms(options: argparse.Namespace) -> Terms:
    from ..compare.standing import Terms
    from ..machine.provenance import parse_declared

    declared = parse_declared(options.change) if options.change is not None else frozenset()
    return Terms(declared, frozenset(options.allow))


def _writer(options: argparse.Namespace) -> Callable[[Compared], str]:
    """The function that writes the format asked for; only its module is imported."""
    writers: Mapping[str, Callable[[], Callable[[Compared], str]]] = {
        "terminal": lambda: _terminal(options),
        "markdown": lambda: _markdown(options),
        "json": _json,
        "html": lambda: _html(options),
    }
    return writers[options.format or _by_suffix(options.output)]()


def _by_suffix(output: Path | None) -> str:
    suffix = output.suffix.lower() if output else ""
    if suffix not in _SUFFIXES:
        known = ", ".join(filter(None, _SUFFIXES))
        raise BadInput(f"-o {output}: no format has the suffix {suffix!r}; use one of {known}, or add --format")

    return _SUFFIXES[suffix]


def _terminal(options: argparse.Namespace) -> Callable[[Compared], str]:
    from ..report.comparison_text import Terminal, text

    if options.output is not None:
        return lambda compared: text(compared, Terminal())

    seen = sys.stdout.isatty()
    # COLUMNS is for whoever reads through a pipe; without it, what is no terminal has no width.
    width = shutil.get_terminal_size().columns if seen or os.environ.get("COLUMNS") else None
    terminal = Terminal(seen and not os.environ.get("NO_COLOR"), options.verbose, width)
    return lambda compared: text(compared, terminal)


def _markdown(options: argparse.Namespace) -> Callable[[Compared], str]:
    from ..report.content import of_comparison
    from ..report.markdown import markdown

    return lambda compared: markdown(of_comparison(compared, options.typed))


def _json() -> Callable[[Compared], str]:
    from ..report.comparison_json import document

    return document


def _html(options: argparse.Namespace) -> Callable[[Compared], str]:
    from ..report.content import of_comparison
    from ..report.html import page

    return lambda compared: page(of_comparison(compared, options.typed))


def _write_report(options: argparse.Namespace, compared: Compared) -> None:
    """The documents that a run keeps with --perf-report, of the stored files."""
    from ..report.comparison_json import document
    from ..report.content import of_comparison
    from ..report.documents import write_comparison

    write_comparison(options.report, of_comparison(compared, options.typed), document(compared))


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
