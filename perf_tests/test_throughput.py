"""How many tokens per second a real vLLM server gives when more streams no longer help, and where that begins."""

import pytest

from pytest_decodegate.measure.sweep import MOST_STREAMS
from pytest_decodegate.measure.window import Load
from pytest_decodegate.metric import Metric
from pytest_decodegate.serving.server import Server
from pytest_decodegate.session.perf import Perf


@pytest.mark.perf(metric="throughput_plateau", stand_in="throughput_plateau_cpu", extended=True)
def test_throughput_plateau(perf: Perf, server: Server) -> None:
    """Output tokens per second where the plateau begins; the whole curve is recorded with it."""
    if server.stand_in:
        metric = Metric.of("throughput_plateau_cpu", "cpu", unit="tok/s")
        load = Load(1, prompt_tokens=16, output_tokens=32, requests=8, cross_check=0.2)
        perf.measure_plateau(metric, server, load, most=8)
    else:
        metric = Metric.of("throughput_plateau", "serving", unit="tok/s")
        perf.measure_plateau(
            metric, server, Load(1, prompt_tokens=64, output_tokens=128, requests=8), most=MOST_STREAMS
        )
