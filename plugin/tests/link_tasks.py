"""What ranks run in the tests of links: honest messages, and some that are held up on their way."""

from __future__ import annotations

import time
from typing import Any

from pytest_decodegate.workloads.collectives.communicators import rank_and_world_size
from pytest_decodegate.workloads.collectives.links import link_times

HELD_UP_SECONDS = 0.02


def times() -> list[float]:
    return link_times(cuda=False)


def times_while_held_up(who: int) -> list[float]:
    """Rank `who` waits before it sends anything."""
    import torch.distributed as dist

    honest, is_mine = dist.all_to_all_single, rank_and_world_size()[0] == who

    def held_up(got: Any, given: Any, received: list[int], sent: list[int]) -> None:
        if is_mine and any(sent):
            time.sleep(HELD_UP_SECONDS)
        honest(got, given, received, sent)

    dist.all_to_all_single = held_up
    try:
        return link_times(cuda=False)
    finally:
        dist.all_to_all_single = honest
