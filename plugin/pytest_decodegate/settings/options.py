"""Command line, ini file and markers: read once, checked once, into one frozen Settings."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BadInput
from . import values as values

if TYPE_CHECKING:
    import pytest

    from ..gang.options import Nodes
    from .stack import Stack

MARKERS = (
    "perf(tolerance='3%', extended=True, advisory=True): a performance test, gated by a baseline; runs with -m perf",
    "world_size(n, ...): numbers of ranks to run the test with, one GPU each where there are GPUs",
)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user asked for. Times in seconds, tolerances as fractions. baseline: None chooses from `baselines`."""

    record: values.Record
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
    pins: Mapping[str, str]
    stack: Stack
    base: Stack | None
    budget_seconds: float
    server_key_env: str | None
    server_model: str | None
    server_restarts: int | None
    warm_up_seconds: float
    quality_prompts: tuple[str, ...]

    def tolerance(self, metric: str, own: float) -> float:
        """The band of `metric`: the last matching line of the ini option perf_tolerance, else its own."""
        matching = [band for pattern, band in self.tolerances if fnmatch.fnmatchcase(metric, pattern)]
        return matching[-1] if matching else own


# Help texts: capital first, no full stop after a single phrase, the unit in the metavar.
def add_options(parser: pytest.Parser) -> None:
    """Register every option and ini value under one group."""
    group = parser.getgroup("perf", "decodegate: performance gate for LLM inference hosts")
    group.addoption("--perf", action="store_true", help="Run perf tests too, as -m perf does alone")
    group.addoption("--perf-extended", action="store_true", help="Run extended perf tests too: sweeps, other shards")
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
    group.addoption(
        "--perf-replicates",
        metavar="N",
        help="Fresh gangs or server windows per metric (default: 5); with "
        "--perf-against pairs of gangs, and how many live at once (default: 6)",
    )
    group.addoption(
        "--perf-max-replicates",
        metavar="N",
        help="Add replicates up to N while a verdict is open (default: 2 x N, with --perf-against 4 x N)",
    )
    group.addoption(
        "--perf-change",
        metavar="NAMES",
        help="What is different on purpose, for example driver,nccl or env:NCCL_PROTO; any other difference confounds",
    )
    group.addoption(
        "--perf-stack",
        metavar="STACK",
        action="append",
        help="The stack under test: python=PATH (the Python of another environment), nccl=PATH (a libnccl.so to "
        "preload), env:NAME=VALUE, several joined by commas or repeated (default: 'this', what pytest runs with); with "
        "--perf-against also server=URL, a server that runs already, for both",
    )
    group.addoption(
        "--perf-against",
        metavar="STACK",
        action="append",
        help="Measure this stack too, in turn with the one under test, and gate against it instead of a stored "
        "baseline: it is the base (what runs today), --perf-stack the candidate; 'same' measures the candidate twice",
    )
    group.addoption(
        "--perf-budget",
        metavar="TIME",
        help="With --perf-against, time for the servers of one TPOT, which are started in turn: 45m, 2h (default: 30m)",
    )
    group.addoption(
        "--perf-pin",
        metavar="NAME=VALUE",
        help="Use this backend and no other, joined by commas: attention=TRITON_MLA for MLA decode, moe=marlin for the "
        "experts; also passed to the server that the suite launches",
    )
    group.addoption("--perf-server", metavar="URL", help="Measure TPOT of this running OpenAI-compatible server")
    group.addoption("--perf-serve", metavar="ARGS", help="Launch vLLM with these arguments instead of the suite's own")
    group.addoption(
        "--perf-server-key-env",
        metavar="NAME",
        help="Environment variable that holds the API key of --perf-server, for example OPENAI_API_KEY; never stored",
    )
    group.addoption(
        "--perf-server-model",
        metavar="NAME",
        help="Which model of --perf-server to measure, where it serves several (default: the only one)",
    )
    group.addoption(
        "--perf-server-restarts",
        metavar="N",
        help="Start the server N times for each TPOT, one window a start, so that the interval covers restarts too "
        "(default: all windows on one start)",
    )
    group.addoption(
        "--perf-quality-prompts",
        metavar="FILE",
        help='Ask these prompts in the quality test, JSON lines of {"prompt": "..."}, instead of the built-in ones',
    )
    group.addoption("--perf-server-timeout", metavar="SECONDS", help="Time for a server to start (default: 2700)")
    group.addoption(
        "--perf-warmup-timeout",
        metavar="SECONDS",
        help="Time for each token of a server's warm-up, in which it may compile kernels (default: 900)",
    )
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
    group.addoption(
        "--perf-rdzv-endpoint",
        metavar="HOST:PORT",
        help="Where torchrun's agents meet: gang k at PORT + k - 1, the gang that asks NCCL at PORT - 1",
    )
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
    stack, base = values.stacks(config)
    replicates = values.count(config, "--perf-replicates", default=6 if base else 5, at_least=2)
    most = values.count(config, "--perf-max-replicates", default=(4 if base else 2) * replicates, at_least=replicates)
    server, serve = config.getoption("--perf-server"), config.getoption("--perf-serve")
    if server and serve:
        raise BadInput("--perf-server and --perf-serve: give one, a server to attach to or one to launch")

    attached = server or stack.server
    return Settings(
        record=values.record(config.getoption("--perf-record")),
        baseline=values.existing_file(config.getoption("--perf-baseline")),
        baselines=config.rootpath / (config.getini("perf_baselines") or "baselines"),
        replicates=replicates,
        max_replicates=most,
        change=values.change(config.getoption("--perf-change")),
        tolerances=tuple(values.tolerance_lines(config.getini("perf_tolerance"))),
        server=values.url(server),
        serve=values.serve(serve),
        server_seconds=values.seconds(config, "--perf-server-timeout", default=2700),
        start_seconds=values.seconds(config, "--perf-start-timeout", default=300),
        deadline_seconds=values.seconds(config, "--perf-deadline", default=600),
        nodes=values.nodes(config),
        report=values.writable(config.getoption("--perf-report")),
        pins=values.pins(config.getoption("--perf-pin")),
        stack=stack,
        base=base,
        budget_seconds=values.duration(config, "--perf-budget", default=1800),
        server_key_env=values.key_env(config.getoption("--perf-server-key-env"), attached),
        server_model=values.server_model(config.getoption("--perf-server-model"), attached),
        server_restarts=values.restarts(config, server),
        warm_up_seconds=values.seconds(config, "--perf-warmup-timeout", default=900),
        quality_prompts=values.quality_prompts(config.getoption("--perf-quality-prompts")),
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


def marker_extended(item: pytest.Item) -> bool:
    """Whether a perf marker of the item says extended=True; `marker_tolerance` has checked the markers."""
    return any(marker.kwargs.get("extended") for marker in item.iter_markers("perf"))


def marker_advisory(item: pytest.Item) -> bool:
    """Whether a perf marker of the item says advisory=True: measured and shown, but blocking nothing but by numbers."""
    return any(marker.kwargs.get("advisory") for marker in item.iter_markers("perf"))


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
    if unknown := sorted(set(marker.kwargs) - {"tolerance", "extended", "advisory"}):
        raise BadInput(
            f"{nodeid}: the perf marker knows no {unknown[0]!r}; it takes tolerance='3%', extended=True, advisory=True"
        )
    for flag in ("extended", "advisory"):
        if not isinstance(marker.kwargs.get(flag, False), bool):
            raise BadInput(f"{nodeid}: perf marker: {flag} is {marker.kwargs[flag]!r}; give True or False")
    if "tolerance" not in marker.kwargs:
        return None

    from ..metric import parse_tolerance

    return parse_tolerance(str(marker.kwargs["tolerance"]), f"{nodeid}: perf marker")
