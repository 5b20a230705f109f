"""A short load on one GPU, of bytes as decoding moves them: a process of its own, told when to begin.

Speaks with its parent by lines: prints "ready" when the card is warm, begins at a line on its standard input, and ends
with its rates as JSON. At the end of that input without a line it ends at once.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any, Final

READY: Final = "ready"

LOAD_SECONDS: Final = 2.0
"""Long enough for ten looks at clocks and link."""

_WARM_SECONDS: Final = 0.5
_TURN_SECONDS: Final = 0.05
_CARD_BYTES: Final = 256 << 20
_HOST_BYTES: Final = 64 << 20


def main() -> None:
    """Load the first GPU that this process sees."""
    import torch

    source = torch.ones(_CARD_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    pinned = torch.ones(_HOST_BYTES, dtype=torch.uint8, pin_memory=True)
    place = torch.empty(_HOST_BYTES, dtype=torch.uint8, device="cuda")

    def copy() -> None:
        target.copy_(source)

    def fetch() -> None:
        place.copy_(pinned, non_blocking=True)

    _rates(torch, copy, fetch, _WARM_SECONDS)
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()
    if not sys.stdin.readline():
        return

    copied, fetched = _rates(torch, copy, fetch, LOAD_SECONDS)
    # A copy reads and writes.
    rates = {"copy_bytes_s": 2 * _CARD_BYTES * copied, "host_bytes_s": _HOST_BYTES * fetched}
    sys.stdout.write(f"{json.dumps(rates)}\n")


def _rates(torch: Any, copy: Callable[[], None], fetch: Callable[[], None], seconds: float) -> tuple[float, float]:
    """Calls per second of both, in turns for so many seconds."""
    calls, spent = [0, 0], [0.0, 0.0]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for which, call in enumerate((copy, fetch)):
            began = time.perf_counter()
            while (now := time.perf_counter()) < began + _TURN_SECONDS:
                for _ in range(4):
                    call()
                torch.cuda.synchronize()
                calls[which] += 4

            spent[which] += now - began

    return calls[0] / spent[0], calls[1] / spent[1]
