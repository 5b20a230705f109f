"""Time per output token of a real vLLM server: the Kimi rank-slice on GPUs, a tiny model on a CPU."""

import pytest

from pytest_decodegate.metric import Metric
from pytest_decodegate.perf import Perf
from pytest_decodegate.serving.server import Server
from pytest_decodegate.serving.window import Load


@pytest.mark.perf
@pytest.mark.parametrize("concurrency", [1, 8], ids="c={}".format)
def test_tpot(perf: Perf, server: Server, concurrency: int) -> None:
    """(last token - first token) / (tokens - 1) per request, greedy, fresh random prompts, at a fixed concurrency."""
    if server.stand_in:
        metric = Metric.of(f"tpot_cpu[c={concurrency}]", "cpu")
        # The client shares the server's cores here, so the two may disagree by more than on a host of their own.
        load = Load(concurrency, prompt_tokens=16, output_tokens=32, requests=max(8, 2 * concurrency), cross_check=0.2)
    else:
        metric = Metric.of(f"tpot[c={concurrency}]", "serving")
        load = Load(concurrency, prompt_tokens=64, output_tokens=128, requests=max(8, 3 * concurrency))

    perf.measure_tpot(metric, server, load)
