"""What servers are told in whole runs: flags of --perf-launch and of stacks, stored, compared, and read back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted import ScriptedServer, answer, streaming
from scripted_host import host, run_on

from pytest_decodegate.gate.verdict import BY_STATISTICS
from pytest_decodegate.process.compile_caches import CompileCaches
from pytest_decodegate.reference.servers_in_turn import ServersInTurn
from pytest_decodegate.resources.hardware import Hardware
from pytest_decodegate.serving import home
from pytest_decodegate.serving.flags import given_flags
from pytest_decodegate.serving.server import ATTACHED_TOKEN_IDS, Server, ServerOptions, Starting

RUN = ("-m", "perf", "--perf-replicates=2", "--perf-max-replicates=2", "-p", "no:cacheprovider")
TESTS = """
    import pytest
    from pytest_decodegate.metric import Metric
    from pytest_decodegate.measure.window import Load


    def work():
        pass


    @pytest.mark.perf(metric="tpot", tolerance="90%")
    def test_tpot(perf, server):
        perf.measure_tpot(Metric.of("tpot", "serving"), server, Load(1, 8, 4, 5, cross_check=100.0))


    @pytest.mark.perf(metric="kernel", tolerance="25%")
    def test_kernel(perf):
        perf.measure(Metric.of("kernel", "kernel"), work)
"""


class Process:
    """Of a server that logs what vLLM's parser would log of its arguments, unless it is deaf to them."""

    pid = 1

    def __init__(self, options: ServerOptions, deaf: Callable[[str], bool]) -> None:
        flags = {name: value for name, value in given_flags(options.model.arguments).items() if not deaf(name)}
        parsed = {name.replace("-", "_"): self._parsed(value) for name, value in flags.items()}
        self._log = f"(APIServer pid=1) INFO [api_utils.py:286] non-default args: {parsed}\n"

    def _parsed(self, value: str | bool) -> Any:
        return int(value) if isinstance(value, str) and value.isdecimal() else value

    def log(self, start: int = 0, end: int | None = None) -> str:
        return self._log[start:end]

    def log_size(self) -> int:
        return len(self._log)

    def check(self, doing: str) -> None:
        """It lives."""

    def ended_within(self, seconds: float) -> bool:
        return False

    def tail(self) -> str:
        return "the end of its log"

    def stop(self) -> None:
        """It is the fixture's to stop."""


class Begun(Starting):
    """A start that is over at once."""

    def is_healthy(self, on_wait: object = None) -> bool:
        return True

    def healthy(self) -> Server:
        facts = self.options.model.facts
        return self.finish(Server(self.endpoint, ATTACHED_TOKEN_IDS, self.process, facts, start_seconds=1.0))


@pytest.fixture
def deaf() -> set[str]:
    """Names of flags that no server hears."""
    return set()


@pytest.fixture(autouse=True)
def launched(monkeypatch: pytest.MonkeyPatch, pytester: pytest.Pytester, deaf: set[str]) -> Iterator[list[Path]]:
    """Models that were launched, on a host of one GPU."""
    monkeypatch.setenv("COLUMNS", "400")
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(TESTS)
    run_on(monkeypatch, host(1))
    scripted = ScriptedServer()
    scripted.completion = streaming(answer(), pause_s=0.01)
    models: list[Path] = []

    def begin(options: ServerOptions) -> Starting:
        models.append(options.model.folder)
        process: Any = Process(options, deaf.__contains__)
        return Begun(options, scripted.endpoint, process, CompileCaches({}), 0.0)

    monkeypatch.setattr(home, "begin", begin)
    monkeypatch.setattr(Hardware, "watch", Hardware.watch_attached)  # the servers are threads of this busy process
    yield models
    scripted.close()


def told(pytester: pytest.Pytester, *options: str) -> tuple[pytest.RunResult, dict[str, dict[str, Any]]]:
    """A run, and the lines of its report: verdicts by metric, all else by its kind.

    Two replicates on shared cores may leave a verdict open: where it matters is whether it was judged.
    """
    result = pytester.runpytest_inprocess(*RUN, *options, "--perf-report=report")
    events = map(json.loads, (pytester.path / "report/results.jsonl").read_text().splitlines())
    return result, {event.get("event") or event["metric"]: event for event in events}


def test_a_flag_that_is_declared_is_compared_with_a_recording_of_another_value(pytester: pytest.Pytester) -> None:
    """However it is given; without being declared it confounds, and ranks do not feel it."""
    old = "--perf-launch=org/kimi -tp 1 --max-num-seqs 64"
    pytester.runpytest_inprocess(*RUN, old, "--perf-record").assert_outcomes(passed=2)
    _, same = told(pytester, "--perf-launch=org/kimi --max_num_seqs=64 -tp 1", "-k", "tpot")
    assert same["tpot"]["verdict"] in BY_STATISTICS

    new = "--perf-launch=org/kimi -tp 1 --max-num-seqs 32"
    result, changed = told(pytester, new)
    assert (changed["tpot"]["verdict"], changed["kernel"]["verdict"]) == ("CONFOUNDED", "PASS")
    result.stdout.fnmatch_lines(["*flag:max-num-seqs: 64 -> 32", "*--perf-change flag:max-num-seqs*"])
    for way in ([new], ["--perf-launch=org/kimi", "--perf-candidate=tp=1,flag:--max-num-seqs=32"]):
        _, declared = told(pytester, *way, "--perf-change=flag:max-num-seqs", "-k", "tpot")
        assert declared["tpot"]["verdict"] in BY_STATISTICS


@pytest.mark.parametrize("cards", [1, 2], ids=["in turn", "beside each other"])
def test_two_stacks_differ_in_a_flag_that_servers_alone_are_told(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, cards: int
) -> None:
    run_on(monkeypatch, host(cards))
    sides = ("--perf-base=flag:--max-num-seqs=64", "--perf-candidate=flag:--max-num-seqs=32,flag:--enforce-eager")
    result, found = told(pytester, "--perf-launch=org/kimi", *sides)
    assert result.parseoutcomes()["skipped"] == 1
    result.stdout.fnmatch_lines(["*the two stacks differ only in what servers are told (flag:--max-num-seqs=64, flag*"])
    stacks = found["stacks"]
    assert found["tpot"]["verdict"] in BY_STATISTICS
    assert stacks["differences"] == [
        {"field": "flag:enforce-eager", "new": True},
        {"field": "flag:max-num-seqs", "base": "64", "new": "32"},
    ]
    assert stacks["undeclared"] == []


def test_two_models_are_compared_where_each_stack_names_one(pytester: pytest.Pytester, launched: list[Path]) -> None:
    sides = ("--perf-base=model=org/kimi", "--perf-candidate=model=org/kimi-int4")
    _, found = told(pytester, "--perf-launch=-tp 1", *sides, "-k", "tpot")
    assert found["stacks"]["differences"] == [{"field": "model", "base": "org/kimi", "new": "org/kimi-int4"}]
    assert found["tpot"]["verdict"] in BY_STATISTICS
    assert {str(model) for model in launched} == {"org/kimi", "org/kimi-int4"}


@pytest.mark.parametrize("cards", [1, 2], ids=["in turn", "beside each other"])
def test_a_flag_that_did_not_take_effect_is_an_error(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, deaf: set[str], cards: int
) -> None:
    """Without the flag in the log a server runs vLLM's default; what both run alike is no change."""
    run_on(monkeypatch, host(cards))
    deaf.add("max-num-seqs")
    sides = ("--perf-base=flag:--max-num-seqs=64", "--perf-candidate=flag:--max-num-seqs=32")
    result = pytester.runpytest_inprocess(*RUN, "--perf-launch=org/kimi", *sides, "-k", "tpot")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["*flag:--max-num-seqs changes nothing: it is vLLM's default on the servers of both stacks*"]
    )


@pytest.mark.parametrize("base", [(), ("--perf-base=same",)], ids=["stored", "two stacks"])
def test_a_run_without_a_server_says_nothing_of_what_servers_are_told(
    pytester: pytest.Pytester, base: tuple[str, ...]
) -> None:
    told = ("--perf-launch=org/kimi", "--perf-candidate=flag:--max-num-seqs=32", *base)
    result = pytester.runpytest_inprocess(*RUN, *told, "-k", "kernel", *(() if base else ("--perf-record=all",)))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["*flag:--max-num-seqs=32: only servers are told that, and none was measured, so what it does was not seen*"]
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--perf-launch=m --max-num-seqs 8", "--perf-candidate=flag:--max-num-seqs=32"),
            "*--max-num-seqs is given by --perf-launch and by flag:--max-num-seqs=32; leave it out in --perf-launch",
        ),
        (("--perf-launch=m -tp 1", "--perf-candidate=tp=1"), "*--tensor-parallel-size is given by --perf-launch*"),
        (("--perf-launch=m", "--perf-candidate=model=n"), "*model=n: --perf-launch names a model, too*"),
        (("--perf-launch=--seed 3",), "*--perf-launch: '--seed 3' names no model*"),
        (("--perf-pin=moe=marlin", "--perf-candidate=flag:--moe-backend=triton"), "*is given by --perf-pin moe and*"),
        (("--perf-server=http://a:1", "--perf-candidate=tp=1"), "*--perf-server http://a:1 runs already*"),
        (("--perf-base=model=m", "--perf-candidate=tp=1"), "*model= is given of one stack alone*"),
        (("--perf-base=tp=2", "--perf-candidate=tp=1"), "*tp= differs, and the suite's own rank-slice is another*"),
        (
            ("--perf-candidate=tp=2",),
            "*a server of it wants 2 GPUs (tp= and other parallel sizes), and this host has 1",
        ),
        (("--perf-base=this", "--perf-candidate=vllm=9.9"), "*--perf-candidate: vllm=9.9: * has *"),
    ],
)
def test_what_no_server_can_be_given_is_refused_before_anything_starts(
    pytester: pytest.Pytester, launched: list[Path], options: tuple[str, ...], message: str
) -> None:
    result = pytester.runpytest_inprocess(*RUN, *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    pytest.LineMatcher([*result.outlines, *result.errlines]).fnmatch_lines([message])
    assert launched == []


def test_a_run_that_is_stopped_reports_what_its_whole_pairs_say(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve servers were started in 14 minutes on an H200, and a signal left "nothing was measured"."""
    whole_pair = ServersInTurn._pair

    def pair(servers: ServersInTurn) -> None:
        if servers._pairs == 2:
            raise KeyboardInterrupt
        whole_pair(servers)

    monkeypatch.setattr(ServersInTurn, "_pair", pair)
    stacks = ("--perf-base=flag:--max-num-seqs=64", "--perf-candidate=flag:--max-num-seqs=32")
    options = (*RUN, *stacks, "--perf-launch=org/kimi -tp 1", "-k", "tpot", "--perf-report=report")
    result = pytester.runpytest_inprocess(*options, no_reraise_ctrlc=True)
    result.stdout.fnmatch_lines(
        ["pair 2, base and candidate: tpot *", "answer: NOT PROVEN*", "*! KeyboardInterrupt !*"]
    )
    events = map(json.loads, (pytester.path / "report/results.jsonl").read_text().splitlines())
    (tpot,) = (event for event in events if event.get("metric") == "tpot")
    assert tpot["verdict"] == "INCONCLUSIVE"
    assert tpot["reasons"][0]["text"] == "the run was stopped after 2 pairs"
    assert tpot["replicates"] == 2


def test_a_budget_for_one_pair_leaves_it_open_in_every_report(pytester: pytest.Pytester) -> None:
    """What it showed is told, and no interval: of one pair no noise is known."""
    stacks = ("--perf-base=flag:--max-num-seqs=64", "--perf-candidate=flag:--max-num-seqs=32")
    result, found = told(pytester, *stacks, "--perf-launch=org/kimi -tp 1", "-k", "tpot", "--perf-budget=0.001s")
    tpot = found["tpot"]
    assert (tpot["verdict"], tpot["replicates"], tpot["lo"]) == ("INCONCLUSIVE", 1, None)
    assert tpot["change"] == pytest.approx(tpot["measured"] / tpot["base"] - 1)
    result.stdout.fnmatch_lines(
        [
            "open: tpot * %: INCONCLUSIVE: 1 pair measured, 3 are the least that prove anything",
            "next: * --perf-budget=1m",
            "answer: NOT PROVEN: 1 metric*",
        ]
    )
    report = (pytester.path / "report/report.md").read_text()
    assert "1 pair measured, 3 are the least that prove anything" in report
