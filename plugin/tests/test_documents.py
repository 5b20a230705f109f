"""The files of a report: true after each outcome, harmless whatever they quote, short, and readable by programs."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from judged import changed, result
from prometheus_client.parser import text_string_to_metric_families
from stored import MOE, NOISY, baseline, stored, write

from pytest_decodegate.cause import Cause, Finding
from pytest_decodegate.cli import main
from pytest_decodegate.gate.pairs import Contrast
from pytest_decodegate.gate.result import Ended, Failed, Result, Skipped, Stacks
from pytest_decodegate.gate.run import Run
from pytest_decodegate.machine.provenance import Difference
from pytest_decodegate.profile.documents import replace_whole
from pytest_decodegate.report import documents, github
from pytest_decodegate.report.content import Begun, Content, RunFacts, of_run
from pytest_decodegate.report.documents import LINES
from pytest_decodegate.report.exports import csv_table, prometheus
from pytest_decodegate.report.html import page
from pytest_decodegate.report.lines import properties
from pytest_decodegate.report.markdown import MOST_BYTES, markdown
from pytest_decodegate.report.upgrade import document

PASS = result("gemm[m=8]", "PASS", change=0.012, lo=-0.004, hi=0.016, base=2e-5, measured=2.02e-5, p_worse=0.2)
SLOWER = changed(PASS, name="marlin_moe[m=8]", verdict="REGRESSED", change=0.041, lo=0.038, hi=0.044, p_worse=1e-9)
OPEN = changed(PASS, name="mla_decode[m=8,context=1024]", verdict="INCONCLUSIVE")
NCCL = Difference("nccl", "2.28.3", "2.28.9", declarable=True)
CONFOUNDED = changed(PASS, name="allreduce", verdict="CONFOUNDED", undeclared=(NCCL,), differences=(NCCL,))
CRASHED = Failed("perf_tests/test_x.py::test_x", Finding("RankDied: rank 0 died\nmore", Cause.CRASH))
STACKS = Stacks("this", "nccl=/n/libnccl.so.2", "NVIDIA-H200-x2-NVLink", Contrast((NCCL,)))
END = Ended(None, 90.0)
HOSTILE = (
    "\x1b[2J\n::error::owned\u2028@team #1 https://evil.example <script>alert(1)</script>|`x`![a](b)</details>\u202e"
)
SCHEMA = json.loads(Path(documents.__file__).with_name("summary.schema.json").read_text())


def run(*outcomes: object) -> Run:
    said = Run()
    for outcome in outcomes:
        said.add(outcome)

    return said


def content(*outcomes: object, typed: tuple[str, ...] = ("pytest", "-m", "perf")) -> Content:
    return of_run(run(*outcomes), RunFacts(typed, "NVIDIA-H200-x2-NVLink", begun=Begun(3, 7, "t.py::t", "12:00")))


# --- Markdown


def test_113_metrics_fit_in_4_kb_with_failures_first_and_what_passed_folded() -> None:
    passed = [changed(PASS, name=f"kernel_{n // 8}[m={2 ** (n % 8)},context=1024]") for n in range(100)]
    slower = [changed(SLOWER, name=f"marlin_moe[m={n}]", change=0.04 + n / 1000) for n in range(13)]
    said = markdown(content(*passed, *slower, STACKS, END))
    assert len(said.encode()) < 4000
    assert said.index("slower by more than the band") < said.index("<details><summary>100 PASS</summary>")
    assert said.count("| REGRESSED |") == 13
    assert re.search(r"\| marlin\\_moe\\\[m=12\\\] \| REGRESSED \| \+5\.2 % ", said), "what moved most comes first"
    assert "nccl: 2.28.3 -> 2.28.9" in said
    assert said.count("<details>") == said.count("</details>")
    assert "more entries" not in said


OUTCOMES = st.lists(
    st.sampled_from([PASS, SLOWER, OPEN, CONFOUNDED, CRASHED, STACKS, END, changed(PASS, advisory=True)])
    | st.builds(lambda text: Failed(f"t.py::{text}", Finding(text, Cause.CRASH)), st.text() | st.just(HOSTILE * 9))
    | st.builds(lambda text: Skipped("t.py::t", text), st.text() | st.just(HOSTILE))
    | st.builds(lambda n: changed(SLOWER, name=f"m{n}[a=1]", reasons=(Finding(HOSTILE),)), st.integers(0, 10**6)),
    max_size=80,
)


@given(OUTCOMES, st.lists(st.text() | st.just(HOSTILE), max_size=4))
def test_whatever_happened_the_markdown_is_short_and_whole(outcomes: list[object], typed: list[str]) -> None:
    said = markdown(content(*outcomes, typed=("pytest", *typed)))
    assert len(said.encode()) <= MOST_BYTES
    assert said.startswith("## decodegate: ")
    outside = re.sub(r"^(`{3,})\n.*?\n\1$", "", said, flags=re.S | re.M)
    assert outside.count("<details>") == outside.count("</details>")
    assert "<script" not in outside
    assert not re.search(r"[@#](?=\w)|(?i:https?://)", outside.replace("## ", ""))
    assert not any(line.lstrip().startswith("::") for line in said.splitlines())


def test_what_has_no_room_is_counted() -> None:
    slower = [changed(SLOWER, name=f"a_metric_with_a_long_name[m={n},context=32768]") for n in range(200)]
    said = markdown(content(*slower, END))
    (left,) = re.findall(r"^(\d+) more entries have no room here; report.html has them", said, re.M)
    assert said.count("| REGRESSED |") + int(left) >= 200


# --- machine-readable


@given(OUTCOMES)
def test_the_summary_keeps_its_published_schema(outcomes: list[object]) -> None:
    jsonschema.validate(json.loads(document(run(*outcomes))), SCHEMA)


@pytest.mark.parametrize(
    ("field", "value"), [("answer", "MAYBE"), ("metrics", [{"metric": "x"}]), ("schema", 99), ("counts", {"PASS": 0})]
)
def test_the_schema_refuses_what_is_no_summary(field: str, value: object) -> None:
    broken = {**json.loads(document(run(PASS, END))), field: value}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, SCHEMA)


def test_the_csv_has_a_row_for_each_outcome_and_no_formula() -> None:
    evil = Failed("=HYPERLINK(1)", Finding("boom", Cause.CRASH))
    rows = list(csv.DictReader(io.StringIO(csv_table([PASS, SLOWER, evil]))))
    assert [(row["metric"], row["verdict"], row["passes"]) for row in rows] == [
        ("gemm[m=8]", "PASS", "True"),
        ("marlin_moe[m=8]", "REGRESSED", "False"),
        ("'=HYPERLINK(1)", "ERROR", "False"),
    ]
    assert float(rows[1]["change"]) == 0.041
    assert float(rows[1]["tolerance"]) == 0.02


@given(OUTCOMES, st.text() | st.just(HOSTILE))
def test_prometheus_reads_the_gauges(outcomes: list[object], machine: str) -> None:
    found = {family.name: family for family in text_string_to_metric_families(prometheus(run(*outcomes), machine, 1.0))}
    said = run(*outcomes)
    (answer,) = [s.labels["answer"] for s in found["decodegate_answer"].samples if s.value == 1]
    assert answer == said.decision.answer
    assert found["decodegate_finished"].samples[0].value == (said.unfinished is None)
    names = [sample.labels["metric"] for sample in found["decodegate_passes"].samples] if said.results else []
    assert sorted(names) == sorted({each.name for each in said.results}), "each metric once"


def test_junit_says_what_a_change_means_for_the_step() -> None:
    from pytest_decodegate.gate.verdict import StepShare

    weighed = changed(SLOWER, step=StepShare("decode_step[tp=2,m=8]", 0.004, 0.006))
    found = dict(properties(weighed))
    assert (found["perf.marlin_moe[m=8].step_change"], found["perf.marlin_moe[m=8].step_worst"]) == (0.004, 0.006)
    assert not {name for name, _ in properties(SLOWER) if "step" in name}


# --- GitHub


def test_annotations_name_what_blocks_and_nothing_ends_them() -> None:
    evil = Failed("t.py::x", Finding(f"a%0Ab\n::error::owned {HOSTILE}", Cause.CRASH), side="candidate")
    lines = list(github.commands(content(SLOWER, OPEN, evil, END)))
    assert [line.partition(" ")[0] for line in lines] == ["::error", "::error", "::warning"]
    assert lines[0].startswith("::error title=decodegate NO-GO::marlin_moe[m=8]: slower by more than the band")
    assert all("\n" not in line and "\r" not in line for line in lines)
    assert "%250Ab" in lines[1], "what looks decoded is encoded once more"


PERF_TESTS = """
    import os
    import signal
    import pytest
    from pytest_decodegate.metric import Metric, Replicate
    from pytest_decodegate.measure.source import Taken

    class Source:
        level = "process"
        taken = 0

        def take(self, count):
            value = float(os.environ.get("SLOWDOWN", "1"))
            self.taken += count
            return Taken("process", (Replicate((value, value * 1.001, value * 0.999)),) * self.taken)

    @pytest.mark.perf
    @pytest.mark.parametrize("number", range(3))
    def test_speed(perf, number):
        if number == 2 and "DIE" in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)
        perf.gate(Metric.of(f"made_up[m={number}]", "cpu"), Source())
"""


def lines_of(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def test_a_run_that_is_killed_leaves_what_it_measured_and_says_where_it_was(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(test_it=PERF_TESTS)
    monkeypatch.setenv("DIE", "1")
    killed = pytester.runpytest_subprocess("-m", "perf", "--perf-record", "--perf-report=out/report")
    assert killed.ret == -signal.SIGKILL
    folder = pytester.path / "out/report"
    files = ["metrics.prom", "report.html", "report.md", "results.csv", LINES, "summary.json"]
    assert sorted(path.name for path in folder.iterdir()) == files, "whole files, and none left over"
    *_, last = lines_of(folder)
    assert (last["event"], last["number"], last["selected"]) == ("begun", 3, 3)
    assert str(last["test"]).endswith("test_speed[2]")
    for name in ("report.html", "report.md"):
        said = (folder / name).read_text().replace("\\", "")
        assert "test 3 of 3 was begun last" in said
        assert "test_speed[2]" in said
    summary = json.loads((folder / "summary.json").read_text())
    jsonschema.validate(summary, SCHEMA)
    assert (summary["answer"], len(summary["metrics"]), summary["unfinished"]) == (
        *("NOT PROVEN", 2),
        "pytest did not come to its end",
    )


def test_a_run_and_a_recording_end_with_true_documents_and_a_job_has_its_summary(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(test_it=PERF_TESTS)
    recording = pytester.runpytest_inprocess("-m", "perf", "--perf-record", "--perf-report=report")
    recording.assert_outcomes(passed=3)
    assert "## decodegate: RECORDED" in (pytester.path / "report/report.md").read_text()
    assert not [line for line in recording.outlines if line.startswith("::")]

    monkeypatch.setenv("SLOWDOWN", "3")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(pytester.path / "step.md"))
    slower = pytester.runpytest_inprocess("-m", "perf", "--perf-report=report")
    slower.assert_outcomes(failed=3)
    slower.stdout.fnmatch_lines(["::error title=decodegate NO-GO::made_up[[]m=0]*: slower by more than the band*"])
    summary, report = (pytester.path / "step.md").read_text(), (pytester.path / "report/report.md").read_text()
    assert summary.startswith("## decodegate: NO-GO")
    assert summary.count("| REGRESSED |") == report.count("| REGRESSED |") == 3
    shown = (pytester.path / "report/report.html").read_text()
    assert re.search(r"<pre[^>]*>pytest .*-m perf --perf-report=report<", shown), "the command to repeat it"
    assert shown.count('data-verdict="REGRESSED"') == 6
    assert [line.get("verdict") for line in lines_of(pytester.path / "report") if "metric" in line] == ["REGRESSED"] * 3


def test_a_report_that_cannot_be_written_any_more_costs_no_measurement_and_is_said(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(test_it=PERF_TESTS)
    pytester.makeconftest(
        """
        import shutil

        def pytest_runtest_logfinish(nodeid):
            shutil.rmtree("report", ignore_errors=True)
        """
    )
    result = pytester.runpytest_inprocess("-m", "perf", "--perf-record", "--perf-report=report")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["open: --perf-report: cannot write to", "    any more: No such file or directory"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_a_reader_sees_the_old_file_or_the_new_one_whole(tmp_path: Path) -> None:
    """A process that writes all the time is killed again and again; what lies there is always one whole text."""
    path = tmp_path / "report.md"
    script = (
        "import sys, itertools\nfrom pathlib import Path\n"
        "from pytest_decodegate.profile.documents import replace_whole\n"
        "for n in itertools.count():\n    replace_whole(Path(sys.argv[1]), b'%d' % (n % 10) * 300_000)\n"
        "    print(flush=True)\n"
    )
    for number in range(3):
        with subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            for _ in range(3 + number):
                writer.stdout.readline()
            for _ in range(20):
                text = path.read_text()
                assert len(text) == 300_000
                assert len(set(text)) == 1
            os.kill(writer.pid, signal.SIGKILL)
        assert len(set(path.read_text())) == 1


def test_what_was_begun_to_be_written_does_not_stay(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        replace_whole(path, b"new")
    assert [each.name for each in tmp_path.iterdir()] == ["report.md"]


def test_a_file_in_the_place_of_the_folder_is_refused_before_anything_runs(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=PERF_TESTS)
    (pytester.path / "taken").write_text("mine")
    refused = pytester.runpytest_inprocess("-m", "perf", "--perf-report=taken")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    refused.stderr.fnmatch_lines(["ERROR: --perf-report: cannot write to 'taken', because *taken' is no folder*"])
    assert (pytester.path / "taken").read_text() == "mine"


def test_compare_writes_the_same_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    files = [
        str(write(tmp_path, baseline(stored(MOE, seconds, factors=NOISY), path=f"{number:04d}_x.json")))
        for number, seconds in enumerate((40e-6, 60e-6))
    ]
    assert main(["compare", *files, "--report", "out/r"]) == 1
    folder = tmp_path / "out/r"
    assert sorted(path.name for path in folder.iterdir()) == [
        *("comparison.json", "report.html", "report.md", "results.csv", "results.jsonl")
    ]
    assert "## decodegate compare: REGRESSED" in (folder / "report.md").read_text()
    assert f"decodegate compare {files[0]}" in (folder / "report.html").read_text()
    (line,) = lines_of(folder)
    assert (line["metric"], line["verdict"], len(line["processes"])) == (MOE.name, "REGRESSED", 10)  # type: ignore[arg-type]
    capsys.readouterr()
    (tmp_path / "file").write_text("")
    assert main(["compare", *files, "--report", "file"]) == 3
    assert "--report: cannot write to 'file': " in capsys.readouterr().err


def test_each_outcome_is_in_the_documents_when_it_was_announced(tmp_path: Path) -> None:
    kept = documents.Documents(tmp_path, "s", lambda: RunFacts(("pytest",)), pytest.fail)
    kept.begin()
    for number, outcome in enumerate([PASS, SLOWER, CRASHED, END], start=1):
        kept.pytest_decodegate_outcome(outcome)
        assert len(lines_of(tmp_path)) == number
        seen = json.loads((tmp_path / "summary.json").read_text())["metrics"]
        assert len(seen) == min(number, 3)
        assert all(each["metric"] in (tmp_path / "report.html").read_text() for each in seen)


def test_a_report_of_a_thousand_metrics_is_written_in_the_time_of_few_verdicts(tmp_path: Path) -> None:
    """As a ratio in one run: what it costs grows with the metrics, not faster."""

    def seconds(count: int) -> float:
        outcomes = [changed(PASS, name=f"kernel_{n // 8}[m={n}]") for n in range(count)]
        started = time.perf_counter()
        page(content(*outcomes, END))
        return time.perf_counter() - started

    seconds(50)
    assert min(seconds(800) for _ in range(3)) < 40 * min(seconds(100) for _ in range(3))


def test_secrets_stay_out_of_the_command() -> None:
    said = content(PASS, END, typed=("pytest", "--perf-env", "HF_TOKEN=hf_mine"))
    assert "hf_mine" not in said.repeat


def test_recorded_metrics_are_listed_as_such() -> None:
    recorded = Result("t", changed(PASS, verdict="NO_BASELINE").judgement, Path("b/0001_x.json"))
    said = markdown(content(recorded, END))
    assert "## decodegate: RECORDED" in said
    assert "gemm" in said
