"""How the time of a function grows with its text: a pattern that reads it again from every place is found by that."""

from __future__ import annotations

import time
from collections.abc import Callable

FEW = 5_000
TIMES = 8


def assert_linear(function: Callable[[str], object], piece: str) -> None:
    """Fail if eight times as many repeats of `piece` take much more than eight times as long."""

    def seconds(repeats: int) -> float:
        text = piece * repeats
        started = time.process_time()
        function(text)
        return time.process_time() - started

    few = max(min(seconds(FEW) for _ in range(3)), 1e-3)  # below that the clock says nothing
    many = min(seconds(FEW * TIMES) for _ in range(2))
    assert many < few * TIMES * 3, f"{FEW} repeats of {piece!r} took {few:.3f} s, {FEW * TIMES} took {many:.3f} s"
