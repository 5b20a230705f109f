"""Server processes that stand in for vLLM: a script that sees vLLM's arguments, and what it is launched with."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

from pytest_decodegate.serving.models import LocalModel
from pytest_decodegate.serving.server import Server, ServerOptions, begin

# Serves /health and /v1/models, and hands completions to `complete`, which a test defines.
SERVE = """
import http.server, json, os, subprocess, sys, time
arguments = dict(zip(sys.argv[1:], sys.argv[2:]))
port, name = int(arguments["--port"]), arguments["--served-model-name"]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        pages = {"/health": "", "/v1/models": json.dumps({"data": [{"id": name}]})}
        page = pages.get(self.path)
        self.send_response(404 if page is None else 200)
        self.end_headers()
        self.wfile.write((page or "").encode())
    def do_POST(self):
        complete(self)
def serve():
    http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def launch(given: ServerOptions, on_wait: Callable[[str], None] | None = None) -> Server:
    """The server once it answers."""
    return begin(given).wait(on_wait)


def options(tmp_path: Path, script: str, **changes: object) -> ServerOptions:
    """Options whose python is a script that sees the arguments which vLLM would see."""
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\n{SERVE}\n{textwrap.dedent(script)}")
    python.chmod(0o755)
    base: dict[str, object] = {
        "python": str(python),
        "model": LocalModel(tmp_path / "model", 100, ()),
        "environment": dict(os.environ),
        "log_path": tmp_path / "logs" / "server.log",
        "grace_seconds": 1.0,
    }
    return ServerOptions(**{**base, **changes})  # type: ignore[arg-type]
