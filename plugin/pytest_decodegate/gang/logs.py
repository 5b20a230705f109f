"""Logs of the ranks: marks in them, what was written since a mark, and the stacks that ranks dumped."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from ..printable import printable_lines
from ..redaction import redact_text
from .worker import STACKS

Marks: TypeAlias = dict[tuple[int, str], int]
"""Size in bytes of each rank's stdout and stderr at one moment."""

STREAMS = ("stdout", "stderr")
LIMIT_BYTES = 20_000
"""What one report section may hold; a rank may print 100 MB, a report may not."""

STACK_SECONDS = 0.5
SETTLE_SECONDS = 0.03

_OUR_FRAME = re.compile(r'  File ".*/pytest_decodegate/gang/worker\.py", line \d+ in ')
_THREAD = re.compile(r"((?:Current thread|Thread) )0x[0-9a-f]+ ?")


def size(path: Path) -> int:
    """Size of `path` in bytes, 0 if there is no such file."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def read_since(path: Path, mark: int, limit_bytes: int = LIMIT_BYTES) -> str:
    """Text after byte `mark`; of more than `limit_bytes` the first and last half, and how much was left out."""
    try:
        with path.open("rb") as log:
            length = os.fstat(log.fileno()).st_size - mark
            log.seek(mark)
            if length <= limit_bytes:
                return _text(log.read(limit_bytes))

            head = log.read(limit_bytes // 2)
            log.seek(mark + length - limit_bytes // 2)
            tail = log.read(limit_bytes // 2)
    except OSError:
        return ""

    left_out = length - len(head) - len(tail)
    return f"{_text(head)}\n[... {left_out} bytes left out; all of it is in {path} ...]\n{_text(tail)}"


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")


def tail(path: Path, limit_bytes: int = 2_000) -> str:
    """The last `limit_bytes` of a file, whole lines, as text."""
    length = size(path)
    text = read_since(path, max(0, length - limit_bytes)).strip()
    return text if length <= limit_bytes else text.partition("\n")[2]


def marks(log_dirs: Mapping[int, str]) -> Marks:
    """Marks at the end of every stream of every rank now."""
    return {(rank, stream): size(_log(log_dirs[rank], stream)) for rank in log_dirs for stream in STREAMS}


def output_since(log_dirs: Mapping[int, str], since: Marks) -> list[tuple[int, str, str]]:
    """(rank, stream, text) for each stream that grew after `since`, by rank; from the start where `since` is silent."""
    streams = [(rank, stream) for rank in sorted(log_dirs) for stream in STREAMS]
    texts = [read_since(_log(log_dirs[rank], stream), since.get((rank, stream), 0)) for rank, stream in streams]
    shown = (printable_lines(redact_text(text)) for text in texts)
    return [(rank, stream, text) for (rank, stream), text in zip(streams, shown, strict=True) if text]


def _log(log_dir: str, stream: str) -> Path:
    return Path(log_dir, f"{stream}.log")


def stack_marks(log_dirs: Mapping[int, str]) -> dict[int, int]:
    """Size of each rank's stack file; take it before asking for stacks."""
    return {rank: size(Path(log_dir, STACKS)) for rank, log_dir in log_dirs.items()}


def stacks_since(log_dirs: Mapping[int, str], since: Mapping[int, int]) -> dict[int, str]:
    """The stacks that ranks wrote after `since`; waits up to STACK_SECONDS, less once all files stand still."""
    files = {rank: Path(log_dirs[rank], STACKS) for rank in since}
    deadline = time.monotonic() + STACK_SECONDS
    before: dict[int, int] = {}
    while time.monotonic() < deadline:
        now = {rank: size(file) for rank, file in files.items()}
        if now == before and all(now[rank] > since[rank] for rank in now):
            break

        before = now
        time.sleep(SETTLE_SECONDS)

    return {rank: clean_stack(read_since(file, since[rank])) for rank, file in files.items()}


def clean_stack(dump: str) -> str:
    """A faulthandler dump without addresses, without this plugin's frames and without the hang-up watch."""
    kept = []
    for block in re.split(r"\n(?=Thread |Current thread )", dump.strip()):
        lines = [_THREAD.sub(r"\1", line) for line in block.splitlines() if line.strip()]
        ours = next((index for index, line in enumerate(lines) if _OUR_FRAME.match(line)), len(lines))
        if ours > 1:
            kept.append("\n".join(lines[:ours]))

    return "\n".join(kept)


def group_stacks(stacks: Mapping[int, str]) -> list[tuple[Sequence[int], str]]:
    """Ranks that show the same stack, together: with eight ranks in one barrier the odd one stands out."""
    groups: dict[str, list[int]] = {}
    for rank, stack in sorted(stacks.items()):
        groups.setdefault(stack, []).append(rank)

    return [(ranks, stack) for stack, ranks in groups.items()]
