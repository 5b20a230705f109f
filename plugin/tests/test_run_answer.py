"""One run, one answer, as a user runs it: made-up sources, real hooks, store, gate, order and exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kept_baselines import recorded_once

from pytest_decodegate.baseline.reader import load
from pytest_decodegate.session.session import PerfSession

TESTS = """
    import json, os

    import pytest
    from pytest_decodegate.machine.fingerprint import machine, provenance
    from pytest_decodegate.measure.source import Taken
    from pytest_decodegate.metric import Metric, Replicate

    NAMES = [f"kernel[m={n}]" for n in range(9)]
    QUIET = (1.0, 1.001, 0.999, 1.0005, 0.9995)
    FACTORS = json.loads(os.environ.get("FACTORS", "{}"))


    class Source:
        '''Replicates of 40 us, each times a factor: those of FACTORS by name, else 1.'''

        level = "gang"

        def __init__(self, name):
            self.factors = FACTORS.get(name) or [1.0]
            self.taken = 0

        def take(self, count):
            self.taken += count
            # The last factor stays: what comes after it is as it was.
            each = [self.factors[min(n, len(self.factors) - 1)] * QUIET[n % 5] for n in range(self.taken)]
            values = [40e-6 * factor for factor in each]
            return Taken("gang", tuple(Replicate((v, v * 1.0001, v * 0.9999)) for v in values), {"clock": "made up"})


    def here():
        return provenance(machine().part(1), {"torch": "2.11.0"}, {})


    @pytest.mark.perf(metric="{name}")
    @pytest.mark.parametrize("name", NAMES)
    def test_kernel(perf, name):
        perf.gate(Metric.of(name, "kernel"), Source(name), here)


    @pytest.mark.perf
    @pytest.mark.crashing
    def test_crash(perf):
        raise RuntimeError("boom")
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, kept: Path) -> Any:
    """Runs the perf tests with factors by metric; three sessions are recorded first."""
    pytester.makeini("[pytest]\nmarkers = crashing\n")
    pytester.makepyfile(test_it=TESTS)

    def measured(*arguments: str, markers: str = "perf and not crashing", **factors: list[float]) -> pytest.RunResult:
        named = {name.replace("_", "[m=") + "]": each for name, each in factors.items()}
        monkeypatch.setenv("FACTORS", json.dumps(named))
        return pytester.runpytest_inprocess("-m", markers, *arguments)

    def record() -> None:
        recorded = measured("--perf-record=all")
        recorded.stdout.fnmatch_lines(["counts: 9 RECORDED", "answer: RECORDED: 9 metrics in *"])
        assert recorded.ret == pytest.ExitCode.OK
        for _ in range(2):
            measured("--perf-record=all")

    recorded_once(pytester, kept, record)
    return measured


def test_an_unchanged_run_is_go(run: Any) -> None:
    result = run("--perf-report=report")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        [
            "would have been found: a slowdown of a kernel by *",
            "report: report/report.html",
            "counts: * PASS (at most *",
            "answer: GO: * metrics in * min",
        ]
    )
    result.stdout.no_fnmatch_line("next: *")


def test_one_slower_metric_is_no_go_and_named_alone(run: Any, pytester: pytest.Pytester) -> None:
    result = run("--perf-report=report", kernel_3=[1.04])
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=8, failed=1)
    result.stdout.fnmatch_lines(
        [
            "kernel[[]m=3]: REGRESSED: *; confirmed by 5 fresh replicates (+4.0 %)",
            "NO-GO: slower by more than the band (+4.0 %)",
            "  kernel[[]m=3]  +4.0 %  *",
            "next: *",
            "counts: 1 REGRESSED, * PASS (at most *",
            "answer: NO-GO: * metrics in *",
        ]
    )
    outcomes = [json.loads(line) for line in (pytester.path / "report/results.jsonl").read_text().splitlines()]
    assert outcomes[-1]["event"] == "answer"
    assert outcomes[-1]["answer"] == "NO-GO"
    assert [ground["names"] for ground in outcomes[-1]["grounds"]] == [["kernel[m=3]"]]
    assert "kernel[m=3] over 4 sessions" in (pytester.path / "report/report.html").read_text(), "with this run's level"
    (slower,) = [line for line in outcomes if line.get("verdict") == "REGRESSED"]
    assert slower["confirmation"]["replicates"] == 5


def test_what_is_gated_is_recorded_beside_its_verdict_unless_it_got_slower(run: Any, pytester: pytest.Pytester) -> None:
    """A slowdown that were stored would be its own baseline when the same is run again."""
    (path,) = pytester.path.glob("baselines/*/*.json")
    before = {name: len(stored.sessions) for name, stored in load(path).metrics.items()}
    for turn in (1, 2):
        result = run("--perf-record=gated", kernel_3=[1.04], kernel_5=[0.9] if turn == 1 else [1.0])
        assert result.parseoutcomes()["failed"] >= 1
        result.stdout.fnmatch_lines(
            [
                "kernel[[]m=0]: PASS: *; recorded in 0001_*",
                "kernel[[]m=3]: REGRESSED: *",
                "recorded: baselines/*/0001_*.json",
                "counts: *1 REGRESSED, *",
                "answer: NO-GO: * metrics in *",
            ]
        )
        after = {name: len(stored.sessions) for name, stored in load(path).metrics.items()}
        assert after["kernel[m=3]"] == before["kernel[m=3]"], "it fails again, and again"
        assert after["kernel[m=0]"] == before["kernel[m=0]"] + turn
        if turn == 1:
            assert after["kernel[m=5]"] == before["kernel[m=5]"] + 1


def test_with_gated_a_metric_without_a_baseline_is_recorded_in_place_of_a_verdict(
    run: Any, pytester: pytest.Pytester
) -> None:
    for path in pytester.path.glob("baselines/*/*.json"):
        path.unlink()

    run("--perf-record=gated").stdout.fnmatch_lines(["counts: 9 RECORDED", "answer: RECORDED: 9 metrics in *"])


def test_what_ranks_print_is_shown_beside_crashes_and_with_v_only(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    chatter = "Registering 15 cuda graph addresses"
    monkeypatch.setattr(PerfSession, "output", lambda self: [("stdout rank 0", chatter)])
    verdict = run(kernel_3=[1.04])
    assert chatter not in verdict.stdout.str()
    assert chatter in run("-v", kernel_3=[1.04]).stdout.str()
    assert chatter in run(markers="perf and crashing").stdout.str()


def test_a_lucky_first_regressed_that_fresh_gangs_do_not_repeat_does_not_stand(run: Any) -> None:
    result = run(kernel_3=[1.04] * 5 + [1.0])
    result.stdout.fnmatch_lines(["kernel[[]m=3]: *; REGRESSED at first (+4.0 %), which 5 fresh replicates do not *"])
    result.stdout.no_fnmatch_line("answer: NO-GO*")
    assert result.parseoutcomes().get("failed", 0) <= 1


def test_a_percent_and_a_half_on_all_kernels_is_found_though_each_stays_in_its_band(run: Any) -> None:
    slower = {f"kernel_{n}": [1.015] for n in range(9)}
    result = run("--perf-report=report", **slower)
    result.assert_outcomes(passed=9)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "NO-GO: slower by more than the band (+1.5 %)",
            "  kernels_common_shift *",
            "would have been found: *all kernels together*",
            "counts: 1 REGRESSED, 9 PASS *",
            "answer: NO-GO: 10 metrics in *",
        ]
    )


def test_what_one_cause_keeps_from_being_judged_is_explained_once(run: Any, pytester: pytest.Pytester) -> None:
    for path in pytester.path.glob("baselines/*/*.json"):
        path.unlink()

    result = run()
    result.assert_outcomes(failed=9)
    explained = [line for line in result.outlines if line.startswith("  next: or compare with a file of your choice")]
    assert len(explained) == 1
    assert sum("for the same reasons as kernel[m=0], see there" in line for line in result.outlines) == 8
    result.stdout.fnmatch_lines(
        ["open: NO_BASELINE: nothing is stored to compare with", "      --perf-record=missing", "counts: 9 NO_BASELINE"]
    )


def test_what_crashes_leaves_the_answer_open_and_is_named(run: Any) -> None:
    result = run(markers="perf")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["open: test_it.py::test_crash: ERROR: RuntimeError: boom", "answer: NOT PROVEN: * metrics in *"]
    )


def test_a_recording_names_what_cannot_keep_its_band_and_stores_it_under_one_that_it_can(
    run: Any, pytester: pytest.Pytester
) -> None:
    result = run("--perf-record=all", kernel_3=[1.0, 1.08, 1.0, 1.08, 1.0])
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        [
            "kernel[[]m=3]: *; recorded in 0001_* under a band of * %, for 2 % cannot be kept here: two modes, *",
            "1 band cannot be kept here; paste into the ini file, *",
            "perf_tolerance =",
            "    kernel[[]m=3] = *%",
            "next: pytest -m 'perf and not crashing'",
            "recorded: baselines/*/0001_*.json",
            "counts: 9 RECORDED",
            "answer: RECORDED: 9 metrics in *",
        ]
    )
    start = result.outlines.index("perf_tolerance =")
    pytester.makeini("\n".join(["[pytest]", "markers = crashing", *result.outlines[start : start + 2]]))
    (path,) = pytester.path.glob("baselines/*/*.json")
    tolerances = {name: stored.metric.tolerance for name, stored in load(path).metrics.items()}
    assert tolerances.pop("kernel[m=3]") > 0.03
    assert set(tolerances.values()) == {0.02}
    again = run("--perf-record=all", kernel_3=[1.0, 1.08, 1.0, 1.08, 1.0])
    again.stdout.no_fnmatch_line("*cannot be kept here*")


def test_a_run_that_skips_everything_fails_and_says_so(run: Any, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it="import pytest\n\n@pytest.mark.perf\ndef test_x(): pytest.skip('no hardware')\n")
    result = run()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "open: 1 perf test(s) were selected and none came to a verdict: *",
            "skipped: test_it.py::test_x: no hardware",
            "answer: NOT PROVEN: 0 metrics in *",
        ]
    )


def test_quiet_is_two_lines_and_verbose_has_every_row(run: Any) -> None:
    quiet = run("-q", kernel_3=[1.04])
    lines = [line for line in quiet.outlines if line.startswith(("counts:", "answer:", "NO-GO", "note", "against"))]
    assert [line.partition(":")[0] for line in lines] == ["counts", "answer"]
    verbose = run("-v")
    rows = [line for line in verbose.outlines if line.startswith("kernel[m=") and " PASS  " in line]
    assert len(rows) == 9


def test_a_run_that_is_stopped_early_is_not_proven(run: Any) -> None:
    result = run("-x", kernel_3=[1.04])
    result.stdout.fnmatch_lines(
        ["NO-GO: slower *", "open: * of the selected perf tests were never begun: *", "answer: NO-GO: *"]
    )


def test_what_passes_only_in_a_wider_band_of_other_cards_is_not_stored_with_gated(
    run: Any, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stored, a slowdown were from then on the only base on these cards; one who knows better records it with all."""
    monkeypatch.setattr("pytest_decodegate.gate.verdict.ran_elsewhere", lambda stored, cards: True)
    monkeypatch.setattr("pytest_decodegate.gate.other_cards.rounded_up_band", lambda band: 0.05)
    (path,) = pytester.path.glob("baselines/*/*.json")
    before = {name: len(stored.sessions) for name, stored in load(path).metrics.items()}
    result = run("--perf-record=gated", kernel_3=[1.03], kernel_4=[1.015])
    result.stdout.fnmatch_lines(
        [
            "kernel[[]m=3]: PASS: *",
            "kernel[[]m=4]: PASS: *; recorded in 0001_*",
            "note: kernel[[]m=3]: not stored: worse by more than its own band, *",
            "counts: * PASS *",
        ]
    )
    after = {name: len(stored.sessions) for name, stored in load(path).metrics.items()}
    assert {name: after[name] - before[name] for name in ("kernel[m=3]", "kernel[m=4]")} == {
        "kernel[m=3]": 0,
        "kernel[m=4]": 1,
    }
    run("--perf-record=all", kernel_3=[1.03])
    assert len(load(path).metrics["kernel[m=3]"].sessions) == before["kernel[m=3]"] + 1
