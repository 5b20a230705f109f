"""Command line and ini file: names and help of every option, and whether a run wants perf tests at all.

Every pytest run loads this module, perf tests or none: it imports nothing that a run without them does not need.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


MARKERS = (
    (
        "perf(metric='name[m={m}]', stand_in='name_cpu', tolerance='3%', extended=True, advisory=True, load=f): a test "
        "of performance that a baseline gates; runs with -m perf. metric, stand_in: what it measures, with and without "
        "a GPU. load: a function of its parameters that gives the load of its server"
    ),
    "world_size(n, ...): numbers of ranks to run the test with, one GPU each where there are GPUs",
)


# Help texts: capital first, no full stop after a single phrase, the unit in the metavar.
def add_options(parser: pytest.Parser) -> None:
    """Register every option and ini value under one group."""
    group = parser.getgroup("perf", "decodegate: performance gate for LLM inference hosts")
    group.addoption("--perf", action="store_true", help="Run perf tests too, as -m perf does alone")
    group.addoption("--perf-extended", action="store_true", help="Run extended perf tests too: sweeps, other shards")
    group.addoption(
        "--perf-only",
        metavar="METRICS",
        action="append",
        help="Run only perf tests of metrics whose names match: 'marlin_moe*,tpot[c=1]'; a bracket stands for itself",
    )
    group.addoption(
        "--perf-record",
        nargs="?",
        const="missing",
        metavar="missing|gated|all",
        help="Record baselines: 'missing' records metrics that have none and gates the rest (the default when no "
        "value is given); 'gated' gates all and appends a session for each that did not get slower, for another host "
        "where nothing changed; "
        "'all' appends a session for every metric and gates none",
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
        "--perf-base pairs of gangs, and how many live at once (default: 6)",
    )
    group.addoption(
        "--perf-max-replicates",
        metavar="N",
        help="Add replicates up to N while a verdict is open and --perf-budget is not spent (default: 4 x N)",
    )
    group.addoption(
        "--perf-change",
        metavar="NAMES",
        help="What is different on purpose, for example driver,nccl, env:NCCL_PROTO or flag:max-num-seqs; any other "
        "difference confounds",
    )
    group.addoption(
        "--perf-candidate",
        metavar="STACK",
        action="append",
        help="The stack under test: python=PATH (the Python of another environment), nccl=PATH (a libnccl.so to "
        "preload), vllm=VERSION (that this Python must have), env:NAME=VALUE, for servers flag:--NAME=VALUE or "
        "flag:--NAME (of vLLM's command line), tp=N and model=PATH_OR_NAME, several joined by commas or repeated "
        "(default: 'this', what pytest runs with); with --perf-base also server=URL, a server that runs already, for "
        "both",
    )
    group.addoption(
        "--perf-base",
        metavar="STACK",
        action="append",
        help="Measure this stack too, in turn with the one under test, and gate against it instead of a stored "
        "baseline: it is the base (what runs today); 'same' measures the candidate twice",
    )
    group.addoption(
        "--perf-budget",
        metavar="TIME",
        help="Time that the run may spend on metrics that are still open after their first look: 45m, 2h (default: "
        "20m); with --perf-base, for all servers of the run (default: 30m)",
    )
    group.addoption(
        "--perf-pin",
        metavar="NAME=VALUE",
        help="Use this backend and no other, joined by commas: attention=TRITON_MLA for MLA decode, moe=marlin for the "
        "experts; also passed to the server that the suite launches",
    )
    group.addoption("--perf-server", metavar="URL", help="Measure TPOT of this running OpenAI-compatible server")
    group.addoption("--perf-launch", metavar="ARGS", help="Launch vLLM with these arguments instead of the suite's own")
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
        help="Start the server N times, so that the interval covers restarts too: each start serves all TPOT metrics, "
        "one window of each (default: all windows on one start)",
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
    group.addoption(
        "--perf-despite",
        metavar="CHECKS",
        action="append",
        help="Measure although these checks of the host FAIL, as decodegate doctor names them: 'gpu-processes,room', "
        "or 'all'; each is said in the header",
    )
    group.addoption(
        "--perf-report",
        metavar="DIR",
        help="Keep report.html, report.md, results.jsonl and more in DIR, true after each metric",
    )
    parser.addini("perf_budget", "As --perf-budget, which is over it")
    parser.addini(
        "perf_not_material",
        "Part of the decode step that a metric may cost at worst and still pass where noise hides it (default: 0.2%)",
    )
    parser.addini("perf_baselines", "Folder of stored baselines, relative to the rootdir (default: baselines)")
    parser.addini(
        "perf_tolerance",
        "Tolerance bands by metric name, one 'pattern = 3%' a line; the last match wins over test and marker; one that "
        "begins with ttft, itl_p50, itl_p99 or output_rate gates that beside TPOT: 'ttft[c=8] = 5%'",
        type="linelist",
        default=[],
    )


def any_given(config: pytest.Config) -> bool:
    """Whether an option or ini value of this plugin was set, so that a bad one is refused before any test runs."""
    given = (value for name, value in vars(config.option).items() if name.startswith("perf") and name != "perf")
    return any(given) or any(map(config.getini, ("perf_tolerance", "perf_budget", "perf_not_material")))


def perf_wanted(config: pytest.Config) -> bool:
    """True if perf tests were asked for: by --perf, --perf-only, or an -m expression that names perf as wanted."""
    if config.getoption("--perf") or config.getoption("--perf-only"):
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
