"""Does the server still answer as its baseline did? Judged before its speed: a faster wrong answer is no gain."""

import pytest

from pytest_decodegate.serving.server import Server
from pytest_decodegate.session.perf import Perf


@pytest.mark.perf(metric="quality", stand_in="quality_cpu")
def test_quality(perf: Perf, server: Server) -> None:
    """Greedy tokens and their logprobs over fixed prompts, alone and in batches, beside the baseline's."""
    perf.measure_quality(server)
