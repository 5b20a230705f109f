"""--perf-only: perf tests chosen by the names of their metrics, which they declare in their marker."""

from __future__ import annotations

import pytest
from scripted_host import without_ranks

TESTS = """
    import pytest
    from pytest_decodegate.measure.source import Taken
    from pytest_decodegate.metric import Metric, Replicate

    class Source:
        level = "process"

        def take(self, count):
            return Taken("process", tuple(Replicate((1.0, 1.1, 1.2, 1.05)) for _ in range(count)))

    @pytest.mark.perf(stand_in="gemm_cpu[m={tokens}]")
    @pytest.mark.parametrize("tokens", [1, 8])
    def test_gemm(perf, tokens):
        perf.gate(Metric.of(f"gemm_cpu[m={tokens}]", "cpu"), Source())

    @pytest.mark.perf(metric="tpot[c=1]", stand_in="tpot_cpu[c=1]")
    def test_tpot(perf):
        perf.gate(Metric.of("tpot_cpu[c=1]", "cpu"), Source())

    @pytest.mark.perf(stand_in="what_it_says")
    def test_other(perf):
        perf.gate(Metric.of("what_it_does", "cpu"), Source())

    @pytest.mark.perf
    def test_undeclared(perf):
        perf.gate(Metric.of("silent", "cpu"), Source())

    def test_plain():
        pass
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    without_ranks(monkeypatch)
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(test_it=TESTS)
    return pytester


@pytest.mark.parametrize(
    ("only", "selected"),
    [
        (("gemm_cpu[m=8]",), ["test_gemm[8]"]),
        (("gemm*,tpot[c=1]",), ["test_gemm[1]", "test_gemm[8]", "test_tpot"]),
        (("gemm*", "tpot_cpu*"), ["test_gemm[1]", "test_gemm[8]", "test_tpot"]),
    ],
)
def test_metrics_are_chosen_by_name_and_nothing_else_runs(
    suite: pytest.Pytester, only: tuple[str, ...], selected: list[str]
) -> None:
    result = suite.runpytest_inprocess("--collect-only", "-q", *(f"--perf-only={pattern}" for pattern in only))
    found = [line.partition("::")[2] for line in result.outlines if "::" in line]
    assert found == selected


@pytest.mark.parametrize("only", ["nothing*", "gemm_cpu*,typo", ","])
def test_a_pattern_that_matches_no_metric_is_refused_and_says_what_there_is(suite: pytest.Pytester, only: str) -> None:
    result = suite.runpytest_inprocess(f"--perf-only={only}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --perf-only: * matches no metric of the 5 collected perf test(s)*gemm_cpu*"])


def test_a_placeholder_that_is_no_parameter_is_refused(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.perf(metric="gemm[m={m}]")
        @pytest.mark.parametrize("tokens", [1])
        def test_gemm(perf, tokens):
            pass
        """
    )
    result = pytester.runpytest_inprocess("--perf")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*metric='gemm[[]m={m}]' cannot be filled in *placeholders are *: tokens"])


def test_the_first_lines_say_what_a_run_will_do(suite: pytest.Pytester) -> None:
    first = suite.runpytest_inprocess("-m", "perf", "-k", "gemm or undeclared", "--perf-record", "--perf-replicates=2")
    first.stdout.fnmatch_lines(
        [
            "perf: 2 metrics and 1 test(s) that declare none",
            "perf: nothing is stored for machine class cpu-*: every metric is recorded",
        ]
    )
    second = suite.runpytest_inprocess("-m", "perf", "-k", "not other", "--perf-replicates=2")
    second.stdout.fnmatch_lines(
        [
            "perf: 3 metrics and 1 test(s) that declare none, about 1 min by the times *",
            "perf: 2 gated by cpu-*/0001_*.json: the only one of this very stack",
            "perf: no baseline for tpot_cpu[[]c=1]: ends NO_BASELINE; record with `pytest -m perf --perf-record`",
        ]
    )


def test_what_confounds_already_is_said_before_anything_is_measured(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite.runpytest_inprocess("--perf-only=gemm*", "--perf-record", "--perf-replicates=2")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    result = suite.runpytest_inprocess("--perf-only=gemm*", "--perf-replicates=2")
    result.stdout.fnmatch_lines(["perf: 2 CONFOUNDED already by cpu-*/0001_*.json: *env:OMP_NUM_THREADS: * -> 7*"])
