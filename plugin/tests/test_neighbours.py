"""A perf run beside the real plugins of others: what they repeat, reorder, cut short or measure, no red run ends green.

Each test is a run of pytest with a source that makes its numbers up; `neighbours` installs the plugins.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import neighbours
import pytest
from kept_baselines import recorded_once

TESTS = """
    import os

    import pytest
    from pytest_decodegate.machine.provenance import Provenance
    from pytest_decodegate.measure.source import Taken
    from pytest_decodegate.metric import Metric, Replicate

    TRIES = {}


    class Source:
        level = "process"

        def __init__(self, kind):
            self.kind, self.taken = kind, 0

        def take(self, count):
            self.taken += count
            level = 2.0 if self.kind == "slow" else 1.0
            found = [Replicate((level * (1 + i / 1000), level * (1.001 + i / 1000))) for i in range(self.taken)]
            if self.kind == "still":
                found = [Replicate((1.0,) * 9)] * self.taken
            return Taken("process", tuple(found), wrong="off by one" if self.kind == "wrong" else None)


    @pytest.mark.perf
    @pytest.mark.parametrize("kind", ["slow", "wrong", "still"])
    def test_flaky(perf, kind):
        TRIES[kind] = TRIES.get(kind, 0) + 1
        bad = TRIES[kind] <= int(os.environ.get("BAD_TRIES", "0"))
        source = Source(kind if bad else "good")
        perf.gate(Metric.of(f"flaky_{kind}", "cpu"), source, lambda: Provenance({"cpu": "made up", "cores": 2}, {}, {}))


    @pytest.mark.perf
    def test_crash(perf):
        TRIES["crash"] = TRIES.get("crash", 0) + 1
        assert TRIES["crash"] > int(os.environ.get("BAD_TRIES", "0"))
        perf.gate(Metric.of("crash", "cpu"), Source("good"), lambda: Provenance({"cpu": "made up", "cores": 2}, {}, {}))


    def test_plain():
        pass
"""

PERF = ("-m", "perf", "-p", "no:cacheprovider", "-p", "no:randomly")


@pytest.fixture(autouse=True)
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", neighbours.import_path())
    monkeypatch.setenv("COLUMNS", "400")  # long lines stay whole
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(test_flaky=TESTS)


@pytest.fixture
def recorded(pytester: pytest.Pytester, kept: Path) -> None:
    def record() -> None:
        pytester.runpytest_subprocess(*PERF, "--perf-record").assert_outcomes(passed=4, deselected=1)

    recorded_once(pytester, kept, record)


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize(
    ("kind", "verdict"), [("slow", "REGRESSED"), ("wrong", "WRONG_RESULT"), ("still", "INVALID")], ids=str
)
def test_a_second_try_does_not_make_a_red_run_green(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, kind: str, verdict: str
) -> None:
    monkeypatch.setenv("BAD_TRIES", "1")
    more = ("-v", "-k", kind, "--reruns=2", "--junitxml=junit.xml", "--perf-report=report")
    result = pytester.runpytest_subprocess(*PERF, *more)

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1, deselected=4)
    result.stdout.fnmatch_lines(
        [
            f"flaky_{kind}: {verdict}: *",
            f"flaky_{kind} (try 2): PASS: *",
            f"flaky_{kind} *{verdict}, try 1 *",
            f"flaky_{kind} *PASS, try 2 *",
            f"*a perf run fails if any result did not pass, whatever ran again *: flaky_{kind} {verdict} in try 1",
        ]
    )
    tries = [json.loads(line) for line in (pytester.path / "report/results.jsonl").read_text().splitlines()]
    assert [(one["verdict"], one["attempt"]) for one in tries if "metric" in one] == [(verdict, 1), ("PASS", 2)]
    properties = ElementTree.parse(pytester.path / "junit.xml").findall(".//testcase/properties/property")
    said = {one.get("name"): one.get("value") for one in properties}
    assert (said[f"perf.flaky_{kind}.verdict"], said[f"perf.flaky_{kind}.try2.verdict"]) == (verdict, "PASS")


def test_a_crash_that_does_not_come_back_still_fails_the_run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAD_TRIES", "1")
    result = pytester.runpytest_subprocess(*PERF, "-k", "crash", "--reruns=1", "--perf-record")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*whatever ran again *: test_flaky.py::test_crash failed in try 1"])


@pytest.mark.usefixtures("recorded")
def test_reruns_of_a_run_that_passes_change_nothing(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess(*PERF, "--reruns=2")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line("*try *")


@pytest.mark.usefixtures("recorded")
def test_an_expected_failure_is_no_pass(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest's own way to end a red run green; what may fail is marked advisory."""
    monkeypatch.setenv("BAD_TRIES", "1")
    pytester.makepyfile(test_flaky=TESTS.replace("@pytest.mark.perf\n", "@pytest.mark.perf\n    @pytest.mark.xfail\n"))
    result = pytester.runpytest_subprocess(*PERF, "-k", "slow")
    result.assert_outcomes(xfailed=1, deselected=4)
    assert result.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize("how", ["--count=2", "@pytest.mark.repeat(2)"])
def test_a_repeat_is_refused_in_its_own_words(pytester: pytest.Pytester, how: str) -> None:
    if how.startswith("@"):
        pytester.makepyfile(test_flaky=TESTS.replace("@pytest.mark.perf\n", f"@pytest.mark.perf\n    {how}\n"))
    result = pytester.runpytest_subprocess(*PERF, *([how] if how.startswith("--") else []))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: test_flaky.py::test_*: pytest-repeat (--count, *--perf-replicates N *"])


def test_what_is_no_perf_test_may_be_repeated(pytester: pytest.Pytester) -> None:
    pytester.runpytest_subprocess("-p", "no:randomly", "--count=2").assert_outcomes(passed=2, deselected=8)


@pytest.mark.parametrize(
    ("given", "said"),
    [(("-n2",), "-n 2 --dist load"), (("--dist=load", "--tx=popen"), "--dist load")],
)
def test_workers_are_refused_by_what_was_given(pytester: pytest.Pytester, given: Sequence[str], said: str) -> None:
    result = pytester.runpytest_subprocess(*PERF, *given)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: perf tests own the hardware *({said}); run them without -n and --dist"])
    result.stderr.no_fnmatch_line("*None*")


def test_benchmark_only_is_named_where_it_skipped_everything(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess(*PERF, "--benchmark-only")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*4 perf test(s) *none came to a verdict (--benchmark-only of pytest-benchmark *"])


@pytest.mark.usefixtures("recorded")
def test_random_order_finds_the_same_metrics(pytester: pytest.Pytester) -> None:
    for seed in ("1", "2"):
        result = pytester.runpytest_subprocess("-m", "perf", "-p", "randomly", f"--randomly-seed={seed}")
        assert result.ret == pytest.ExitCode.OK
        result.stdout.fnmatch_lines(["counts: 4 PASS *"])


@pytest.mark.usefixtures("recorded")
def test_coverage_measures_beside_a_perf_run(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess(*PERF, "--cov=test_flaky", "--cov-report=term")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines_random(["TOTAL *", "counts: 4 PASS *"])


# A Python that answers whether it can run ranks, and whose torchrun then does nothing.
STUCK = """#!/bin/sh
case "$*" in *torch.distributed.run*) exec sleep 600;; esac
exec {python} "$@"
"""


@pytest.mark.skipif(find_spec("torch") is None, reason="ranks run on torch")
def test_a_timeout_that_is_shorter_than_a_start_names_the_ranks(pytester: pytest.Pytester) -> None:
    python = pytester.path / "python"
    python.write_text(STUCK.format(python=sys.executable))
    python.chmod(0o755)
    pytester.makepyfile(
        test_flaky="import pytest\n\n@pytest.mark.world_size(2)\ndef test_start(torchrun): torchrun(print)\n"
    )
    result = pytester.runpytest_subprocess("-p", "no:randomly", "--timeout=7", f"--perf-candidate=python={python}")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["RankHung: gang 'w2-1': ranks 0, 1 did not connect within * ends the test 7 s after its begin: *"]
    )
    result.stdout.no_fnmatch_line("*from pytest-timeout*")
