"""Time per output token of a real vLLM server: the Kimi rank-slice on GPUs, a tiny model on a CPU."""

import pytest

from pytest_decodegate.gate.result import Result
from pytest_decodegate.measure.window import Load
from pytest_decodegate.metric import Metric
from pytest_decodegate.serving.server import Server
from pytest_decodegate.session.perf import Perf
from pytest_decodegate.workloads.kimi import KIMI_K25


def serving_load(concurrency: int) -> Load:
    """What a host with a GPU is asked; long enough that a stream decodes far more than it waits.

    Three rounds of all streams are measured up to 8 of them, and at least 8 requests; above, two rounds hold enough.
    """
    requests = max(8, min(24, 3 * concurrency), 2 * concurrency)
    return Load(concurrency, prompt_tokens=64, output_tokens=128, requests=requests)


def measure(perf: Perf, server: Server, concurrency: int) -> None:
    """Gate the TPOT of a server; without a GPU it goes by another name."""
    if server.stand_in:
        metric = Metric.of(f"tpot_cpu[c={concurrency}]", "cpu")
        # The client shares the server's cores here, so the two may disagree by more than on a host of their own.
        load = Load(concurrency, prompt_tokens=16, output_tokens=32, requests=max(8, 2 * concurrency), cross_check=0.2)
    else:
        metric, load = Metric.of(f"tpot[c={concurrency}]", "serving"), serving_load(concurrency)

    perf.measure_tpot(metric, server, load)


@pytest.mark.perf
@pytest.mark.parametrize("concurrency", [1, 8], ids="c={}".format)
def test_tpot(perf: Perf, server: Server, concurrency: int) -> None:
    """Time per token after the first arrival, per request: greedy, fresh random prompts, at a fixed concurrency."""
    measure(perf, server, concurrency)


@pytest.mark.perf(extended=True)
@pytest.mark.parametrize("concurrency", [2, 4, 16, 32, 64, 128], ids="c={}".format)
def test_tpot_sweep(perf: Perf, server: Server, concurrency: int) -> None:
    """The other batch sizes for which the rank-slice's server captures graphs."""
    measure(perf, server, concurrency)


@pytest.mark.perf(extended=True)
def test_tpot_of_all_layers(perf: Perf) -> None:
    """TPOT at two depths, each gated, and what a line through them says of the 61 layers that may not fit here.

    All in one test: a server starts in minutes, and this way there are two starts.
    """
    measured: dict[int, dict[int, Result]] = {1: {}, 8: {}}
    for layers in perf.slice_depths:
        for concurrency, at_depth in measured.items():
            metric = Metric.of(f"tpot[c={concurrency},layers={layers}]", "serving")
            at_depth[layers] = perf.measure_tpot(metric, perf.slice_server(layers), serving_load(concurrency))

    for concurrency, at_depth in measured.items():
        perf.extrapolate(f"tpot_61_layers_extrapolated[c={concurrency}]", at_depth, KIMI_K25.layers)
