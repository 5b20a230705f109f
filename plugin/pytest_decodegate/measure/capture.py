"""A profile of decode steps taken from a server: the load that it sees, and the trace files that it leaves."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ..errors import BadInput, ServerError
from ..serving.profiler import STOP_SECONDS, start_profiler, stop_profiler
from ..serving.server import Server
from .load import ClosedLoop
from .window import Load

PROMPT_TOKENS: Final = 64
STEPS: Final = 32
"""Decode steps of a capture: their scatter is a few per cent, and a trace of more takes minutes to write."""

_SPARE_STEPS: Final = 9  # the first token is of the prefill; streams of one round come in over several steps
_STALL_SECONDS: Final = 900.0  # a profiler with stacks takes the host for long
_SETTLE_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.5
_GIVE_UP_SECONDS: Final = 30.0
_PATTERNS: Final = ("*.pt.trace.json", "*.pt.trace.json.gz")
_FRONT_END: Final = "async_llm"  # vLLM's name for the trace of its front end, which has no GPU


def capture(
    server: Server,
    traces: Path,
    *,
    streams: int = 1,
    steps: int = STEPS,
    stop_seconds: float = STOP_SECONDS,
    settle_seconds: float = _SETTLE_SECONDS,
    on_wait: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """Have `server` profile at least `steps` decode steps of `streams` sequences; returns its new files in `traces`.

    Warmed up first, so that nothing is compiled in the recording. The recording is stopped whatever happens to the
    load. Raises BadInput for a server without a profiler or a folder into which it does not write, ServerError.
    """
    before = _sizes(traces)
    loop = ClosedLoop(server, Load(streams, PROMPT_TOKENS, steps + _SPARE_STEPS, requests=streams))
    loop.warm_up(_STALL_SECONDS, on_wait)
    on_wait("starting the profiler")
    start_profiler(server)
    try:
        loop.warm_up(_STALL_SECONDS, on_wait)
    except BaseException:  # Ctrl-C too: the server may be somebody's
        _stop_after_failure(server)
        raise

    on_wait("the server writes its traces")
    stop_profiler(server, stop_seconds)
    return _written(traces, before, settle_seconds)


def _stop_after_failure(server: Server) -> None:
    """Leave no profiler running; the first failure is the one to tell, and nobody waits long for these traces."""
    try:
        stop_profiler(server, _GIVE_UP_SECONDS)
    except (ServerError, BadInput):
        return


def _sizes(traces: Path) -> dict[Path, int]:
    """Trace files of ranks and their sizes. Raises BadInput where `traces` is no folder."""
    if not traces.is_dir():
        raise BadInput(f"{traces}: is no folder; give the one that the server's profiler writes to, seen from here")

    found = (path for pattern in _PATTERNS for path in traces.glob(pattern))
    return {path: path.stat().st_size for path in found if _FRONT_END not in path.name}


def _written(traces: Path, before: dict[Path, int], seconds: float) -> list[Path]:
    """Files that were not there `before`, once they do not grow any more."""
    deadline = time.monotonic() + seconds
    last: dict[Path, int] = {}
    while True:
        new = {path: size for path, size in _sizes(traces).items() if path not in before}
        if new and new == last:
            return sorted(new)
        if time.monotonic() > deadline:
            what = f"they still grow after {seconds:g} s" if new else f"none came within {seconds:g} s"
            raise BadInput(
                f"{traces}: no whole traces of the server: {what}; is this the folder of its profiler "
                "(torch_profiler_dir), and on the same host?"
            )

        last = new
        time.sleep(_POLL_SECONDS)
