"""Python environments with a given vLLM, made once and kept: `vllm=VERSION` in a stack."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import BadInput

COMPLETE = "complete"
"""File in an environment that was installed to its end."""

_VERSION = re.compile(r"[0-9][0-9A-Za-z.+!_-]*")


def environment_of(version: str) -> str:
    """The Python of an environment with vLLM `version`; made by uv, or pip without it, from the index they are set to.

    Raises BadInput with the installer's last words if there is no such version or it does not install.
    """
    from filelock import FileLock

    if not _VERSION.fullmatch(version):
        raise BadInput(f"vllm={version} is no version; write for example vllm=0.26.0")

    folder = cache_folder() / f"vllm-{version}-py{sys.version_info.major}.{sys.version_info.minor}"
    python = folder / "bin" / "python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f"{folder.name}.lock")):
        if not (folder / COMPLETE).exists():
            shutil.rmtree(folder, ignore_errors=True)
            for command in commands(version, folder):
                _install(version, command)

            (folder / COMPLETE).touch()

    return str(python)


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where environments are kept: $XDG_CACHE_HOME/decodegate, or ~/.cache/decodegate."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "decodegate")


def commands(version: str, folder: Path) -> list[list[str]]:
    """What makes the environment, in order."""
    python, package = str(folder / "bin" / "python"), f"vllm=={version}"
    if uv := shutil.which("uv"):
        return [
            [uv, "venv", "--python", sys.executable, str(folder)],
            [uv, "pip", "install", "--python", python, package],
        ]

    return [[sys.executable, "-m", "venv", str(folder)], [python, "-m", "pip", "install", package]]


def _install(version: str, command: Sequence[str]) -> None:
    print(f"vllm={version}: {' '.join(command)}", file=sys.stderr)  # noqa: T201 - this takes minutes
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        said = "\n".join(done.stderr.strip().splitlines()[-10:])
        raise BadInput(f"vllm={version} could not be installed: {command[0]} ended with {done.returncode}:\n{said}")
