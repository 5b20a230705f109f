"""Servers slowed down on purpose: which slowdown reaches them, and how vLLM comes to load it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ..errors import BadInput, ServerError
from ..workloads.runtime.slowdown import VARIABLE, Slowdown, read_slowdowns
from . import spin_plugin
from .server import Server, ServerOptions
from .vllm_plugins import plugin_variables, write_plugin

MODULE = "decodegate_slowed"
"""Of the plugin, in the folder that the server alone has on its path."""

CONCURRENCIES = range(1, 1025)
SERVED = (
    *(tuple(f"{name}[c={number}]" for number in CONCURRENCIES) for name in ("tpot", "tpot_cpu")),
    ("throughput_plateau",),
    ("throughput_plateau_cpu",),
)
"""Metrics of servers by their names before the bracket: one server serves all of a tuple, at any concurrency."""


def server_slowdown(environ: Mapping[str, str]) -> float:
    """The fraction by which `environ` asks a server to be slower; 0 for none.

    A pattern such as "*" or "tpot*" reaches servers, in all their ranks; one with "@rank" means the bursts of gangs
    and reaches none. Raises BadInput for a pattern of one concurrency: a server is slower at all or at none.
    """
    return sum(map(_reaching, read_slowdowns(environ.get(VARIABLE, ""))))


def reaches_servers(slowdown: Slowdown) -> bool:
    """Whether servers are slower by it: it names one of their metrics at all concurrencies, and no rank."""
    return slowdown.rank is None and any(all(map(slowdown.matches, names)) for names in SERVED)


def _reaching(slowdown: Slowdown) -> float:
    if reaches_servers(slowdown):
        return slowdown.fraction
    if slowdown.rank is None and any(any(map(slowdown.matches, names)) for names in SERVED):
        raise BadInput(
            f"{VARIABLE}: {slowdown.pattern!r} names TPOT at some concurrencies, and a server is slowed down at all of "
            "them; write tpot*"
        )

    return 0.0


def refuse_attached(url: str, environ: Mapping[str, str]) -> None:
    """Raise BadInput if `environ` asks for a slowdown of the attached server at `url`."""
    if server_slowdown(environ):
        raise BadInput(
            f"{VARIABLE}={environ[VARIABLE]} is for servers too, and {url} runs already, so it cannot be slowed down; "
            "leave --perf-server out, or name other metrics, for example 'marlin*=5%'"
        )


def slowed_options(options: ServerOptions, fraction: float, folder: Path) -> ServerOptions:
    """`options` of a server that is slower by `fraction`; `folder` is created, for the plugin."""
    write_plugin(folder, MODULE, spin_plugin)
    given = options.environment
    ours = {spin_plugin.FRACTION: repr(fraction), **plugin_variables(given, folder, MODULE)}
    return replace(options, environment={**given, **ours})


def checked(server: Server, fraction: float) -> Server:
    """`server`, if its workers say that they are slowed down; else it is stopped, and ServerError raised."""
    assert server.process
    if spin_plugin.LOADED in server.process.log():
        return server

    server.stop()
    raise ServerError(
        f"the server was to be {fraction:.1%} slower ({VARIABLE}), and none of its workers says that it is: this vLLM "
        f"did not load the plugin {MODULE!r} of group vllm.general_plugins, or wraps its workers in another class, so "
        f"nothing measured on it would mean anything; {server.process.tail()}"
    )
