"""The profiler of a vLLM server: how one is launched with it, started, and stopped."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Final

import uvloop

from ..client.client import Client, HttpReply
from ..errors import BadInput, ServerError
from ..process.processes import scrubbed
from .models import LocalModel
from .server import Server

STOP_SECONDS: Final = 1800.0
"""Longest wait for a server to write its traces: with stacks of eight ranks that takes more than 20 minutes."""

_START_SECONDS: Final = 300.0
_ANSWER_SECONDS: Final = 120.0
_OLD_WAY: Final = "VLLM_TORCH_PROFILER_DIR"

_WITHOUT: Final = (
    "it was started without a profiler: start vLLM with --profiler-config "
    '\'{"profiler": "torch", "torch_profiler_dir": "/an/absolute/folder", "torch_profiler_with_stack": false}\', or a '
    f"vLLM that does not know that with {_OLD_WAY}=/an/absolute/folder"
)


def profiled(model: LocalModel, traces: Path, python: str) -> LocalModel:
    """`model` served by the vLLM of `python` with torch.profiler at hand, which writes to the folder `traces`.

    With --profiler-config where its vLLM has that, by environment variable where it has not. Without stacks, which
    would slow the host so much that the GPU waits for it, and without the front end, which has no GPU.
    """
    environment = {**model.environment, _OLD_WAY: str(traces)}
    if not _has_config(python):
        return replace(model, environment=environment)

    config = {
        "profiler": "torch",
        "torch_profiler_dir": str(traces),
        "torch_profiler_with_stack": False,
        "torch_profiler_dump_cuda_time_total": False,
        "ignore_frontend": True,
    }
    return replace(model, arguments=(*model.arguments, "--profiler-config", json.dumps(config)))


def start_profiler(server: Server) -> None:
    """Have `server` record from now on; raises BadInput if it has no profiler, ServerError if it does not start."""
    _post(server, "/start_profile", _START_SECONDS)


def stop_profiler(server: Server, seconds: float = STOP_SECONDS) -> None:
    """Have `server` write what it recorded, and wait until it has, at most `seconds`; raises as start_profiler."""
    _post(server, "/stop_profile", seconds)


def _post(server: Server, path: str, seconds: float) -> None:
    async def ask() -> HttpReply:
        async with Client(server.endpoint, stall_seconds=seconds) as client:
            return await client.command(path, seconds)

    with server.explained(f"while it answers {path}"):
        reply = uvloop.run(ask())

    if reply.status in (404, 405):
        raise BadInput(f"{server.endpoint.url}{path} answers HTTP {reply.status}: {_WITHOUT}")
    if reply.status != 200:
        raise ServerError(f"{server.endpoint.url}{path} answers HTTP {reply.status}: {reply.text[:500]!r}")


@lru_cache
def _has_config(python: str) -> bool:
    """Whether vLLM of `python` knows --profiler-config: it then has the module that defines it."""
    folder = _vllm_of_this_python() if python == sys.executable else _vllm_of(python)
    return (folder / "config" / "profiler.py").is_file()


def _vllm_of_this_python() -> Path:
    spec = importlib.util.find_spec("vllm")
    return Path(spec.origin).parent if spec and spec.origin else Path("/nonexistent")


def _vllm_of(python: str) -> Path:
    # Found, not imported, which takes many seconds.
    code = "import importlib.util as u; s = u.find_spec('vllm'); print(s.origin if s else '')"
    try:
        done = subprocess.run(
            [python, "-c", code],
            env={**scrubbed(os.environ), "PYTHONSAFEPATH": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ANSWER_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise BadInput(f"{python}: cannot be asked for its vllm: {error}") from error

    return Path(done.stdout.strip()).parent
