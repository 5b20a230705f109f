"""Temporary folders that are gone when this process ends, whenever a signal ends it: nobody else would remove them."""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
from pathlib import Path

_made: dict[Path, int] = {}
"""By path the process that made it: a fork of it ends, too, and must leave it alone."""


def make(prefix: str, parent: str) -> Path:
    """A new folder in `parent` that only this user may enter; `remove` takes it away, or the end of this process."""
    path = Path(parent, f"{prefix}{secrets.token_hex(6)}")
    _made[path] = os.getpid()  # before it is there: an interrupt may come right after
    try:
        path.mkdir(mode=0o700)
    except OSError:  # what is there already, or a link, is somebody's
        del _made[path]
        raise

    return path


def remove(path: Path) -> None:
    """Take away what `make` made, with all that is in it; nothing happens if it is gone."""
    shutil.rmtree(path, ignore_errors=True)
    _made.pop(path, None)


@atexit.register
def remove_all() -> None:
    """Take away whatever this process has made and not removed."""
    for path, pid in list(_made.items()):
        if pid == os.getpid():
            remove(path)
