"""The check of a collective's results: test data that differ per rank, call and round, and who is at fault if wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import BadInput
from ..kimi import KIMI_K25

if TYPE_CHECKING:
    from .paths import PreparedBurst

PERIOD = 7
"""Data repeat with this period: (1..7) * (rank + 1) summed over 8 ranks is at most 252, exact in bf16 in any order."""

MOST_RANKS = 8

ROUNDS = 2
"""The same burst runs twice on different data: a result that is left over from the first time is then wrong."""

ROUND_SHIFT = 3
"""The data of the next round are those of the call three further on, so no call sees its own numbers twice."""


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective as such, whichever way it is issued.

    name: for messages. elements: bf16 values that a rank puts into a call, by (rank, call). result: what a rank must
    get out of a call, from what every rank has put in, by (rank, call, contributions in the order of ranks).
    """

    name: str
    elements: Callable[[int, int], int]
    result: Callable[[int, int, Sequence[Any]], Any]


def pattern(elements: int, shift: int, device: Any) -> Any:
    """Float32 [elements] of 1..7; every further hidden state of 7168 is shifted by one, or all would be alike."""
    import torch

    positions = torch.arange(elements, dtype=torch.int32, device=device)
    return ((positions + positions // KIMI_K25.hidden + shift) % PERIOD + 1).float()


@dataclass(frozen=True, slots=True)
class ResultCheck:
    """Runs a burst on known data, and compares every element of every call on this rank whose output is still there.

    Every rank makes equally many calls, whatever it finds. what: the collective and its path, for messages.
    Raises BadInput for more than 8 ranks, whose sums bf16 cannot hold.
    """

    what: str
    collective: Collective
    prepared: PreparedBurst
    rank: int
    world_size: int
    align: Callable[[], None]

    def __post_init__(self) -> None:
        if self.world_size > MOST_RANKS:
            raise BadInput(
                f"{self.what}: {self.world_size} ranks, but sums of the test data are exact in bf16 only up to "
                f"{MOST_RANKS}; use a smaller world size"
            )

    def __call__(self) -> str | None:
        """The first thing that is wrong, in words; None if all numbers are right."""
        found = [self._round(number) for number in range(ROUNDS)]
        return next((wrong for wrong in found if wrong), None)

    def _round(self, number: int) -> str | None:
        for output in self.prepared.outputs:
            if output is not None:
                output.fill_(float("nan"))
        for call, tensor in enumerate(self.prepared.inputs):
            tensor.copy_(self._contribution(self.rank, call, number, tensor.device).view_as(tensor))

        self.align()
        self.prepared.burst()
        count = len(self.prepared.outputs)
        wrong = (self._wrong(call, number) for call in range(count - (self.prepared.last or count), count))
        return next((text for text in wrong if text), None)

    def _wrong(self, call: int, number: int) -> str | None:
        got = self.prepared.outputs[call].flatten().float()
        want = self._want(call, self._contributions(call, number, got.device))
        bad = (got != want).nonzero()
        if not len(bad):
            return None

        at = int(bad[0])
        return (
            f"{self.what}, call {call} of {len(self.prepared.outputs)}, round {number + 1} of {ROUNDS} on rank "
            f"{self.rank}: {len(bad)} of {got.numel()} values are wrong; value {at} is {float(got[at]):g}, must be "
            f"{float(want[at]):g}{self._cause(got, call, number)}"
        )

    def _contribution(self, rank: int, call: int, number: int, device: Any, shift: int = 0) -> Any:
        elements = self.collective.elements(rank, call)
        return pattern(elements, call + ROUND_SHIFT * number + shift, device) * (rank + 1)

    def _contributions(self, call: int, number: int, device: Any, shift: int = 0) -> list[Any]:
        return [self._contribution(rank, call, number, device, shift) for rank in range(self.world_size)]

    def _want(self, call: int, contributions: Sequence[Any]) -> Any:
        return self.collective.result(self.rank, call, contributions)

    def _cause(self, got: Any, call: int, number: int) -> str:
        """What explains the whole result, as the end of a sentence; nothing if no single fault does."""
        import torch

        if got.isnan().all():
            return ": nothing was written, the call was not made or wrote elsewhere"

        suspects = self._suspects(call, number, got.device)
        return next((f": {cause}" for cause, result in suspects if torch.equal(got, result)), "")

    def _suspects(self, call: int, number: int, device: Any) -> Iterator[tuple[str, Any]]:
        """Single faults and the results that they would give."""
        if number:
            before = self._contributions(call, number - 1, device)
            yield "it is the result of the round before, a stale buffer", self._want(call, before)

        right = self._contributions(call, number, device)
        yield f"it is what rank {self.rank} has put in, which did not take part", right[self.rank]
        for rank, own in enumerate(right):
            without = [*right[:rank], own * 0, *right[rank + 1 :]]
            yield f"rank {rank} has put in nothing", self._want(call, without)
        for shift in range(1, PERIOD):
            for rank in range(self.world_size):
                other = self._contribution(rank, call, number, device, shift)
                mixed = [*right[:rank], other, *right[rank + 1 :]]
                yield f"rank {rank} has put in the data of another call", self._want(call, mixed)
            yield "it is the result of another call", self._want(call, self._contributions(call, number, device, shift))


def total(contributions: Sequence[Any]) -> Any:
    """Sum over ranks: what AllReduce gives."""
    summed = contributions[0].clone()
    for more in contributions[1:]:
        summed += more

    return summed
