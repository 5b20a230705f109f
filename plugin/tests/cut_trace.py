"""Cuts a trace of torch.profiler down to what a test needs: `python plugin/tests/cut_trace.py TRACE OUT.json.gz`.

All work of the GPU and all annotations stay, with device, stream and correlation; of every other category, a few events
stay as they are, so that a reader still meets them. The head stays whole.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

KEPT = {"kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "user_annotation"}
ARGUMENTS = ("External id", "device", "stream", "correlation")
OTHERS = 20  # events of each other category


def cut(trace: dict[str, Any]) -> dict[str, Any]:
    """The same trace with fewer events and arguments."""
    seen: Counter[Any] = Counter()
    events = []
    for event in trace["traceEvents"]:
        category = event.get("cat")
        seen[category] += 1
        if category in KEPT:
            arguments = event.get("args", {})
            events.append({**event, "args": {name: arguments[name] for name in ARGUMENTS if name in arguments}})
        elif seen[category] <= OTHERS:
            events.append(event)

    return {**trace, "traceEvents": events}


def main() -> None:
    source, out = map(Path, sys.argv[1:])
    with gzip.open(source, "rt", encoding="utf-8") as file:
        trace = cut(json.load(file))

    # No time of writing in the header: the same trace gives the same bytes.
    with gzip.GzipFile(out, "wb", compresslevel=9, mtime=0) as packed:
        packed.write(json.dumps(trace, separators=(",", ":")).encode())


if __name__ == "__main__":
    main()
