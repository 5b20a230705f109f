"""The sidecar of a baseline file: all samples of its recordings, one line each. Nobody needs it, and git ignores it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from .schema import Session, StoredMetric

SUFFIX: Final = ".samples.jsonl"

IGNORED: Final = f"# Of no use to others: samples, locks, half-written files.\n*{SUFFIX}\n.*.lock\n.*.tmp\n"
"""The .gitignore of a folder of baselines."""


def sidecar(path: Path) -> Path:
    """Where the samples of the baseline file `path` lie."""
    return path.with_suffix(SUFFIX)


def keep(path: Path, metrics: Iterable[StoredMetric]) -> None:
    """Append the samples of `metrics` to the sidecar of `path`; raises OSError. Links are not followed."""
    lines = [_line(stored, session) for stored in metrics for session in stored.sessions if session.replicates]
    if not lines:
        return

    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    with os.fdopen(os.open(sidecar(path), flags, 0o666), "a", encoding="utf-8") as stream:
        stream.writelines(lines)


def ignore(root: Path) -> None:
    """Tell git to leave the sidecars below `root` alone, unless the folder has its own .gitignore; raises OSError."""
    try:
        with (root / ".gitignore").open("x", encoding="utf-8") as stream:
            stream.write(IGNORED)
    except FileExistsError:
        pass


def _line(stored: StoredMetric, session: Session) -> str:
    samples = [list(replicate.samples) for replicate in session.replicates]
    line = {"metric": stored.metric.name, "unit": stored.metric.unit, "session": session.id, "samples": samples}
    return json.dumps(line, allow_nan=False) + "\n"
