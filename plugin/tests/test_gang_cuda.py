"""What only GPUs can show: NCCL, graphs that hold a communicator, errors that stick to the device."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_decodegate.errors import RankRaised
from pytest_decodegate.gang.controller import Gang, GangOptions
from pytest_decodegate.gang.worker import state
from pytest_decodegate.process import processes

TAG = "GANG_TEST_TAG"
GPUS = list(Path("/dev").glob("nvidia[0-9]*"))

pytestmark = pytest.mark.skipif(len(GPUS) < 2, reason=f"needs 2 GPUs, this machine has {len(GPUS)}")


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Gang]:
    tag = uuid.uuid4().hex
    with Gang(2, GangOptions(log_root=tmp_path, env={TAG: tag}), name="cuda") as gang:
        yield gang

    assert processes.tagged(TAG, tag) == []


def sum_on_device() -> tuple[int, float, float]:
    """Device of this rank, and the sum of 1 and 2 over the ranks by NCCL and by gloo."""
    import torch
    import torch.distributed as dist

    sums = []
    for device in ("cuda", "cpu"):
        mine = torch.full((7168,), float(dist.get_rank() + 1), device=device)
        dist.all_reduce(mine)
        sums.append(float(mine[0]))

    return torch.cuda.current_device(), sums[0], sums[1]


def capture_allreduce() -> float:
    """A graph that keeps its communicator alive, left in the rank's state."""
    import torch
    import torch.distributed as dist

    buffer = torch.ones(7168, device="cuda")
    dist.all_reduce(buffer)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(buffer)

    state["graph"] = graph, buffer
    buffer.fill_(1.0)
    graph.replay()
    torch.cuda.synchronize()
    return float(buffer[0])


def break_device() -> None:
    """A device-side assertion: every later CUDA call of this process fails."""
    import torch

    torch.zeros(2, device="cuda")[torch.tensor([7], device="cuda")]
    torch.cuda.synchronize()


def test_ranks_sum_by_nccl_and_by_gloo_each_on_its_own_gpu(gang: Gang) -> None:
    assert gang.run(sum_on_device) == [(0, 3.0, 3.0), (1, 3.0, 3.0)]


def test_a_graph_that_captured_a_collective_does_not_hold_up_the_end(gang: Gang) -> None:
    assert gang.run(capture_allreduce) == [2.0, 2.0]
    marks = gang.marks()
    gang.close()
    # On its deadline a rank would write the stack that it hangs in.
    assert "Timeout" not in "".join(text for _, _, text in gang.output_since(marks))


def test_a_device_error_that_sticks_fails_the_health_check(gang: Gang) -> None:
    with pytest.raises(RankRaised):
        gang.run(break_device)

    assert gang.check() is False
    assert not gang.alive
