"""Routings whose experts come back as late as they can, so that a GPU's cache cannot serve their weights."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence, Set
from dataclasses import dataclass

from ...errors import BadInput
from ..experts import Routing, draw_routings, mean_unique_experts
from ..runtime.op import COLD_MARGIN

LEAST_CALLS = 8

MOST_COPIES = 8
"""Copies of the weights that calls may take in turn where one copy of all experts is too small to be cold."""


@dataclass(frozen=True, slots=True)
class ColdRouting:
    """The routings of the calls of a cold burst. Call i reads copy i % copies of the weights.

    bytes_between_uses: least number of bytes of weights read between two uses of one expert, the burst repeating.
    """

    routings: list[Routing]
    copies: int
    bytes_between_uses: float

    @property
    def unique_experts(self) -> float:
        """Distinct experts that a call reads, on average over the calls."""
        return mean_unique_experts(self.routings)

    def to(self, device: str) -> ColdRouting:
        """The same with ids and weights on `device`."""
        moved = [Routing(each.ids.to(device), each.weights.to(device)) for each in self.routings]
        return ColdRouting(moved, self.copies, self.bytes_between_uses)


def most_calls(tokens: int) -> int:
    """Calls in a burst at most: 48 disjoint sets of 8 experts for one token, fewer calls for larger batches."""
    return 48 if tokens == 1 else max(LEAST_CALLS, 24 // max(1, tokens // 8))


def cold_rotation(
    tokens: int, *, experts: int, top_k: int, expert_bytes: int, seed: int, l2_bytes: int, what: str
) -> ColdRouting:
    """The longest burst of uniform routings of `tokens` tokens that stays cold, with as few weight copies as it takes.

    Each routing by itself is a uniform draw; only which experts follow on which is arranged. Raises BadInput, naming
    `what`, if even MOST_COPIES copies leave less than COLD_MARGIN times `l2_bytes` between two uses of an expert.
    """
    needed = COLD_MARGIN * l2_bytes
    for copies in range(1, MOST_COPIES + 1):
        drawn = draw_routings(tokens, most_calls(tokens) * copies, experts=experts, top_k=top_k, seed=seed)
        routings = _spread_by_copy(drawn, copies, experts, seed)
        used = [{(call % copies, expert) for expert in _ids(each)} for call, each in enumerate(routings)]
        for calls in range(len(used), LEAST_CALLS - 1, -copies):  # whole rounds over the copies
            between = least_reuse(used[:calls]) * expert_bytes
            if between >= needed:
                return ColdRouting(routings[:calls], copies, between)

    raise BadInput(
        f"{what} at {tokens} tokens cannot be measured cold: {MOST_COPIES} copies of {experts} experts of "
        f"{expert_bytes / 1e6:.1f} MB are too few for {COLD_MARGIN} x the {l2_bytes / 1e6:.0f} MB L2 cache; leave this "
        "test out with -k"
    )


def _ids(routing: Routing) -> list[int]:
    ids: list[int] = routing.ids.unique().tolist()
    return ids


def _spread_by_copy(routings: list[Routing], copies: int, experts: int, seed: int) -> list[Routing]:
    """Spread the calls of each weight copy by themselves, in their places."""
    placed = list(routings)
    for copy in range(copies):
        placed[copy::copies] = spread(routings[copy::copies], experts, seed + copy)

    return placed


def spread(routings: Sequence[Routing], experts: int, seed: int) -> list[Routing]:
    """Rename the experts, call by call, so that the calls walk through all of them before any comes back.

    Which tokens share an expert, and so the number of distinct experts in a call, stays as drawn.
    """
    import torch

    walk = torch.randperm(experts, generator=torch.Generator().manual_seed(seed)).to(torch.int32)
    renamed = []
    start = 0
    for routing in routings:
        drawn, place = routing.ids.unique(return_inverse=True)
        names = walk[(start + torch.arange(len(drawn))) % experts]
        renamed.append(Routing(names[place], routing.weights))
        start += len(drawn)

    return renamed


def least_reuse(used: Sequence[Set[Hashable]]) -> float:
    """Fewest weights read between two uses of one, in a burst that repeats; `used` holds each call's weights.

    Counted from the middle of a call to the middle of the next one that uses it: within a call the SMs read all of its
    experts side by side. Infinite if nothing is used.
    """
    last: dict[Hashable, float] = {}
    least, start = math.inf, 0
    for weights in (*used, *used):
        middle = start + len(weights) / 2
        least = min([least, *(middle - last[weight] for weight in weights if weight in last)])
        last.update(dict.fromkeys(weights, middle))
        start += len(weights)

    return least
