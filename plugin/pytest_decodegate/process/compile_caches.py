"""Compile caches that a child process fills and reads: an upgrade empties them, and the next start then takes minutes.

What is in one says little of whether it fits: entries of another version stay beside those of this one. So entries are
counted before a start, and those that have come since tell that it was cold.
"""

from __future__ import annotations

import getpass
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

CacheState: TypeAlias = Literal["absent", "cold", "warm"]


@dataclass(frozen=True, slots=True)
class CompileCache:
    """One cache around one start. before: its entries before it, None where there was no folder. added: since then."""

    before: int | None
    added: int

    @property
    def state(self) -> CacheState:
        """Whether it held what was needed (warm) or something had to be compiled (cold); absent: it was not used."""
        if self.added > 0:
            return "cold"

        return "warm" if self.before else "absent"


class CompileCaches:
    """The caches of a process that is started with the variables `environ`, read now and again by `since`."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._folders = folders(environ)
        self._before = {name: entries(folder) for name, folder in self._folders.items()}

    def since(self) -> dict[str, CompileCache]:
        """Each of them, with what has come since the first reading."""
        return {
            name: CompileCache(before, max(0, (entries(self._folders[name]) or 0) - (before or 0)))
            for name, before in self._before.items()
        }

    def facts(self) -> dict[str, dict[str, int | str | None]]:
        """The same for a file: state, entries before and entries added, of all but those that were not used."""
        return {
            name: {"state": cache.state, "entries": cache.before, "added": cache.added}
            for name, cache in self.since().items()
            if cache.state != "absent"
        }


def folders(environ: Mapping[str, str]) -> dict[str, Path]:
    """The folder of each cache, by the variables and defaults of vLLM (envs.py), Triton, torch's inductor and CUDA."""
    home = Path(environ.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111 - it bears a user without a home
    vllm = environ.get("VLLM_CACHE_ROOT") or Path(environ.get("XDG_CACHE_HOME") or home / ".cache", "vllm")
    triton = Path(environ.get("TRITON_HOME") or home, ".triton", "cache")
    temporary = environ.get("TMPDIR") or tempfile.gettempdir()
    return {
        "vllm": Path(os.path.expanduser(vllm), "torch_compile_cache"),  # noqa: PTH111
        "triton": Path(environ.get("TRITON_CACHE_DIR") or triton),
        "inductor": Path(environ.get("TORCHINDUCTOR_CACHE_DIR") or Path(temporary, f"torchinductor_{_user()}")),
        "cuda": Path(environ.get("CUDA_CACHE_PATH") or home / ".nv" / "ComputeCache"),
    }


def entries(folder: Path) -> int | None:
    """What lies in `folder` and in its folders, which is where these caches keep a thing each; None without it."""
    try:
        with os.scandir(folder) as found:
            top = list(found)
    except OSError:
        return None

    return len(top) + sum(_count(entry.path) for entry in top if entry.is_dir(follow_symlinks=False))


def _count(folder: str) -> int:
    try:
        return len(os.listdir(folder))  # noqa: PTH208 - a number of names
    except OSError:  # gone meanwhile
        return 0


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run under a uid that nobody has
        return str(os.getuid())
