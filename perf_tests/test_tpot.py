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
    """Gate the TPOT of a server; the stand-in without a GPU goes by another name, see `measure_stand_in`."""
    if server.stand_in:
        pytest.skip("no GPU: test_tpot_cpu measures the stand-in")

    perf.measure_tpot(Metric.of(f"tpot[c={concurrency}]", "serving"), server, serving_load(concurrency))


def stand_in_load(concurrency: int) -> Load:
    """What the tiny model on a CPU is asked: it shares the cores with its client.

    For the same reason client and server may disagree by more than on a host of their own.
    """
    return Load(concurrency, prompt_tokens=16, output_tokens=32, requests=max(4, 2 * concurrency), cross_check=0.2)


def measure_stand_in(perf: Perf, server: Server, concurrency: int) -> None:
    """Show the TPOT of the tiny model on a CPU, which gates nothing."""
    if not server.stand_in:
        pytest.skip("the tiny model on a CPU is served only without a GPU and without a server of the user's")

    perf.measure_tpot(Metric.of(f"tpot_cpu[c={concurrency}]", "cpu"), server, stand_in_load(concurrency))


@pytest.mark.perf(metric="tpot[c={concurrency}]", load=serving_load)
@pytest.mark.parametrize("concurrency", [8, 1], ids="c={}".format)
def test_tpot(perf: Perf, server: Server, concurrency: int) -> None:
    """Time per token after the first arrival, per request: greedy, fresh random prompts, at a fixed concurrency.

    One stream comes last: on H200s its steps took 7 % more in the first seconds of a server, up to forty.
    """
    measure(perf, server, concurrency)


@pytest.mark.perf(stand_in="tpot_cpu[c={concurrency}]", advisory=True, load=stand_in_load)
@pytest.mark.parametrize("concurrency", [1], ids="c={}".format)
def test_tpot_cpu(perf: Perf, server: Server, concurrency: int) -> None:
    """The same of the stand-in without a GPU."""
    measure_stand_in(perf, server, concurrency)


@pytest.mark.perf(stand_in="tpot_cpu[c={concurrency}]", extended=True, advisory=True, load=stand_in_load)
@pytest.mark.parametrize("concurrency", [2, 4, 8, 16], ids="c={}".format)
def test_tpot_cpu_sweep(perf: Perf, server: Server, concurrency: int) -> None:
    """The same at other concurrencies."""
    measure_stand_in(perf, server, concurrency)


@pytest.mark.perf(metric="tpot[c={concurrency}]", extended=True, load=serving_load)
@pytest.mark.parametrize("concurrency", [2, 4, 16, 32, 64, 128], ids="c={}".format)
def test_tpot_sweep(perf: Perf, server: Server, concurrency: int) -> None:
    """The other batch sizes for which the rank-slice's server captures graphs."""
    measure(perf, server, concurrency)


@pytest.mark.perf(extended=True)
def test_tpot_of_all_layers(perf: Perf) -> None:
    """TPOT at two depths, each gated, and what a line through them says of the 61 layers that may not fit here.

    All in one test: a server starts in minutes, and this way there are two starts.
    """
    measured: dict[int, dict[int, Result]] = {8: {}, 1: {}}
    for layers in perf.slice_depths:
        for concurrency, at_depth in measured.items():
            metric = Metric.of(f"tpot[c={concurrency},layers={layers}]", "serving")
            at_depth[layers] = perf.measure_tpot(metric, perf.slice_server(layers), serving_load(concurrency))

    for concurrency, at_depth in measured.items():
        perf.extrapolate(f"tpot_61_layers_extrapolated[c={concurrency}]", at_depth, KIMI_K25.layers)
