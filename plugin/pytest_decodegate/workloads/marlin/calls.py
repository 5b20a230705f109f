"""From the prepared calls of a Marlin kernel to a workload: burst or graph, check, hot twin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ...errors import BadInput
from ..runtime.failures import explained
from ..runtime.op import fits_l2, poison
from ..runtime.timing import (
    ALIGN_CYCLES,
    Burst,
    CudaClock,
    Traffic,
    Workload,
    captured,
    mode_fields,
    relative_error,
    rotate,
    wrong_if_above,
)
from ..versions import clock_fields, workload_fields

if TYPE_CHECKING:
    from ...metric import Json

Mode = Literal["graph", "eager"]

ERROR_LIMIT = 1e-2
"""Relative error accepted: bf16 rounding of weights and results costs 3e-3, a wrong kernel far more."""

CHECKED_TOKENS = 4
"""Tokens checked of the last call. Of the first call all are: between them they meet every expert of the batch."""


@dataclass(frozen=True, slots=True)
class PreparedCalls:
    """Calls ready to launch. outputs: what call i writes, one tensor each, the rows of a token side by side.

    want(call, first): the float64 rows that the first `first` tokens must give in that call.
    """

    calls: list[Burst]
    outputs: list[Any]
    want: Callable[[int, int], Any]
    tokens: int

    def wrong(self, burst: Burst, what: str) -> str | None:
        """Run `burst`, which makes all the calls, and compare the first and the last with the reference."""
        poison(self.outputs)
        burst()
        last = len(self.calls) - 1
        for call, first in ((0, self.tokens), (last, min(CHECKED_TOKENS, self.tokens))):
            want = self.want(call, first)
            error = relative_error(self.outputs[call][: len(want)], want)
            if wrong := wrong_if_above(error, ERROR_LIMIT, f"{what}, call {call} of {len(self.calls)}"):
                return wrong

        return None


def workload(
    what: str,
    shapes: str,
    calls: PreparedCalls,
    mode: Mode,
    traffic: Traffic,
    contract: dict[str, Json],
    facts: dict[str, Json],
) -> Workload:
    """The workload of `calls` in one CUDA graph or launched one by one; raises BadInput for another mode."""
    launched = _launched(mode)
    burst = launched(calls.calls)
    count = len(calls.calls)
    return Workload(
        burst=burst,
        calls=count,
        # Eager launches belong to what is measured: no sleep hides them.
        clock=CudaClock(ALIGN_CYCLES, ahead=True) if mode == "graph" else CudaClock(),
        check=explained(what, shapes)(lambda: calls.wrong(burst, f"{what} ({shapes})")),
        contract={
            **clock_fields("cuda_event"),
            **workload_fields("marlin"),
            **mode_fields(mode == "graph"),
            "calls": count,
            **contract,
        },
        facts=facts,
        traffic=traffic,
        hot=(lambda: launched([calls.calls[0]] * count)) if fits_l2(traffic.bytes, "cuda") else None,
    )


def _launched(mode: Mode) -> Callable[[list[Burst]], Burst]:
    modes = {"graph": lambda calls: captured(rotate(calls)), "eager": rotate}
    if mode not in modes:
        raise BadInput(f"unknown mode {mode!r}; use graph or eager")

    return modes[mode]
