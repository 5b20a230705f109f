"""Answers are judged before speed: recorded, gated, and a faster server that answers otherwise is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from scripted import ScriptedServer, answer, greedy, streaming
from stored import baseline

from pytest_decodegate.baseline.schema import Session, StoredMetric
from pytest_decodegate.compare.pairs import Compared, compare_baselines
from pytest_decodegate.compare.standing import Terms
from pytest_decodegate.gate.evidence.quality import to_json
from pytest_decodegate.metric import Metric, Replicate
from pytest_decodegate.report.comparison_text import Terminal, text

RUN = ("-m", "perf", "--perf-replicates=2", "--perf-max-replicates=2")
TESTS = """
    import pytest
    from pytest_decodegate.metric import Metric
    from pytest_decodegate.measure.window import Load

    @pytest.mark.perf
    def test_quality(perf, server):
        perf.measure_quality(server)

    @pytest.mark.perf(tolerance="90%")
    def test_tpot(perf, server):
        perf.measure_tpot(Metric.of("tpot", "serving"), server, Load(1, 8, 4, 5))
"""


@pytest.fixture
def scripted(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    monkeypatch.setenv("COLUMNS", "400")  # long lines stay whole
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(TESTS)
    server = ScriptedServer()
    server.completion, server.version = streaming(answer(), pause_s=0.02), "0.26.0"
    server.greedy = lambda body: greedy(body["prompt"][:8])
    yield server
    server.close()


def reversed_answer(body: dict[str, Any]) -> dict[str, Any]:
    return greedy(body["prompt"][:8][::-1])


def test_a_server_that_answers_otherwise_is_wrong_whatever_its_speed(
    pytester: pytest.Pytester, scripted: ScriptedServer
) -> None:
    run = (*RUN, f"--perf-server={scripted.url}")
    pytester.runpytest_inprocess(*run, "--perf-record").assert_outcomes(passed=2)
    gated = pytester.runpytest_inprocess(*run)
    gated.assert_outcomes(passed=2)
    gated.stdout.fnmatch_lines(
        [
            "quality: PASS: answers like the baseline, as far as that agrees with itself",
            "note: quality: 100.0 % of the tokens agree with the baseline, 100.0 % among its own passes;*: none",
        ]
    )

    # An upgrade that is declared, is faster, and answers backwards.
    scripted.greedy, scripted.version = reversed_answer, "0.33.0"
    scripted.completion = streaming(answer(), pause_s=0.01)
    upgraded = pytester.runpytest_inprocess(*run, "--perf-change=vllm", "--perf-report=report")
    upgraded.assert_outcomes(failed=2)
    upgraded.stdout.fnmatch_lines(
        [
            "quality: WRONG_RESULT: the numbers are wrong, so the speed was not looked at",
            "*- prompt 1 turns at token 1, where the baseline was sure: *",
            "*next: to accept the new answers of a new stack, record it without --perf-change*",
            "tpot: WRONG_RESULT: *",
            "*- its answers are wrong, so its speed is not looked at: prompt 1 turns at token 1*",
        ]
    )
    lines = [json.loads(line) for line in (pytester.path / "report/results.jsonl").read_text().splitlines()]
    results = [line for line in lines if "event" not in line]
    assert [(line["verdict"], line["recorded"]) for line in results] == [("WRONG_RESULT", None)] * 2

    # The TPOT test alone asks for the answers itself; recording all records nothing wrong.
    alone = pytester.runpytest_inprocess(*run, "--perf-change=vllm", "--perf-record=all", "-k", "tpot")
    alone.stdout.fnmatch_lines(["*- its answers are wrong, so its speed is not looked at: *"])

    # Somebody looked at the new answers and takes them for right.
    pytester.runpytest_inprocess(*run, "--perf-record=all", "-k", "quality").assert_outcomes(passed=1)
    pytester.runpytest_inprocess(*run, "-k", "quality").assert_outcomes(passed=1)


def test_own_prompts_are_another_measurement(pytester: pytest.Pytester, scripted: ScriptedServer) -> None:
    run = (*RUN, f"--perf-server={scripted.url}", "-k", "quality")
    (pytester.path / "prompts.jsonl").write_text('{"prompt": "Is this mine?"}\n')
    pytester.runpytest_inprocess(*run, "--perf-record").assert_outcomes(passed=1)
    own = pytester.runpytest_inprocess(*run, "--perf-quality-prompts=prompts.jsonl")
    own.assert_outcomes(failed=1)
    own.stdout.fnmatch_lines(["quality: CONFOUNDED: *", "*- contract.prompt_count: 16 in the baseline, 1 now"])


def answers(*tokens: str, session: str = "s1") -> StoredMetric:
    """A stored metric of one pass per text, each the answer to one prompt."""
    passes = [[[{token: -0.1, "other": -3.1} for token in one]] for one in tokens]
    replicates = tuple(Replicate((100.0,), {"answers": to_json(one)}) for one in passes)
    metric = Metric.of("quality", "quality", unit="%")
    return StoredMetric(metric, (Session(session, "2026-01-01T00:00:00+00:00", "window", replicates),))


@pytest.mark.parametrize(
    ("new", "said"),
    [
        (answers("abc", "abc", session="s2"), "100.0 % of the tokens agree with the baseline"),
        (answers("abd", "abd"), "prompt 1 turns at token 3, where the baseline was sure"),
        (
            StoredMetric(
                answers("a").metric, (Session("s1", "2026-01-01T00:00:00+00:00", "window", (Replicate((1.0,)),)),)
            ),
            "holds no answers",
        ),
    ],
    ids=["same", "other", "none"],
)
def test_stored_answers_are_compared_as_answers(new: StoredMetric, said: str) -> None:
    compared = compare_baselines(baseline(answers("abc", "abc")), baseline(new), Terms(frozenset(), frozenset()))
    assert said in text(Compared((compared,), ()), Terminal())
