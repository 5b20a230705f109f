"""A hang on a GPU that stays wedged: the next perf tests end INVALID at once. One pytest run on ranks without a GPU."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch", reason="ranks run on torch")

# The machine shows a GPU that is not there; a probe of it is a real process that hangs, as one on a wedged driver does.
CONFTEST = """
    import dataclasses

    from pytest_decodegate.gang import health
    from pytest_decodegate.machine import fingerprint, nvml
    from pytest_decodegate.machine.gpus import Gpu

    really = fingerprint.machine
    gpu = Gpu(0, "GPU-aa", "NVIDIA H200", "00000000:18:00.0", None, {}, {})

    fingerprint.machine = lambda: dataclasses.replace(really(), gpus=(gpu,), driver="580")
    nvml.open_sensor = lambda: None
    health.PROBE = "import time; time.sleep(3600)"
    health.PROBE_SECONDS = 0.5
"""
WORKLOADS = """
    import time


    def never_ready():
        time.sleep(3600)
"""
TESTS = """
    import pytest
    from pytest_decodegate.metric import Metric
    from pytest_decodegate.measure.window import Load
    from workloads import never_ready

    pytestmark = pytest.mark.perf


    @pytest.mark.parametrize("time", ["first", "second"])
    def test_ranks(torchrun, time):
        torchrun(never_ready)


    @pytest.mark.parametrize("name", ["gating", pytest.param("advisory", marks=pytest.mark.perf(advisory=True))])
    def test_kernel(perf, name):
        perf.measure(Metric.of(name, "kernel"), never_ready)


    def test_tpot(perf, server):
        perf.measure_tpot(Metric.of("tpot", "serving"), server, Load(1, prompt_tokens=4, output_tokens=4, requests=8))


    def test_quality(perf, server):
        perf.measure_quality(server)


    def test_depth(perf):
        load = Load(1, prompt_tokens=4, output_tokens=4, requests=8)
        perf.measure_tpot(Metric.of("tpot[layers=8]", "serving"), perf.slice_server(8), load)
"""


def test_after_a_hang_on_a_wedged_gpu_nothing_more_is_tried(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(workloads=WORKLOADS, test_wedge=TESTS)
    arguments = ("-m", "perf", "--perf-deadline=2", "--perf-report=report", "--basetemp=tmp", "-v")
    result = pytester.runpytest_subprocess(*arguments)

    assert result.parseoutcomes() == {"failed": 6, "passed": 1}
    wedged = "GPU 0 (0000:18:00.0, GPU-aa) does not work any more: *nvidia-smi --gpu-reset -i GPU-aa*because RankHung*"
    result.stdout.fnmatch_lines(
        [
            "*::test_kernel?advisory? PASSED*",
            "*RankHung: *",
            f"*GangError: {wedged}",
            "gating: INVALID: measured nothing, not judged: the measurement broke a rule",
            f"  - {wedged}",
        ]
    )
    results = [json.loads(line) for line in (pytester.path / "report/results.jsonl").read_text().splitlines()]
    told = [(one["metric"], one["verdict"], len(one["reasons"])) for one in results if "event" not in one]
    names = ("gating", "advisory", "tpot", "quality", "tpot[layers=8]")
    assert told == [(name, "INVALID", 1) for name in names]
    # The ranks of the first test are all that were ever started, and the GPU was asked once.
    started = [path.name.rpartition("-")[0] for path in (pytester.path / "tmp").glob("gangs[0-9]*/w1-*")]
    assert started == ["w1-1"]
    assert len(list((pytester.path / "tmp").glob("gangs[0-9]*/probe-GPU-aa.log"))) == 1
