"""Command line, ini file and markers: read once, checked once, into one frozen Settings."""

from __future__ import annotations

import fnmatch
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args
from urllib.parse import urlsplit

from .errors import BadInput

if TYPE_CHECKING:
    import pytest

    from .gang.options import Nodes

Record = Literal["off", "missing", "all"]

AUTO = "auto"
"""The value of --perf-baseline that names its default: a stored stack is chosen. A file of this name is "./auto"."""

MARKERS = (
    "perf(tolerance='3%'): a performance test, gated against a stored baseline; runs with -m perf or --perf",
    "world_size(n, ...): numbers of ranks to run the test with, one GPU each where there are GPUs",
)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user asked for. Times in seconds, tolerances as fractions. baseline: None chooses from `baselines`."""

    record: Record
    baseline: Path | None
    baselines: Path
    replicates: int
    max_replicates: int
    change: frozenset[str]
    tolerances: tuple[tuple[str, float], ...]
    server: str | None
    serve: tuple[str, ...] | None
    server_seconds: float
    start_seconds: float
    deadline_seconds: float
    nodes: Nodes | None
    report: Path | None

    def tolerance(self, metric: str, own: float) -> float:
        """The band of `metric`: the last matching line of the ini option perf_tolerance, else its own."""
        matching = [band for pattern, band in self.tolerances if fnmatch.fnmatchcase(metric, pattern)]
        return matching[-1] if matching else own


# Help texts: capital first, no full stop after a single phrase, the unit in the metavar.
def add_options(parser: pytest.Parser) -> None:
    """Register every option and ini value under one group."""
    group = parser.getgroup("perf", "decodegate: performance gate for LLM inference hosts")
    group.addoption("--perf", action="store_true", help="Run perf tests too, as -m perf does alone")
    group.addoption(
        "--perf-record",
        nargs="?",
        const="missing",
        metavar="missing|all",
        help="Record baselines: 'missing' records metrics that have none and gates the rest (the default when no "
        "value is given); 'all' appends a session for every metric and gates none",
    )
    group.addoption(
        "--perf-baseline",
        metavar="auto|PATH",
        help="Gate against this file, whatever stack it was recorded on; 'auto', the default, takes the last recorded "
        "stack of this machine class that differs only in what --perf-change declares, else this very stack",
    )
    group.addoption("--perf-replicates", metavar="N", help="Fresh gangs or server windows per metric (default: 5)")
    group.addoption(
        "--perf-max-replicates", metavar="N", help="Add replicates up to N while a verdict is open (default: 2 x N)"
    )
    group.addoption(
        "--perf-change",
        metavar="NAMES",
        help="What is different on purpose, for example driver,nccl or env:NCCL_PROTO; any other difference confounds",
    )
    group.addoption("--perf-server", metavar="URL", help="Measure TPOT of this running OpenAI-compatible server")
    group.addoption("--perf-serve", metavar="ARGS", help="Launch vLLM with these arguments instead of the suite's own")
    group.addoption("--perf-server-timeout", metavar="SECONDS", help="Time for a server to start (default: 2700)")
    group.addoption("--perf-start-timeout", metavar="SECONDS", help="Time for the ranks to start (default: 300)")
    group.addoption("--perf-deadline", metavar="SECONDS", help="Time for one call on the ranks (default: 600)")
    group.addoption("--perf-nnodes", metavar="N", help="Spread each gang over N nodes, started by --perf-node-start")
    group.addoption(
        "--perf-node-start",
        metavar="COMMAND",
        action="append",
        default=[],
        help="Command that starts a program on a node, once per node: 'ssh n1 {command}', 'srun -w n1'; '' is here",
    )
    group.addoption("--perf-rdzv-endpoint", metavar="HOST:PORT", help="Where torchrun's agents meet; gang k adds k - 1")
    group.addoption("--perf-listen-host", metavar="HOST", help="Address of this host that ranks on all nodes can reach")
    group.addoption("--perf-report", metavar="FILE", help="Append each verdict to FILE as a JSON line, as it comes")
    parser.addini("perf_baselines", "Folder of stored baselines, relative to the rootdir (default: baselines)")
    parser.addini(
        "perf_tolerance",
        "Tolerance bands by metric name, one 'pattern = 3%' a line; the last match wins over test and marker",
        type="linelist",
        default=[],
    )


def read_settings(config: pytest.Config) -> Settings:
    """Check everything that can be checked before a test runs; raises BadInput naming the option and the value."""
    replicates = _count(config, "--perf-replicates", default=5, at_least=2)
    most = _count(config, "--perf-max-replicates", default=2 * replicates, at_least=replicates)
    server, serve = config.getoption("--perf-server"), config.getoption("--perf-serve")
    if server and serve:
        raise BadInput("--perf-server and --perf-serve: give one, a server to attach to or one to launch")

    return Settings(
        record=_record(config.getoption("--perf-record")),
        baseline=_existing_file(config.getoption("--perf-baseline")),
        baselines=config.rootpath / (config.getini("perf_baselines") or "baselines"),
        replicates=replicates,
        max_replicates=most,
        change=_change(config.getoption("--perf-change")),
        tolerances=tuple(_tolerance_lines(config.getini("perf_tolerance"))),
        server=_url(server),
        serve=_serve(serve),
        server_seconds=_seconds(config, "--perf-server-timeout", default=2700),
        start_seconds=_seconds(config, "--perf-start-timeout", default=300),
        deadline_seconds=_seconds(config, "--perf-deadline", default=600),
        nodes=_nodes(config),
        report=_writable(config.getoption("--perf-report")),
    )


def perf_wanted(config: pytest.Config) -> bool:
    """True if perf tests were asked for: by --perf, or by an -m expression that names perf other than to refuse it."""
    if config.getoption("--perf"):
        return True

    expression = config.getoption("markexpr", default="") or ""
    return re.search(r"\bperf\b", expression) is not None and _can_select_perf(expression)


def _can_select_perf(expression: str) -> bool:
    """Whether an -m expression could be true of a perf test, with no other marker or with all others."""
    from _pytest.mark.expression import Expression

    try:
        compiled = Expression.compile(expression)
    except SyntaxError:  # pytest complains about it itself, with a better text
        return False

    def alone(name: str, /, **_: object) -> bool:
        return name == "perf"

    def with_all_others(_name: str, /, **_: object) -> bool:
        return True

    return compiled.evaluate(alone) or compiled.evaluate(with_all_others)


def marker_tolerance(item: pytest.Item) -> float | None:
    """The band of the nearest perf marker that gives one; raises BadInput for anything else in a perf marker."""
    bands = [_perf_marker(item.nodeid, marker) for marker in item.iter_markers("perf")]
    return next((band for band in bands if band is not None), None)


def marker_world_sizes(nodeid: str, marker: pytest.Mark | None) -> tuple[int, ...]:
    """The sizes of a world_size marker, (1,) without one; raises BadInput for what is no positive whole number."""
    if marker is None:
        return (1,)
    if marker.kwargs or not marker.args:
        raise BadInput(f"{nodeid}: world_size takes one or more numbers, for example @pytest.mark.world_size(1, 2)")
    for size in marker.args:
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise BadInput(f"{nodeid}: world_size {size!r} is not a positive whole number")

    return tuple(marker.args)


def _perf_marker(nodeid: str, marker: pytest.Mark) -> float | None:
    if marker.args:
        raise BadInput(f"{nodeid}: the perf marker takes no positional argument, found {marker.args[0]!r}")
    if unknown := sorted(set(marker.kwargs) - {"tolerance"}):
        raise BadInput(f"{nodeid}: the perf marker knows no {unknown[0]!r}; it takes tolerance='3%'")
    if "tolerance" not in marker.kwargs:
        return None

    from .metric import parse_tolerance

    return parse_tolerance(str(marker.kwargs["tolerance"]), f"{nodeid}: perf marker")


def _tolerance_lines(lines: list[str]) -> Iterator[tuple[str, float]]:
    from .metric import parse_tolerance

    for line in lines:
        # Metric names may hold "=" (marlin_moe[m=8]), so the last one separates.
        pattern, equals, band = line.rpartition("=")
        if not (equals and pattern.strip()):
            raise BadInput(f"ini option perf_tolerance: line {line!r} is not of the form 'metric pattern = 3%'")

        # A bracket in a metric name is itself, not a set of characters.
        yield pattern.strip().replace("[", "[[]"), parse_tolerance(band, f"ini option perf_tolerance: line {line!r}")


def _change(text: str | None) -> frozenset[str]:
    if text is None:
        return frozenset()

    from .machine.provenance import parse_declared

    return parse_declared(text)


def _nodes(config: pytest.Config) -> Nodes | None:
    """The nodes of each gang, None for this host alone; the options for several are all or none."""
    given = {
        name: config.getoption(name) for name in ("--perf-node-start", "--perf-rdzv-endpoint", "--perf-listen-host")
    }
    count = _count(config, "--perf-nnodes", default=1, at_least=1)
    if count == 1 and not any(given.values()):
        return None
    if missing := [name for name, value in given.items() if not value]:
        raise BadInput(f"--perf-nnodes: {count} nodes also need {', '.join(missing)}")

    start = given["--perf-node-start"]
    if len(start) != count:
        raise BadInput(f"--perf-node-start: {len(start)} command(s) for --perf-nnodes={count}; give one for each node")

    from .gang.options import Nodes

    return Nodes(tuple(start), given["--perf-rdzv-endpoint"], given["--perf-listen-host"])


def _record(text: str | None) -> Record:
    if text is None:
        return "off"
    for mode in get_args(Record):
        if text == mode:
            return mode  # type: ignore[no-any-return]

    # An option with an optional value takes the next word, which may have been meant as a path.
    raise BadInput(f"--perf-record: {text!r} is neither 'missing' nor 'all'; write --perf-record=missing before a path")


def _count(config: pytest.Config, option: str, *, default: int, at_least: int) -> int:
    text = config.getoption(option)
    if text is None:
        return default
    if not text.isdecimal() or int(text) < at_least:
        raise BadInput(f"{option}: {text!r} is not a whole number of at least {at_least}")

    return int(text)


def _seconds(config: pytest.Config, option: str, *, default: float) -> float:
    text = config.getoption(option)
    if text is None:
        return default
    if not re.fullmatch(r"\d+(\.\d+)?", text) or float(text) == 0:
        raise BadInput(f"{option}: {text!r} is not a number of seconds above zero")

    return float(text)


def _existing_file(text: str | None) -> Path | None:
    if text is None or text == AUTO:
        return None
    if not (path := Path(text).absolute()).is_file():
        raise BadInput(
            f"--perf-baseline: {text!r} is not a file; give one of baselines/<machine class>/NNNN_*.json, or {AUTO!r}"
        )

    return path


def _writable(text: str | None) -> Path | None:
    if text is None:
        return None
    path = Path(text).absolute()
    # Opening it would leave an empty file behind a run without verdicts.
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise BadInput(f"--perf-report: cannot write to {text!r}; give a file in a folder that exists and is writable")

    return path


def _url(text: str | None) -> str | None:
    if text is None:
        return None
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadInput(f"--perf-server: {text!r} is not a URL such as http://127.0.0.1:8000")

    return text.rstrip("/")


def _serve(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadInput(f"--perf-serve: {text!r} cannot be split into arguments: {error}") from error

    from .serving.command import read_command

    read_command(words)  # refused now rather than when the server is wanted
    return tuple(words)
