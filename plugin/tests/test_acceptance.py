"""The plugin on real gangs, as a user runs it: each test is one pytest run in a process of its own.

They buy what unit tests cannot: that hooks, fixtures, gangs, gate and store work together (about 5 s each).
"""

from __future__ import annotations

import importlib.util
import json
import signal
import socket
import time
import uuid
from pathlib import Path
from xml.etree import ElementTree

import pytest
from scripted import ScriptedServer, answer, streaming
from stored import baseline, write

from pytest_decodegate.baseline.reader import load
from pytest_decodegate.baseline.schema import Session, StoredMetric
from pytest_decodegate.machine.fingerprint import machine
from pytest_decodegate.metric import Metric
from pytest_decodegate.process.processes import tagged

pytest.importorskip("torch", reason="ranks run on torch")

WORKLOADS = """
    import os, time

    from pytest_decodegate.workloads.runtime.timing import CpuClock, Workload


    def nap(milliseconds, wrong=None):
        # Sleeping is steadier than computing on a shared machine, and its length is known.
        def burst():
            time.sleep(milliseconds / 1e3)

        return Workload(burst, 1, CpuClock(), lambda: wrong, {"clock": "perf_counter"})
"""

GATED = """
    import os

    import pytest
    from pytest_decodegate.measure.sampling import Plan
    from pytest_decodegate.metric import Metric
    from workloads import nap

    PLAN = Plan(batch=5, min_samples=5, max_samples=5, max_warmups=3)


    @pytest.mark.perf(tolerance="25%")
    def test_nap(perf):
        milliseconds = float(os.environ["NAP"])
        perf.measure(Metric.of("nap", "cpu"), nap, plan=PLAN, milliseconds=milliseconds, wrong=os.environ.get("WRONG"))
"""

RUN = ("-m", "perf", "--perf-replicates=2", "--perf-max-replicates=2")


@pytest.fixture(autouse=True)
def suite(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(workloads=WORKLOADS)


def stored(pytester: pytest.Pytester) -> list[Path]:
    return sorted((pytester.path / "baselines").glob("*/*.json"))


def test_record_gate_and_catch_a_slowdown(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makepyfile(GATED)
    monkeypatch.setenv("NAP", "4")
    missing = pytester.runpytest_subprocess(*RUN)
    missing.assert_outcomes(failed=1)
    missing.stdout.fnmatch_lines(["nap: NO_BASELINE: *", "*next: *--perf-record=missing*"])
    assert stored(pytester) == []

    recorded = pytester.runpytest_subprocess(*RUN, "--perf-record")
    recorded.assert_outcomes(passed=1)
    (path,) = stored(pytester)
    (benchmark,) = json.loads(path.read_text())["benchmarks"]
    assert benchmark["stats"]["median"] == pytest.approx(4e-3, rel=0.5)
    assert len(benchmark["extra_info"]["sessions"][0]["replicates"]) == 2

    gated = pytester.runpytest_subprocess(*RUN, "--junitxml=junit.xml", "-v")
    gated.assert_outcomes(passed=1)
    gated.stdout.re_match_lines(
        [
            r"nap +PASS +\d.* ms +\d.* ms .* 25 % +2",
            r"launch of 2 x 1 rank: ready after \d+\.\d s, the first verdict after \d+\.\d s",
            r"would have been found: a slowdown of a stand-in on the CPU by \d+\.\d %",
            r"counts: 1 PASS \(at most [+-]\d.* %: nap\)",
            r"answer: GO: 1 metric in \d+\.\d min",
        ]
    )
    properties = ElementTree.parse(pytester.path / "junit.xml").findall(".//testcase/properties/property")
    assert ("perf.nap.verdict", "PASS") in [(one.get("name"), one.get("value")) for one in properties]

    monkeypatch.setenv("NAP", "40")
    slow = pytester.runpytest_subprocess(*RUN)
    slow.assert_outcomes(failed=1)
    slow.stdout.fnmatch_lines(
        [
            "nap: REGRESSED: worse by more than the band of 25 %: *",
            "counts: 1 REGRESSED",
            "answer: NO-GO: 1 metric in *",
        ]
    )
    slow.stdout.no_fnmatch_line("*Traceback*")

    wide = pytester.runpytest_subprocess(*RUN, f"--perf-baseline={path}", "-operf_tolerance=na* = 99%", "-q")
    wide.stdout.fnmatch_lines(["nap: REGRESSED: worse by more than the band of 99 %*"])
    wide.stdout.no_fnmatch_line("*starting*")

    monkeypatch.setenv("WRONG", "seven is not eight")
    wrong = pytester.runpytest_subprocess(*RUN, "--perf-record=all")
    wrong.assert_outcomes(failed=1)
    wrong.stdout.fnmatch_lines(["nap: WRONG_RESULT: *", "*replicate 1, rank 0: seven is not eight*"])
    assert len(json.loads(path.read_text())["benchmarks"][0]["extra_info"]["sessions"]) == 1


def test_a_damaged_baseline_is_refused_and_kept(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makepyfile(GATED)
    monkeypatch.setenv("NAP", "1")
    pytester.runpytest_subprocess(*RUN, "--perf-record").assert_outcomes(passed=1)
    (path,) = stored(pytester)
    damaged = (
        path.read_text()
        .replace('"better":"lower"', '"better":"sideways"', 1)
        .replace('"better": "lower"', '"better": "sideways"', 1)
    )
    path.write_text(damaged)
    refused = pytester.runpytest_subprocess(*RUN, "--perf-record=all")
    refused.assert_outcomes(failed=1)
    refused.stdout.fnmatch_lines([f"*BadInput: *{path.name}*/benchmarks/0/*sideways*"])
    refused.stdout.no_fnmatch_line("*pytest_decodegate/baseline/*")
    assert path.read_text() == damaged


def test_a_published_figure_is_a_reference_and_no_recording(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = machine().machine_class
    nap = Metric("nap", "s", "cpu", 0.25, {})
    point = StoredMetric(nap, (Session("p", "2026-01-01T00:00:00+00:00", "published", (), point=4e-3),))
    path = write(
        pytester.path / "baselines" / here,
        baseline(point, path="0000_published.json", machine_class=here, machine={}, stack={}, published="a write-up"),
    )
    pytester.makepyfile(GATED)
    monkeypatch.setenv("NAP", "40")
    shown = pytester.runpytest_subprocess(*RUN)
    shown.assert_outcomes(passed=1)
    shown.stdout.fnmatch_lines(["nap: REGRESSED: *", "nap *REGRESSED, advisory *", "measured elsewhere, *"])

    pytester.runpytest_subprocess(*RUN, "--perf-record=missing").assert_outcomes(passed=1)
    assert [one.name[:5] for one in stored(pytester)] == ["0000_", "0001_"]
    assert load(path).metrics["nap"].level == "published"
    pytester.runpytest_subprocess(*RUN).assert_outcomes(passed=1)


ATTACHED = """
    import pytest
    from pytest_decodegate.metric import Metric
    from pytest_decodegate.measure.window import Load


    @pytest.mark.perf(tolerance="80%")
    def test_tpot(perf, server):
        perf.measure_tpot(Metric.of("tpot", "serving"), server, Load(1, 8, 4, 5))
"""


def test_an_attached_server_is_compared_by_its_own_word(pytester: pytest.Pytester) -> None:
    server = ScriptedServer()
    server.completion, server.version = streaming(answer(), pause_s=0.01), "0.26.0"
    pytester.makepyfile(ATTACHED)
    attached = (*RUN, f"--perf-server={server.url}")
    try:
        pytester.runpytest_subprocess(*attached, "--perf-record").assert_outcomes(passed=1)
        (path,) = stored(pytester)
        assert json.loads(path.read_text())["decodegate"]["provenance"]["stack"]["vllm"] == "0.26.0"
        pytester.runpytest_subprocess(*attached).assert_outcomes(passed=1)

        server.version = "0.33.0"
        upgraded = pytester.runpytest_subprocess(*attached)
        upgraded.stdout.fnmatch_lines(["tpot: CONFOUNDED: *", "*vllm: 0.26.0 -> 0.33.0", "*--perf-change vllm*"])
        pytester.runpytest_subprocess(*attached, "--perf-change=vllm").assert_outcomes(passed=1)

        server.models = ["another-model"]
        another = pytester.runpytest_subprocess(*attached, "--perf-change=vllm")
        another.stdout.fnmatch_lines(["tpot: CONFOUNDED: *", "*contract.model: 'the-model' in the baseline*"])
    finally:
        server.close()


def test_a_baseline_of_another_machine_class_is_confounded(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(GATED)
    monkeypatch.setenv("NAP", "4")
    pytester.runpytest_subprocess(*RUN, "--perf-record").assert_outcomes(passed=1)
    (path,) = stored(pytester)
    other = pytester.path / "0001_other.json"
    other.write_text(path.read_text().replace(machine().machine_class, "NVIDIA-B200-x8-NVLink"))
    result = pytester.runpytest_subprocess(*RUN, f"--perf-baseline={other}")
    result.stdout.fnmatch_lines(["nap: CONFOUNDED: *", "*machine_class: NVIDIA-B200-x8-NVLink -> *"])


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="a real server needs vllm")
def test_a_server_that_does_not_start_is_not_started_again(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(ATTACHED + "\n\n    def test_again(server): pass\n")
    result = pytester.runpytest_subprocess("--perf", "--perf-serve=./no-such-model", "--perf-server-timeout=120")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(
        ["ServerError: the server ended while starting*", "ServerError: the server failed before, and is not started*"]
    )
    # What it would have run was asked of a process, before.
    result.stdout.no_fnmatch_line("*starting * x * rank*")


RANKS = """
    import os, signal, time

    import pytest


    def reduced(value):
        import torch
        import torch.distributed as dist

        total = torch.tensor([float(value * (dist.get_rank() + 1))])
        dist.all_reduce(total)
        print("rank", dist.get_rank(), "says hello")
        return total.item()


    def one_raises():
        import torch.distributed as dist

        if dist.get_rank() == 1:
            raise ValueError("rank one has a bad day")
        dist.barrier()


    def one_dies():
        import torch.distributed as dist

        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()


    def one_hangs():
        import torch.distributed as dist

        if dist.get_rank() == 1:
            time.sleep(3600)
        dist.barrier()


    pytestmark = pytest.mark.world_size(2)


    def test_sum(torchrun, world_size):
        assert torchrun(reduced, 10) == [30.0, 30.0]


    def test_sections(torchrun):
        assert torchrun(reduced, 1) == [0.0]


    def test_raises(torchrun):
        torchrun(one_raises)


    def test_dies(torchrun):
        torchrun(one_dies)


    def test_hangs(torchrun):
        torchrun(one_hangs, deadline_seconds=2)


    def test_lambda(torchrun):
        torchrun(lambda: 1)
"""


def test_torchrun_fixture_tells_each_failure_and_goes_on(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(RANKS)
    result = pytester.runpytest_subprocess("-k", "sum or sections or raises or dies or lambda")
    result.assert_outcomes(passed=1, failed=4)
    result.stdout.fnmatch_lines(
        [
            "*Captured stdout rank 0 of w2-1 call*",
            "rank 0 says hello",
            "*test_raises*",
            "*torchrun(one_raises)",
            "RankRaised: rank 1 of w2-* raised ValueError in one_raises(): rank one has a bad day",
            "RankDied: rank 1 of w2-* (pid *) died (SIGKILL) in one_dies()*",
            "*module level*",
        ]
    )
    result.stdout.no_fnmatch_line("*pytest_decodegate/gang/controller.py*")


def test_a_hang_ends_at_its_deadline_with_stacks(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(RANKS)
    result = pytester.runpytest_subprocess("-k", "hangs or sum")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*RankHung: *2 s*", "*one_hangs*"])


def test_a_hang_is_told_before_the_faulthandler_timeout(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nfaulthandler_timeout = 12\n")
    pytester.makepyfile(RANKS.replace(", deadline_seconds=2", ""))
    result = pytester.runpytest_subprocess("-k", "hangs")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["RankHung: rank ?*", "*one_hangs*"])
    result.stderr.no_fnmatch_line("Timeout (*")


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="a real server needs vllm")
def test_a_killed_pytest_leaves_no_server_and_no_engine(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a minute buys the promise that matters most on a GPU host: no EngineCore that holds the GPUs for ever."""
    monkeypatch.setenv("ACCEPTANCE_TAG", tag := uuid.uuid4().hex)
    pytester.makepyfile(
        """
        import os, signal

        import pytest
        from pytest_decodegate.process.processes import tagged

        @pytest.mark.perf
        def test_killed(server):
            alive = tagged("ACCEPTANCE_TAG", os.environ["ACCEPTANCE_TAG"])
            with open("alive", "w") as file:
                file.write(str(len(alive)))
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    result = pytester.runpytest_subprocess("-m", "perf")
    assert result.ret == -signal.SIGKILL
    assert int((pytester.path / "alive").read_text()) >= 4  # pytest, guard, API server, EngineCore
    deadline = time.monotonic() + 15
    while left := tagged("ACCEPTANCE_TAG", tag):
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.1)


def test_with_sigint_ignored_a_perf_run_ends_on_sigterm_with_its_table_and_leaves_nothing(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `nohup pytest -m perf &` is started, and many a CI job: Ctrl-C stops nothing there."""
    pytester.makepyfile(
        """
        import os, signal

        import pytest
        from pytest_decodegate.metric import Metric
        from workloads import nap

        @pytest.mark.perf
        def test_short(perf):
            perf.measure(Metric.of("short", "cpu"), nap, milliseconds=1)

        @pytest.mark.perf
        def test_stopped(perf):
            os.kill(os.getpid(), signal.SIGINT)
            os.popen(f"sleep 1; kill -TERM {os.getpid()}")
            perf.measure(Metric.of("long", "cpu"), nap, milliseconds=60_000)
        """
    )
    monkeypatch.setenv("ACCEPTANCE_TAG", tag := uuid.uuid4().hex)
    monkeypatch.setenv("TMPDIR", str(temporary := pytester.mkdir("temporary")))
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *pytester._getpytestargs()]
    result = pytester.run(*command, *RUN, "--perf-record=missing", f"--basetemp={pytester.path / 'base'}")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(
        [
            "open: pytest was interrupted, or could not collect the tests",
            "counts: 1 RECORDED",
            "answer: NOT PROVEN: 1 metric in *",
            "!*! KeyboardInterrupt: SIGTERM !*!",
        ]
    )
    assert tagged("ACCEPTANCE_TAG", tag) == []
    assert list(temporary.glob("dgate-*")) == []  # where ranks connect; torch keeps a cache of its own beside it


def test_two_nodes_on_loopback_form_one_gang(pytester: pytest.Pytester) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    pytester.makepyfile(RANKS)
    result = pytester.runpytest_subprocess(
        *("-k", "sum", "--perf-nnodes=2", "--perf-node-start=env NODE=a", "--perf-node-start=sh -c {command}"),
        *(f"--perf-rdzv-endpoint=127.0.0.1:{port}", "--perf-listen-host=127.0.0.1"),
    )
    result.assert_outcomes(passed=1)


def test_a_world_size_that_does_not_divide_over_the_nodes_is_a_skip(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.world_size(3)
        def test_odd(torchrun): pass
        """
    )
    nodes = ("--perf-nnodes=2", "--perf-node-start=", "--perf-node-start=")
    result = pytester.runpytest(*nodes, "--perf-rdzv-endpoint=n:1", "--perf-listen-host=n", "-rs")
    result.stdout.fnmatch_lines(["SKIPPED*world size 3 does not divide over 2 nodes"])


def test_ranks_that_outnumber_cores_are_a_skip_in_a_perf_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from pytest_decodegate.metric import Metric
        from workloads import nap

        @pytest.mark.perf
        @pytest.mark.world_size(999)
        def test_nap(perf, world_size):
            perf.measure(Metric.of("nap", "cpu"), nap, world_size=world_size, milliseconds=1)
        """
    )
    result = pytester.runpytest_subprocess("-m", "perf", "-rs")
    result.stdout.fnmatch_lines(["SKIPPED*999*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED
