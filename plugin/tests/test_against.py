"""Two stacks as a user runs them: `decodegate upgrade` in a process of its own, on real gangs (gloo, no GPU).

Each of these runs buys what units cannot: that whatever a candidate does, the base's numbers are kept, the answer has
the reason and nothing is left running. What needs no process is in test_against_waves.py; that a Python without torch
cannot start a gang is in test_gang_faults.py.
"""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from pytest_decodegate.cli import BAD_INPUT, main
from pytest_decodegate.commands import upgrade as command
from pytest_decodegate.gate.result import Result
from pytest_decodegate.gate.run import Run
from pytest_decodegate.gate.verdict import Basis, Judgement, Verdict
from pytest_decodegate.metric import Metric
from pytest_decodegate.process.processes import tagged
from pytest_decodegate.settings.settings import Settings, read_settings
from pytest_decodegate.settings.stack import Stack

pytest.importorskip("torch", reason="ranks run on torch")

TAG = "AGAINST_TEST_TAG"
PASSED = Result("t.py::test_same", Judgement(Metric.of("same", "cpu"), Verdict.PASS, Basis("gang", 6)))

WORKLOADS = """
    import os, time, unittest

    from pytest_decodegate.workloads.runtime.timing import CpuClock, Workload

    CANDIDATE = os.environ.get("CANDIDATE")


    def first_of_all():
        # One gang that dies is enough, and the other need not be started again for the next test.
        try:
            open("crashed", "x").close()
        except FileExistsError:
            return False

        return True


    def nap(fault=None):
        # As in test_acceptance.py: a sleep, by a clock that asks nobody for quiet cores.
        seconds = 0.02
        if CANDIDATE:
            if fault == "slow":
                seconds *= 4
            if fault == "import":
                import no_such_module
            if fault == "memory":
                raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
            if fault == "skip":
                raise unittest.SkipTest("this version has no such path")
            if fault == "crash" and first_of_all():
                os._exit(3)
            if fault == "hang":
                time.sleep(600)

        wrong = "off by 0.3" if fault == "wrong" and CANDIDATE else None
        return Workload(lambda: time.sleep(seconds), 1, CpuClock(), lambda: wrong, {"clock": "asleep"})
"""

TESTS = """
    import pytest
    from pytest_decodegate.measure.sampling import Plan
    from pytest_decodegate.metric import Metric
    from workloads import nap

    PLAN = Plan(batch=5, min_samples=5, max_samples=5, max_warmups=1)


    @pytest.mark.perf
    def test_same(perf):
        perf.measure(Metric.of("same", "cpu", tolerance=0.9), nap, plan=PLAN)


    @pytest.mark.perf(advisory=True)
    def test_advisory(perf):
        perf.measure(Metric.of("advisory", "cpu"), nap, plan=PLAN, fault="slow")


    @pytest.mark.perf
    @pytest.mark.faulty
    @pytest.mark.parametrize("fault", ["slow", "wrong", "import", "memory", "skip", "crash", "hang"])
    def test_fault(perf, fault):
        perf.measure(Metric.of(fault, "cpu"), nap, plan=PLAN, fault=fault)


    @pytest.mark.perf
    def test_skipped(perf):
        pytest.skip("needs eight GPUs")
"""

DEADLINE_SECONDS = 10
"""How long the hang is waited for; anything else that ranks do here takes a second, or seven on a busy machine."""

PAIRS = ("--perf-replicates=2", "--perf-max-replicates=2")


@pytest.fixture(autouse=True)
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv(TAG, tag := uuid.uuid4().hex)
    pytester.makeini("[pytest]\nmarkers = faulty\ntestpaths = test_stacks.py\n")
    pytester.makepyfile(workloads=WORKLOADS, test_stacks=TESTS)
    yield
    assert tagged(TAG, tag) == []


def upgrade(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    code = "import sys; from pytest_decodegate.cli import main; sys.exit(main())"
    return pytester.run(sys.executable, "-c", code, "upgrade", "--json=answer.json", *arguments)


def told(pytester: pytest.Pytester) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((pytester.path / "answer.json").read_text())
    return answer


def venv_with_our_packages(pytester: pytest.Pytester, *, flashinfer: str) -> None:
    """Another environment that has this one's packages, and says that it has a `flashinfer` besides."""
    pytester.run(sys.executable, "-m", "venv", "--without-pip", "twin")
    (site,) = pytester.path.glob("twin/lib/*/site-packages")
    (site / "ours.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    info = site / f"flashinfer_python-{flashinfer}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: flashinfer-python\nVersion: {flashinfer}\n")


def test_what_may_go_in_ends_with_status_0(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    passed = Run([PASSED], unfinished=None)
    monkeypatch.setattr(command, "measured", lambda *_: passed)
    assert main(["upgrade", "--candidate=this"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "answer: GO: 1 metric"


def test_an_answer_that_cannot_be_kept_is_said_and_is_no_answer(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "measured", lambda *_: Run([PASSED], unfinished=None))
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here, which stands for a disk that fills while measuring")

    assert main(["upgrade", "--candidate=this", f"--json={full}"]) == BAD_INPUT
    said = capsys.readouterr()
    assert said.out.splitlines()[-1] == "answer: GO: 1 metric"
    assert "--json: '/dev/full' cannot be written any more: " in said.err


def test_whatever_the_candidate_does_the_answer_says_so_and_the_base_is_kept(pytester: pytest.Pytester) -> None:
    """All faults in one run, half a minute: a hang that is waited for, and starts after what ended ranks."""
    venv_with_our_packages(pytester, flashinfer="99.9")
    result = upgrade(
        pytester, "--candidate=python=twin,env:CANDIDATE=1", "--", *PAIRS, f"--perf-deadline={DEADLINE_SECONDS}"
    )
    assert result.ret == 1, result.stdout.str()
    found = told(pytester)
    rows = {one["metric"]: one for one in found["metrics"]}
    assert {name: one["verdict"] for name, one in rows.items()} == {
        "same": "PASS",
        "advisory": "REGRESSED",
        "slow": "REGRESSED",
        "wrong": "WRONG_RESULT",
        **dict.fromkeys(("import", "memory", "skip", "crash", "hang"), "ERROR"),
    }
    flashinfer, env = found["stacks"]["differences"]
    assert (flashinfer["field"], flashinfer["new"]) == ("vllm_flashinfer", "99.9")
    assert env == {"field": "env:CANDIDATE", "new": "1"}
    assert rows["memory"]["error"]["cause"] == "out of memory"
    for fault in ("import", "memory", "skip", "crash", "hang"):
        assert rows[fault]["side"] == "candidate"
        assert rows[fault]["base"] == pytest.approx(0.02, rel=1)

    causes = {name: one for one in found["causes"] for name in one["names"]}
    assert {name: one["blocks"] for name, one in causes.items()} == {
        **dict.fromkeys(("slow", "wrong", "import", "skip", "crash", "hang"), True),
        "memory": False,
    }
    assert "No module named 'no_such_module'" in causes["import"]["text"]
    assert "it skips what the base can do: this version has no such path" in causes["skip"]["text"]
    assert "RankDied: rank 0 of candidate-w1-" in causes["crash"]["text"]
    assert "RankHung" in causes["hang"]["text"]
    result.stdout.fnmatch_lines(
        [
            "base:      this",
            "candidate: python=*/twin/bin/python,env:CANDIDATE=1",
            "differs:   vllm_flashinfer: * -> 99.9",
            "advisory: advisory REGRESSED +*",
            "skipped: *::test_skipped: needs eight GPUs",
            "answer: NO-GO: 9 metrics in *",
        ]
    )


def test_more_pairs_are_the_default_than_replicates(pytester: pytest.Pytester) -> None:
    def settings(*arguments: str) -> Settings:
        return read_settings(pytester.parseconfigure(*arguments))

    alone, against = settings(), settings("--perf-base=same", "--perf-candidate=env:A=1,2,env:B=3")
    assert (alone.replicates, alone.max_replicates, alone.base) == (5, 20, None)
    assert (against.replicates, against.max_replicates) == (6, 24)
    assert against.base == against.stack == Stack(env=(("A", "1,2"), ("B", "3")))
    assert settings("--perf-base=this", "--perf-candidate=env:A=1").base == Stack()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give --base, --candidate or both"),
        (("--candidate=nccl=no/such.so",), "--candidate: nccl=no/such.so is no file"),
        (("--base=vllm=latest",), "vllm=latest is no version"),
        (("--candidate=this", "--json=no/folder/x"), "--json: cannot write to 'no/folder/x'"),
    ],
)
def test_bad_input_is_told_before_anything_is_measured(
    pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert main(["upgrade", *arguments]) == BAD_INPUT
    assert message in capsys.readouterr().err


def test_an_option_of_pytest_without_the_two_dashes_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["upgrade", "--candidate=this", "-k", "same"])

    assert left.value.code == BAD_INPUT
    assert "unrecognized arguments: -k" in capsys.readouterr().err


def test_what_pytest_refuses_is_bad_input_and_no_answer(pytester: pytest.Pytester) -> None:
    result = upgrade(pytester, "--candidate=this", "--", "--perf-record")
    assert result.ret == BAD_INPUT
    assert "pytest refused to run" in result.stderr.str()
    assert not (pytester.path / "answer.json").exists()


def test_a_selection_without_perf_tests_proves_nothing(pytester: pytest.Pytester) -> None:
    result = upgrade(pytester, "--candidate=this", "--", "-k", "no_such_test")
    assert result.ret == 2
    result.stdout.fnmatch_lines(["open: no perf test was selected", "answer: NOT PROVEN: 0 metrics in *"])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read: No such file or directory; name the --json of an upgrade"),
        ("{}", "is no answer of `decodegate upgrade --json`: it has no 'schema'"),
        ('{"schema": 3, "metrics": [{"metric": "gemm", "passes": true}]}', "it left nothing open"),
    ],
)
def test_an_earlier_answer_that_cannot_be_gone_on_from_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, said: str
) -> None:
    answer = tmp_path / "up.json"
    if content is not None:
        answer.write_text(content)

    assert main(["upgrade", "--candidate", "env:A=1", "--open", str(answer)]) == BAD_INPUT
    assert said in capsys.readouterr().err
