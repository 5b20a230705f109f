"""The gather of the logits: 40,960 bytes a token and rank of TP=8, once a step, after lm_head."""

import pytest

from pytest_decodegate.metric import Metric
from pytest_decodegate.session.perf import Perf
from pytest_decodegate.workloads.collectives.logits import logits_gather


@pytest.mark.perf(metric="logits_gather[m={tokens},world={world_size}]")
@pytest.mark.world_size(2, 4, 8)
@pytest.mark.parametrize("tokens", [1, 8, 64], ids="m={}".format)
def test_logits_gather(perf: Perf, world_size: int, tokens: int) -> None:
    """All-gather over PyNccl in a CUDA graph: every rank gets the logits of the whole vocabulary."""
    perf.needs_gpu("NCCL; the same code runs over gloo in plugin/tests")
    metric = Metric.of(f"logits_gather[m={tokens},world={world_size}]", "collective")
    perf.measure(metric, logits_gather, world_size=world_size, path="pynccl_graph", tokens=tokens)
