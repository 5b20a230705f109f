"""The plugin on real gangs, as a user runs it: each test is one pytest run in a process of its own.

They buy what unit tests cannot: that hooks, fixtures, gangs, gate and store work together (about 5 s each).
"""

from __future__ import annotations

import socket
import uuid
from pathlib import Path
from xml.etree import ElementTree

import pytest
from kept_baselines import recorded_once

from pytest_decodegate.baseline.reader import load
from pytest_decodegate.process.processes import tagged

pytest.importorskip("torch", reason="ranks run on torch")

WORKLOADS = """
    import os, time

    from pytest_decodegate.workloads.runtime.timing import CpuClock, Workload


    def nap(milliseconds, wrong=None):
        # Sleeping is steadier than computing on a shared machine, and its length is known. Its clock is no name of one
        # that counts what others do on the cores: the tests run beside anything.
        def burst():
            time.sleep(milliseconds / 1e3)

        return Workload(burst, 1, CpuClock(), lambda: wrong, {"clock": "asleep"})
"""

GATED = """
    import os

    import pytest
    from pytest_decodegate.measure.sampling import Plan
    from pytest_decodegate.metric import Metric
    from workloads import nap

    PLAN = Plan(batch=5, min_samples=5, max_samples=5, max_warmups=3)
    CHANGED = "CHANGED" in os.environ


    @pytest.mark.perf(tolerance="25%")
    @pytest.mark.parametrize("name", ["same", "slower", "wrong", "new"])
    def test_nap(perf, name):
        milliseconds = 40 if CHANGED and name == "slower" else 4
        wrong = "seven is not eight" if CHANGED and name == "wrong" else None
        perf.measure(Metric.of(name, "cpu"), nap, plan=PLAN, milliseconds=milliseconds, wrong=wrong)
"""

RUN = ("-m", "perf", "--perf-replicates=2", "--perf-max-replicates=2")


@pytest.fixture(autouse=True)
def suite(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(workloads=WORKLOADS)


def stored(pytester: pytest.Pytester) -> list[Path]:
    return sorted((pytester.path / "baselines").glob("*/*.json"))


def record(pytester: pytest.Pytester) -> None:
    recorded = pytester.runpytest_subprocess(*RUN, "--perf-record", "-k", "not new", "-q")
    recorded.assert_outcomes(passed=3, deselected=1)
    recorded.stdout.no_fnmatch_line("*starting*")


def test_record_gate_and_catch_a_slowdown(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, kept: Path
) -> None:
    """All that ranks may do to a metric in two runs, because a run's start costs more than what it measures.

    20 s: hooks, fixtures, gangs, gate and store together, on which users rely first of all.
    """
    monkeypatch.setenv("COLUMNS", "400")  # long lines stay whole
    pytester.makepyfile(GATED)
    recorded_once(pytester, kept, lambda: record(pytester))
    (path,) = stored(pytester)
    before = path.read_bytes()
    for metric in load(path).metrics.values():
        (session,) = metric.sessions
        assert [replicate.value for replicate in session.replicates] == [pytest.approx(4e-3, rel=0.5)] * 2

    monkeypatch.setenv("CHANGED", "1")
    wide = "-operf_tolerance=slow* = 99%"
    gated = pytester.runpytest_subprocess(*RUN, f"--perf-baseline={path}", wide, "--junitxml=junit.xml", "-v")
    gated.assert_outcomes(passed=1, failed=3)
    gated.stdout.fnmatch_lines_random(
        [
            "slower: REGRESSED: worse by more than the band of 99 %*",
            "wrong: WRONG_RESULT: *",
            "*replicate 1, rank 0: seven is not eight*",
            "new: NO_BASELINE: *",
            "*next: *--perf-record=missing*",
        ]
    )
    gated.stdout.re_match_lines(
        [
            r"same +PASS +\d.* ms +\d.* ms .* 25 % +2",
            r"launch of 2 x 1 rank: ready after \d+\.\d s, the first verdict after \d+\.\d s",
            r"would have been found: a slowdown of a stand-in on the CPU by \d+\.\d %",
            r"counts: 1 WRONG_RESULT, 1 REGRESSED, 1 NO_BASELINE, 1 PASS \(at most [+-]\d.* %: same\)",
            r"answer: NO-GO: 4 metrics in \d+\.\d min",
        ]
    )
    gated.stdout.no_fnmatch_line("*Traceback*")
    properties = ElementTree.parse(pytester.path / "junit.xml").findall(".//testcase/properties/property")
    assert ("perf.same.verdict", "PASS") in [(one.get("name"), one.get("value")) for one in properties]
    assert path.read_bytes() == before


def test_a_slowdown_beside_stored_baselines_reaches_ranks_is_judged_and_told_where_it_reaches_nothing(
    pytester: pytest.Pytester, kept: Path
) -> None:
    """A regression is confirmed on ranks of its own: two starts, ten seconds."""
    pytester.makepyfile(GATED)
    recorded_once(pytester, kept, lambda: record(pytester))
    asked = "--perf-candidate=env:DECODEGATE_SLOWDOWN=same=900%;sam=5%"
    gated = pytester.runpytest_subprocess(*RUN, asked, "-k", "same")
    gated.assert_outcomes(failed=1, deselected=3)
    gated.stdout.fnmatch_lines(
        [
            "perf: slowed down on purpose: same by 900 %",
            "same: REGRESSED: worse by more than the band of 25 %*",
            "open: DECODEGATE_SLOWDOWN: 'sam' slowed nothing down*",
            "answer: NO-GO: *",
        ]
    )


ATTACHED = """
    import pytest
    from pytest_decodegate.metric import Metric
    from pytest_decodegate.measure.window import Load


    @pytest.mark.perf(tolerance="80%")
    def test_tpot(perf, server):
        perf.measure_tpot(Metric.of("tpot", "serving"), server, Load(1, 8, 4, 5))
"""


def test_a_server_that_does_not_start_is_not_started_again(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a vLLM that ends at once: the real one imports for ten seconds before it looks for its model."""
    package = pytester.mkdir("theirs") / "vllm"
    for folder in (package, package / "entrypoints", package / "entrypoints/openai"):
        folder.mkdir()
        (folder / "__init__.py").touch()

    (package / "entrypoints/openai/api_server.py").write_text("raise SystemExit('no such model')")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    pytester.makepyfile(ATTACHED + "\n\n    def test_again(server): pass\n")
    result = pytester.runpytest_subprocess("--perf", "--perf-launch=./no-such-model", "--perf-server-timeout=120")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(
        [
            "ServerError: the server ended while starting*",
            "*no such model",
            "ServerError: the server failed before, and is not started*",
        ]
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


    def test_lambda(torchrun):
        torchrun(lambda: 1)


    def test_hangs(torchrun):
        torchrun(one_hangs, deadline_seconds=2)


    def test_dies(torchrun):
        torchrun(one_dies)
"""


def test_torchrun_fixture_tells_each_failure_and_goes_on(pytester: pytest.Pytester) -> None:
    """Ten seconds: ranks that go on after an error, that are ended for a hang, and that are started anew after it."""
    pytester.makepyfile(RANKS)
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=1, failed=5)
    result.stdout.fnmatch_lines(
        [
            "*Captured stdout rank 0 of w2-1 call*",
            "rank 0 says hello",
            "*test_raises*",
            "*torchrun(one_raises)",
            "RankRaised: rank 1 of w2-1 raised ValueError in one_raises(): rank one has a bad day",
            "*module level*",
            "*RankHung: *2 s*",
            "*one_hangs*",
            "RankDied: rank 1 of w2-2 (pid *) died (SIGKILL) in one_dies()*",
        ]
    )
    result.stdout.no_fnmatch_line("*pytest_decodegate/gang/controller.py*")


def test_a_hang_is_told_before_the_faulthandler_timeout(pytester: pytest.Pytester) -> None:
    """Seven seconds, most of them the timeout: its margin for naming a rank is five."""
    # Ranks start in a test without that timeout: on a busy machine their start alone may take longer.
    pytester.makeconftest(
        """
        import pytest

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_protocol(item):
            item.config._inicache["faulthandler_timeout"] = 8.0 if item.originalname == "test_hangs" else 0.0
            return (yield)
        """
    )
    pytester.makepyfile(RANKS.replace(", deadline_seconds=2", ""))
    result = pytester.runpytest_subprocess("-k", "sum or hangs")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["RankHung: rank ?*", "*one_hangs*"])
    result.stderr.no_fnmatch_line("Timeout (*")


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
