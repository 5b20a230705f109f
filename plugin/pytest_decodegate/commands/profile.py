"""`decodegate profile`: where the time of a decode step goes, from traces or a fresh capture."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadInput

if TYPE_CHECKING:
    from ..profile.reading import ReadProfile
    from ..profile.step_profile import StepProfile
    from ..serving.server import Server

_START_SECONDS = 2700.0  # as --perf-server-timeout has it

WRONG = 1
"""Exit status where the profile is not what the model must show."""


def add(commands: Any) -> None:
    """Register the command with the subparsers `commands`."""
    parser = commands.add_parser("profile", help="show where the time of a decode step goes, from a profiler's traces")
    parser.add_argument(
        "files",
        type=Path,
        nargs="*",
        metavar="FILE",
        help="traces of torch.profiler, one a rank, or one SQLite export of nsys",
    )
    parser.add_argument(
        "--before",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="the traces, or the --json of an earlier profile, to compare with",
    )
    parser.add_argument(
        "--streams", type=int, metavar="N", help="batch size (default: the commonest in traces, 1 of a capture)"
    )
    parser.add_argument(
        "--layers", type=int, metavar="L", help="layers of Kimi-K2.5 in the model, for its counts (default: all 61)"
    )
    parser.add_argument("--any-model", action="store_true", help="not Kimi-K2.5: check no counts but that of AllReduce")
    parser.add_argument("--categories", type=Path, metavar="TOML", help="your own rules, asked before the built-in")
    parser.add_argument(
        "--allow-missing-ranks", action="store_true", help="take a partial profile where ranks have no file"
    )
    _add_capture(parser)
    parser.add_argument("--format", choices=("text", "markdown", "json"), default="text", help="what is printed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the profile, for a later --before")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write stacked bars, with those of --before if given")
    parser.add_argument("--slim", type=Path, metavar="FILE", help="write the median step as a trace for Perfetto")
    parser.set_defaults(run=_run)


def _add_capture(parser: Any) -> None:
    """Options of a fresh capture, which takes the place of FILE."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--server", metavar="URL", help="profile this vLLM server, started with a profiler")
    source.add_argument(
        "--launch", action="store_true", help="profile a Kimi rank-slice on all visible GPUs, of --layers layers"
    )
    parser.add_argument(
        "--trace-dir", type=Path, metavar="DIR", help="folder of the server's traces (default of --launch: a temporary)"
    )
    parser.add_argument("--steps", type=int, default=32, metavar="N", help="decode steps of a capture (default: 32)")
    parser.add_argument("--server-model", metavar="NAME", help="of a server with several models")
    parser.add_argument("--server-key-env", metavar="VAR", help="environment variable that holds the API key")


def _run(options: argparse.Namespace) -> int:
    captures = bool(options.server or options.launch)
    if captures == bool(options.files):
        raise BadInput("decodegate profile: give the files of a profiler, one a rank, or --server URL, or --launch")

    layers = _layers(options.layers)
    if captures:
        with _captured(options) as (files, depth):
            return _show(_read(files, options), depth or layers, options)

    return _show(_read(options.files, options), layers, options)


@contextmanager
def _captured(options: argparse.Namespace) -> Iterator[tuple[list[Path], int | None]]:
    """The files of a fresh capture, and how many layers a launched model has; temporary ones last as long as this."""
    from ..measure.capture import capture

    with tempfile.TemporaryDirectory(prefix="decodegate-") as temporary:
        folder = Path(temporary)
        server, traces, depth = _attached(options) if options.server else _launched(options, folder)
        with server:
            streams = 1 if options.streams is None else options.streams
            files = capture(server, traces, streams=streams, steps=options.steps, on_wait=_wait)

        yield files, depth


def _attached(options: argparse.Namespace) -> tuple[Server, Path, int | None]:
    from ..serving.server import attach

    if options.trace_dir is None:
        raise BadInput("--server: say with --trace-dir where the profiler of this server writes to, as seen from here")

    key = os.environ.get(options.server_key_env or "", "")
    return attach(options.server, model=options.server_model, key=key), options.trace_dir, None


def _launched(options: argparse.Namespace, folder: Path) -> tuple[Server, Path, int | None]:
    from ..machine.fingerprint import machine
    from ..resources.hardware import ENVIRONMENT
    from ..serving.home import ServerLaunch, launch_own
    from ..serving.models import slice_layers

    gpus = machine().gpus
    memory_gib = min((gpu.memory_gib for gpu in gpus), default=0)
    layers = options.layers or slice_layers(memory_gib)
    traces = (options.trace_dir or folder / "traces").absolute()
    traces.mkdir(parents=True, exist_ok=True)
    start = ServerLaunch(folder, ENVIRONMENT, _START_SECONDS, traces=traces)
    starting = launch_own(start, gpus=len(gpus), memory_gib=memory_gib, pins={}, layers=layers)
    return starting.wait(_wait), traces, layers


def _wait(what: str) -> None:
    """Say what is waited for, on a terminal only: a log needs no line every half second."""
    if sys.stderr.isatty():
        print(f"\r{what[:100]:<100}", end="", file=sys.stderr, flush=True)


def _show(read: ReadProfile, layers: int, options: argparse.Namespace) -> int:
    before = _before(options) if options.before else None
    _write(options, read, before)
    _print(options.format, read.profile, before)
    return WRONG if _say_problems(read.profile, None if options.any_model else layers) else 0


def _layers(given: int | None) -> int:
    from ..workloads.kimi import KIMI_K25

    if given is None:
        return KIMI_K25.layers
    if not KIMI_K25.dense_layers < given <= KIMI_K25.layers:
        raise BadInput(f"--layers {given}: Kimi-K2.5 has {KIMI_K25.layers}, and layer 0 is dense: write 2 to 61")

    return given


def _read(paths: Sequence[Path], options: argparse.Namespace) -> ReadProfile:
    from ..profile import categories
    from ..profile.reading import read_profile

    rules = categories.read(options.categories) if options.categories else None
    return read_profile(paths, rules, streams=options.streams, missing_allowed=options.allow_missing_ranks)


def _before(options: argparse.Namespace) -> StepProfile:
    from ..profile import documents

    if len(options.before) == 1 and options.before[0].suffix == ".json" and _is_stored(options.before[0]):
        return documents.read(options.before[0])

    return _read(options.before, options).profile


def _is_stored(path: Path) -> bool:
    """Whether it begins as a stored profile does, and not as a trace."""
    from ..profile.documents import FORMAT
    from ..profile.reading import begins

    return FORMAT.encode() in begins(path, 100)


def _write(options: argparse.Namespace, read: ReadProfile, before: StepProfile | None) -> None:
    from ..profile import documents
    from ..profile.step_profile import median_step
    from ..report.profile import svg

    if options.json:
        documents.write(options.json, documents.dumps(read.profile))
    if options.svg:
        sides = {"before": before, "after": read.profile} if before else {"step": read.profile}
        documents.write(options.svg, svg(sides).encode())
    if options.slim:
        step = median_step(read.steady)
        documents.write(options.slim, documents.slim_trace(step, read.steady.ranks))


def _print(form: str, profile: StepProfile, before: StepProfile | None) -> None:
    from ..profile import documents
    from ..report import profile as report

    if form == "json":
        print(documents.dumps(profile).decode(), end="")
        return

    print("\n".join(report.markdown(profile) if form == "markdown" else report.text(profile)))
    if before:
        changes = report.change_text(before, profile)
        print("\n".join(["", "```", *changes, "```"] if form == "markdown" else ["", *changes]))


def _say_problems(profile: StepProfile, layers: int | None) -> list[str]:
    """Print on stderr what shows that the profile is wrong or not understood; returns what is wrong.

    layers: of Kimi-K2.5; None is another model.
    """
    from ..profile import truth
    from ..workloads.kimi import KIMI_K25

    ranks = len(profile.ranks) + len(profile.missing)
    counts = None if layers is None else truth.expected(replace(KIMI_K25, layers=layers), ranks)
    for kernel in truth.unknown(profile):
        share = f"{100 * kernel.share:.1f} % of the step"
        print(f"decodegate: no rule knows {kernel.name[:120]!r}, {share}: give one, --categories", file=sys.stderr)

    wrong = truth.problems(profile, counts)
    for problem in wrong:
        print(f"decodegate: {problem}", file=sys.stderr)

    return wrong
