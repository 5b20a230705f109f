"""Python environments with a given vLLM, made once and kept: `vllm=VERSION` in a stack."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ..errors import BadInput
from ..process.user_cache import NotPrivate, check_private, private_folder

COMPLETE = "complete"
"""File in an environment that was installed to its end."""

_VERSION = re.compile(r"[0-9][0-9A-Za-z.+!_-]*")

_UNKNOWN = re.compile(r"No matching distribution found|Because there is no version of")
_OFFLINE = re.compile(
    r"name resolution|Name or service not known|Network is unreachable|Connection refused|dns error|"
    r"error sending request|NewConnectionError|Failed to fetch|network (was|is) disabled"
)
_FULL = re.compile(r"No space left on device|Disk quota exceeded")


def environment_of(version: str) -> str:
    """The Python of an environment with vLLM `version`; made by uv, or pip without it, from the index they are set to.

    Raises BadInput with the installer's last words if there is no such version or it does not install, and where
    somebody else can have put it there. One that was not finished is made anew, and of two runs that want the same one
    waits for the other.
    """
    if not _VERSION.fullmatch(version):
        raise BadInput(f"vllm={version} is no version; write for example vllm=0.26.0")

    try:
        folder = private_folder() / f"vllm-{version}-py{sys.version_info.major}.{sys.version_info.minor}"
        if os.path.lexists(folder):
            check_private(folder)
        _make_once(version, folder)
    except NotPrivate as error:
        raise BadInput(
            f"{error}, and programs in it would be run; look at what is there, remove it, and run again, or set "
            "XDG_CACHE_HOME to a folder of your own"
        ) from error
    except OSError as error:
        raise BadInput(
            f"vllm={version}: no environment can be made: {error}; set XDG_CACHE_HOME to a folder that is writable and "
            "has some 15 GB left"
        ) from error

    return str(_python(folder))


def commands(version: str, folder: Path) -> list[list[str]]:
    """What makes the environment, in order."""
    python, package = str(_python(folder)), f"vllm=={version}"
    if uv := shutil.which("uv"):
        return [
            [uv, "venv", "--python", sys.executable, str(folder)],
            [uv, "pip", "install", "--python", python, package],
        ]

    return [[sys.executable, "-m", "venv", str(folder)], [python, "-m", "pip", "install", package]]


def _make_once(version: str, folder: Path) -> None:
    from filelock import FileLock, Timeout

    lock = FileLock(folder.with_name(f"{folder.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        _say(f"vllm={version}: another run makes this environment; waiting for it ({lock.lock_file})")
        lock.acquire()

    try:
        if not _is_complete(folder):
            _make(version, folder)
    finally:
        lock.release()


def _is_complete(folder: Path) -> bool:
    """Whether it was installed to its end, and the Python that it links to is still there."""
    return (folder / COMPLETE).exists() and os.access(_python(folder), os.X_OK)


def _make(version: str, folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
    for command in commands(version, folder):
        _install(version, command)

    (folder / COMPLETE).touch()


def _install(version: str, command: Sequence[str]) -> None:
    _say(f"vllm={version}: {' '.join(command)}")
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
    if done.returncode:
        said = "\n".join(done.stderr.strip().splitlines()[-10:])
        raise BadInput(
            f"vllm={version} could not be installed: {command[0]} ended with {done.returncode}; {_what_to_do(said)}:\n"
            f"{said}"
        )


def _what_to_do(said: str) -> str:
    if _FULL.search(said):
        return "the disk is full: make room, or set XDG_CACHE_HOME to a folder elsewhere"
    if _OFFLINE.search(said):
        return "the index cannot be reached: make an environment where it can, and give python=PATH"
    if _UNKNOWN.search(said):
        return "no such version for this Python and platform: `python -m pip index versions vllm` lists them"

    return "it says"


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - this takes minutes
