"""Two servers that run already: measured in turn over real HTTP, and known by what they say of themselves."""

from __future__ import annotations

import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterator

import pytest
from aiohttp import web
from scripted import ScriptedServer, answer, refusing, streaming

from pytest_decodegate.errors import BadInput
from pytest_decodegate.gate.pairs import Contrast
from pytest_decodegate.machine.provenance import parse_declared
from pytest_decodegate.measure.paired_source import StackFailed
from pytest_decodegate.reference.attached import NOT_RESTARTED, AttachedServers
from pytest_decodegate.serving.server import attach
from pytest_decodegate.settings.stack import Stack, check_servers, declared, parse_stack

TESTS = """
    import pytest
    from pytest_decodegate.metric import Metric
    from pytest_decodegate.measure.window import Load
    from my_workloads import never


    @pytest.mark.perf
    @pytest.mark.parametrize(("name", "tokens"), [("same", 12), ("slow", 11), ("dead", 10)])
    def test_tpot(perf, server, name, tokens):
        perf.measure_tpot(Metric.of(name, "cpu", tolerance=0.95), server, Load(1, 4, tokens, 3))


    @pytest.mark.perf
    def test_kernel(perf):
        perf.measure(Metric.of("kernel", "cpu"), never)
"""

STEP_SECONDS = 0.004
SAME, SLOW, DEAD = 12, 11, 10
"""Tokens of the requests that both answer alike, that the candidate answers slowly, and that kill it in time."""

ASKED_OF_A_WINDOW = 5
"""Requests: one to warm up, one as a ramp, and three that are measured."""

PAIRS = ("--perf-replicates=4", "--perf-max-replicates=4")


def paced(server: ScriptedServer, log: list[tuple[str, int]], **faults: float) -> ScriptedServer:
    """`server`, at STEP_SECONDS a token; one with faults dies in its second window of DEAD. slow: times so long.

    log: of all servers, their URL and the tokens asked for.
    """

    async def complete(request: web.Request) -> web.StreamResponse:
        tokens = (await request.json())["max_tokens"]
        log.append((server.url, tokens))
        if faults and log.count((server.url, DEAD)) > ASKED_OF_A_WINDOW:
            return await refusing(503, "the engine is dead")(request)

        pace_s = STEP_SECONDS * (faults.get("slow", 1.0) if tokens == SLOW else 1.0)
        pieces = answer(tokens)
        timed, end = pieces[: tokens - 1], b"".join(pieces[tokens - 1 :])  # no pause after the last token
        return await streaming([*timed, end], pause_s=pace_s)(request)

    server.completion = complete
    server.key = "sk-1"
    return server


@pytest.fixture
def pair() -> Iterator[tuple[ScriptedServer, ScriptedServer]]:
    """A base and a candidate of two versions of vLLM."""
    servers = ScriptedServer(), ScriptedServer()
    for server, version in zip(servers, ("0.25.1", "0.26.0"), strict=True):
        server.owner, server.version = "vllm", version

    yield servers
    for server in servers:
        server.close()


def test_two_servers_are_measured_in_turn(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, pair: tuple[ScriptedServer, ScriptedServer]
) -> None:
    """One that is alike, one that is slower (measured again, to confirm it) and one that dies, in one run: 9 s."""
    log: list[tuple[str, int]] = []
    base, candidate = paced(pair[0], log), paced(pair[1], log, slow=4.0)
    monkeypatch.setenv("MY_KEY", "sk-1")
    pytester.makeini("[pytest]\ntestpaths = test_stacks.py\n")
    pytester.makepyfile(my_workloads="def never():\n    raise AssertionError", test_stacks=TESTS)
    code = "import sys; from pytest_decodegate.cli import main; sys.exit(main())"
    sides = (f"--base=server={base.url}", f"--candidate=server={candidate.url}")
    result = pytester.run(
        *(sys.executable, "-c", code, "upgrade", *sides, "--json=answer.json", "--"),
        *(*PAIRS, "--perf-server-key-env=MY_KEY"),
    )
    assert result.ret == 1, result.stdout.str()
    found = json.loads((pytester.path / "answer.json").read_text())
    rows = {row["metric"]: row for row in found["metrics"]}
    assert {name: (row["verdict"], row.get("level")) for name, row in rows.items()} == {
        "same": ("PASS", "window"),
        "slow": ("REGRESSED", "window"),
        "dead": ("ERROR", None),
    }
    assert found["stacks"]["differences"] == [{"field": "vllm", "base": "0.25.1", "new": "0.26.0"}]
    assert found["stacks"]["undeclared"] == []
    notes = [note["text"] for note in rows["same"]["notes"]]
    assert notes[0].startswith("4 pairs of windows in ")
    assert NOT_RESTARTED in notes
    assert {tuple(cause["names"]): cause["blocks"] for cause in found["causes"]} == {("slow",): True, ("dead",): True}
    assert rows["dead"]["side"] == "candidate"
    assert "HTTP 503" in rows["dead"]["error"]["text"]
    assert rows["dead"]["base"] > STEP_SECONDS / 2
    result.stdout.fnmatch_lines(["skipped: *test_kernel: both stacks are attached servers*", "answer: NO-GO: *"])
    assert "sk-1" not in result.stdout.str()
    turns = [url for url, _ in itertools.groupby(url for url, tokens in log if tokens == SAME)]
    assert turns == [candidate.url, base.url, candidate.url, base.url, candidate.url]
    assert Counter(log)[candidate.url, SAME] == Counter(log)[base.url, SAME] == 4 * ASKED_OF_A_WINDOW


def servers(pair: tuple[ScriptedServer, ScriptedServer]) -> AttachedServers:
    return AttachedServers(attach, pair[0].url, pair[1].url)


def stacks(pair: tuple[ScriptedServer, ScriptedServer]) -> tuple[Stack, Stack]:
    return Stack(server=pair[0].url), Stack(server=pair[1].url)


def test_settings_that_differ_confound_unless_they_are_the_change(pair: tuple[ScriptedServer, ScriptedServer]) -> None:
    page = 'vllm:cache_config_info{enable_prefix_caching="False",num_gpu_blocks="7",cache_dtype="%s"} 1.0'
    pair[0].metrics, pair[1].metrics = (lambda: page % "auto"), (lambda: page % "fp8")
    pair[1].pages["server_info"] = {"tp_size": 8}  # what one side alone says
    of_versions = declared(*stacks(pair))
    contrast = servers(pair).contrast(of_versions)
    assert list(map(str, contrast.differences)) == ["vllm: 0.25.1 -> 0.26.0", "flag:kv-cache-dtype: auto -> fp8"]
    assert list(map(str, contrast.undeclared)) == ["flag:kv-cache-dtype: auto -> fp8"]
    assert servers(pair).contrast(of_versions | {"flag:kv-cache-dtype"}).undeclared == ()
    assert servers(pair).notes(contrast) == (NOT_RESTARTED,)


def test_two_models_are_refused_before_anything_is_measured(pair: tuple[ScriptedServer, ScriptedServer]) -> None:
    pair[0].models, pair[1].models = ["kimi"], ["kimi-k2.5"]
    both = "the base serves 'kimi', the candidate 'kimi-k2"
    with pytest.raises(BadInput, match=f"{both}.*: two models are not compared; .* --perf-change model"):
        servers(pair).contrast(declared(*stacks(pair)))

    assert parse_declared("model") == {"model"}  # what the message advises is not refused


def test_two_names_of_one_model_are_compared_where_that_is_declared(
    pair: tuple[ScriptedServer, ScriptedServer],
) -> None:
    pair[0].models, pair[1].models = ["kimi"], ["kimi-k2.5"]
    both = servers(pair)
    contrast = both.contrast(declared(*stacks(pair)) | {"model"})
    assert "model: kimi -> kimi-k2.5" in map(str, contrast.differences)
    assert contrast.undeclared == ()
    facts = [both.server(side).given_facts for side in ("base", "candidate")]
    assert facts[0] == facts[1] == {"model": "kimi = kimi-k2.5", "max_model_len": 512}
    assert both.server("candidate").endpoint.model == "kimi-k2.5"


def test_another_engine_is_another_version_and_no_confounder(pair: tuple[ScriptedServer, ScriptedServer]) -> None:
    pair[1].owner, pair[1].version = "sglang", None
    contrast = servers(pair).contrast(declared(*stacks(pair)))
    assert list(map(str, contrast.differences)) == ["vllm: 0.25.1 -> absent", "sglang: absent -> unknown"]
    assert contrast.undeclared == ()


def test_a_change_that_no_page_shows_is_noted(pair: tuple[ScriptedServer, ScriptedServer]) -> None:
    pair[1].version = "0.25.1"
    assert servers(pair).contrast(frozenset()) == Contrast()
    assert servers(pair).notes(Contrast())[1].startswith("both servers say the same of themselves (vllm 0.25.1), so")
    alone = servers((pair[0], pair[0]))
    assert alone.notes(alone.contrast(frozenset())) == (NOT_RESTARTED, "one server was measured against itself")


@pytest.mark.parametrize("side", ["base", "candidate"])
def test_a_server_that_does_not_answer_is_named_by_its_side(
    pair: tuple[ScriptedServer, ScriptedServer], side: str
) -> None:
    pair[0 if side == "base" else 1].key = "sk-2"
    with pytest.raises(StackFailed, match=f"the {side} failed: BadInput: .* wants an API key") as raised:
        servers(pair).contrast(frozenset())

    assert raised.value.side == side


def test_what_is_attached_is_not_asked_for_again(pair: tuple[ScriptedServer, ScriptedServer]) -> None:
    both = servers(pair)
    assert both.server("base") is both.server("base") is not both.server("candidate")


def test_ranks_are_of_neither_stack(pair: tuple[ScriptedServer, ScriptedServer]) -> None:
    with pytest.raises(pytest.skip.Exception, match="both stacks are attached servers, of which only TPOT is measured"):
        servers(pair).skip_ranks()


A, B = Stack(server="http://a:8000"), Stack(server="http://b:8000")


@pytest.mark.parametrize(
    ("base", "candidate", "launches", "message"),
    [
        (Stack(), B, False, "base this, candidate server=http://b:8000: only one of them .* server=URL for both"),
        (A, Stack(python="/p"), False, "only one of them is an attached server"),
        (A, Stack(server="http://a:8000/v1/"), False, "would be measured against itself; .* --perf-base same"),
        (A, B, True, "server=URL and --perf-launch: give one"),
        (A, Stack(server="b:8000"), False, "'b:8000' is not usable; write for example"),
        (A, Stack(server="http://me:pw@b"), False, "holds a user or a password"),
        (Stack(server="http://me:pw@b"), Stack(), False, "holds a user or a password"),
    ],
)
def test_what_is_no_pair_of_servers_is_refused(base: Stack, candidate: Stack, launches: bool, message: str) -> None:
    with pytest.raises(BadInput, match=message) as raised:
        check_servers(base, candidate, same=False, launches=launches)

    assert "pw" not in str(raised.value)


def test_pairs_of_servers_and_pairs_of_none_are_accepted() -> None:
    check_servers(A, B, same=False, launches=False)
    check_servers(A, A, same=True, launches=False)
    check_servers(Stack(), Stack(), same=True, launches=True)


def test_a_server_is_a_whole_stack() -> None:
    stack = parse_stack(["server=http://a:8000"], "--base")
    assert (stack, str(stack)) == (A, "server=http://a:8000")
    assert declared(A, A) == frozenset()
    with pytest.raises(BadInput, match="server=http://a:8000 runs already, with a stack of its own; leave out env:B"):
        parse_stack(["server=http://a:8000,env:B=1"], "--base")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--perf-candidate=server=http://a:1",),
            "--perf-candidate: server=http://a:1 is for two stacks; *--perf-server URL",
        ),
        (
            ("--perf-candidate=server=http://a:1", "--perf-base=this"),
            "base this, candidate server=http://a:1: only one*",
        ),
        (("--perf-candidate=server=http://a:1", "--perf-base=server=http://a:1"), "*measured against itself*"),
    ],
)
def test_pytest_refuses_what_cannot_be_measured(
    pytester: pytest.Pytester, options: tuple[str, ...], message: str
) -> None:
    result = pytester.runpytest_inprocess("-m", "perf", *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {message}"])
