"""Windows as replicates, with what ran and what was drafted beside them; and starts of the server as replicates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from scripted import TOKENS, ScriptedServer, answer, event, streaming

from pytest_decodegate.baseline.reader import load
from pytest_decodegate.client.floor import Floor
from pytest_decodegate.errors import ServerError
from pytest_decodegate.measure import window_source as source_module
from pytest_decodegate.measure.window import Load
from pytest_decodegate.measure.window_source import WindowSource
from pytest_decodegate.metric import Json
from pytest_decodegate.reference.loaded import ProvenanceReader
from pytest_decodegate.resources.server import ServerUnderTest
from pytest_decodegate.resources.sources import Sources
from pytest_decodegate.serving.server import attach
from pytest_decodegate.workloads.versions import CLIENT_CLOCK, CLOCKS, WORKLOADS

LOAD = Load(1, 8, TOKENS, 2)
SPECULATED = """\
vllm:spec_decode_num_drafts_total{{engine="0"}} {drafts}
vllm:spec_decode_num_draft_tokens_total{{engine="0"}} {drafted}
vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {accepted}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="0"}} {first}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="1"}} {second}
"""


@pytest.fixture
def scripted() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    server.completion = streaming(answer(), pause_s=0.01)
    yield server
    server.close()


WATCHED = ("what the watch has to say",)


def source(scripted: ScriptedServer, **options: Any) -> WindowSource:
    def watch() -> AbstractContextManager[Any]:
        return nullcontext(
            SimpleNamespace(report=lambda: SimpleNamespace(invalid=(), facts={}, notes=WATCHED, grown=()))
        )

    progress: Any = SimpleNamespace(tick=lambda text: None)
    return WindowSource("tpot", attach(scripted.url), LOAD, watch=watch, progress=progress, **options)


def test_windows_of_one_start_are_warmed_up_once(scripted: ScriptedServer) -> None:
    windows = source(scripted)
    assert (len(windows.take(2).replicates), len(windows.take(1).replicates)) == (2, 3)
    assert windows.level == "window"
    assert set(WATCHED) <= set(windows.taken.notes)
    assert windows.taken.facts["server_starts"] == 1
    assert len(scripted.prompts) == 1 + 3 * (1 + LOAD.requests)


def test_a_server_that_was_started_rehearses_once_and_an_attached_one_never(scripted: ScriptedServer) -> None:
    def watch() -> AbstractContextManager[Any]:
        return nullcontext(SimpleNamespace(report=lambda: SimpleNamespace(invalid=(), facts={}, notes=(), grown=())))

    hardware, progress = (SimpleNamespace(watch=watch, watch_attached=watch), SimpleNamespace(tick=lambda text: None))
    settings = SimpleNamespace(warm_up_seconds=9.0)
    sources = Sources(*cast("Any", (hardware, progress, lambda: 9.0, settings)))
    attached = attach(scripted.url)
    sources.rehearse("tpot", attached, LOAD)
    assert scripted.prompts == []
    process: Any = SimpleNamespace(log=lambda *_: "", log_size=lambda: 0)
    ours = replace(attached, process=process)
    for requests in (LOAD.requests, 5):
        sources.rehearse("tpot", ours, replace(LOAD, requests=requests))

    assert len(scripted.prompts) == 1 + 1 + LOAD.requests, "it is warmed up, streams begin, and a window follows"
    sources.rehearse("tpot", replace(ours), LOAD)
    assert len(scripted.prompts) == 2 * (1 + 1 + LOAD.requests), "another start"


def test_a_server_that_answers_wrongly_is_not_timed(scripted: ScriptedServer) -> None:
    taken = source(scripted, wrong="it answers backwards").take(5)
    assert (taken.replicates, taken.wrong) == ((), "it answers backwards")
    assert scripted.prompts == []


def test_what_computes_is_part_of_the_contract(scripted: ScriptedServer) -> None:
    scripted.pages["server_info"] = {"attention_backend": "flashmla", "moe_runner_backend": "marlin"}
    windows = source(scripted)
    windows.take(1)
    contract = windows.taken.contract
    assert contract["backend"] == "attention flashmla, moe marlin"
    assert (contract["clock_version"], contract["workload_version"]) == (CLOCKS[CLIENT_CLOCK], WORKLOADS["serving"])


def test_a_server_that_was_replaced_between_windows_is_no_one_server(scripted: ScriptedServer) -> None:
    scripted.pages["server_info"] = {"attention_backend": "flashmla"}
    windows = source(scripted)
    windows.take(1)
    scripted.pages["server_info"] = {"attention_backend": "triton"}
    windows.take(1)
    assert windows.taken.broken == ("the server runs on attention triton, before it ran on attention flashmla",)


def test_a_server_that_does_not_say_what_computes_leaves_the_contract_alone(scripted: ScriptedServer) -> None:
    windows = source(scripted)
    windows.take(1)
    assert "backend" not in windows.taken.contract


def test_a_floor_that_cannot_be_measured_costs_no_window(
    scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(concurrency: int) -> None:
        raise ServerError(f"the paced server did not start for {concurrency} stream")

    monkeypatch.setattr(source_module, "client_floor", failing)
    windows = source(scripted)
    assert len(windows.take(1).replicates) == 1
    unmeasured = "not measured: the paced server did not start for 1 stream"
    assert windows.taken.facts["client_floor"] == unmeasured
    assert windows.taken.notes[-1 - len(WATCHED)] == f"the client's own floor, subtracted from nothing: {unmeasured}"


@pytest.mark.parametrize(("error", "is_noted"), [(0.0049, False), (-0.0051, True)])
def test_the_floor_is_a_fact_of_each_window_and_a_note_where_it_matters(
    scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch, error: float, is_noted: bool
) -> None:
    floor = Floor(1, error, 1e-4)
    monkeypatch.setattr(source_module, "client_floor", lambda _: floor)
    windows = source(scripted)
    (replicate,) = windows.take(1).replicates
    assert replicate.facts["client_error"] == error
    assert (f"the client's own floor, subtracted from nothing: {floor}" in windows.taken.notes) is is_noted


def test_speculative_decoding_is_reported_from_the_servers_counters(scripted: ScriptedServer) -> None:
    def page() -> str:
        drafts = 10 * len(scripted.prompts)
        return SPECULATED.format(
            drafts=drafts, drafted=2 * drafts, accepted=0.9 * drafts, first=0.7 * drafts, second=0.2 * drafts
        )

    scripted.metrics = page
    windows = source(scripted)
    (replicate,) = windows.take(1).replicates
    seen = replicate.facts["speculation"]
    assert isinstance(seen, dict)
    assert (seen["length"], seen["rate"]) == pytest.approx((1.9, 0.45))
    assert seen["per_position"] == pytest.approx([0.7, 0.2])
    assert windows.taken.notes[0] == (
        "speculative decoding: acceptance length 1.90, rate 45%, 30 drafts of 60 tokens a window, accepted by "
        "position: 70% 20%"
    )


def test_without_counters_of_the_server_a_reader_is_told_what_is_not_checked(scripted: ScriptedServer) -> None:
    windows = source(scripted)
    windows.take(2)
    uncounted = "TPOT, the number of requests, the number of tokens, cache hits, preemptions, waiting in its queue"
    unsaid = (
        "tensor-parallel-size, pipeline-parallel-size, data-parallel-size, dtype, quantization, kv-cache-dtype, "
        "block-size, enable-prefix-caching, enable-chunked-prefill, max-num-seqs, max-num-batched-tokens, "
        "enforce-eager, speculative-method, draft-tokens"
    )
    assert windows.taken.notes[:3] == (
        f"not checked by the server's own count: {uncounted} (the server has no /metrics of vLLM)",
        "kernels compiled inside a window go unseen: the log of an attached server is not ours to read",
        f"not seen: {unsaid}: no page of the attached server says them, so nobody compares them",
    )


def test_answers_that_begin_with_a_burst_are_noted(scripted: ScriptedServer) -> None:
    first = event({"choices": [{"text": "abc", "token_ids": [1, 2, 3], "finish_reason": None}]})
    scripted.completion = streaming([first, *answer()[3:]], pause_s=0.03)
    windows = source(scripted)
    (replicate,) = windows.take(1).replicates
    assert replicate.facts["first_arrival_tokens"] == 3
    assert windows.taken.notes[0].startswith("the first arrival of an answer held 3 tokens: TPOT is of those after it")


@pytest.mark.parametrize(
    ("ran", "is_monitored"),
    [({"vllm": "0.20.0"}, False), ({"vllm": "0.26.0", "jit_monitor": True}, True)],
)
def test_a_vllm_that_does_not_report_late_compilation_is_named(ran: dict[str, Json], is_monitored: bool) -> None:
    launched: Any = SimpleNamespace(attached=False, stand_in=False)
    said = list(source_module._unmonitored(launched, ran))
    assert [note.partition(": ")[2] for note in said] == (
        [] if is_monitored else ["this vLLM does not report them (0.26 and later do)"]
    )


def test_one_of_several_served_models_is_chosen_by_name(pytester: pytest.Pytester, scripted: ScriptedServer) -> None:
    scripted.models = ["kimi", "kimi-with-adapter"]
    pytester.makeini("[pytest]\n")
    pytester.makepyfile("""
        def test_model(server):
            assert server.endpoint.model == "kimi-with-adapter"
    """)
    attached = f"--perf-server={scripted.url}"
    pytester.runpytest_inprocess(attached, "--perf-server-model=kimi-with-adapter").assert_outcomes(passed=1)
    refused = pytester.runpytest_inprocess(attached)
    refused.assert_outcomes(errors=1)
    refused.stdout.fnmatch_lines(["*serves 'kimi', 'kimi-with-adapter'; say which one with --perf-server-model NAME"])


def test_restarts_make_servers_the_replicates(
    pytester: pytest.Pytester, scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    def open_server(_: ServerUnderTest) -> Any:
        started.append(scripted.url)
        return attach(scripted.url)

    monkeypatch.setattr(ServerUnderTest, "_open", open_server)
    monkeypatch.setattr(ProvenanceReader, "_of_ranks", object())  # the real one starts a gang
    pytester.makeini("[pytest]\n")
    pytester.makepyfile("""
        import pytest
        from pytest_decodegate.metric import Metric
        from pytest_decodegate.measure.window import Load

        def load_of(requests):
            return Load(1, 8, 4, requests)

        @pytest.mark.perf(metric="tpot[n={requests}]", stand_in="tpot[n={requests}]", tolerance="90%", load=load_of)
        @pytest.mark.parametrize("requests", [5, 6])
        def test_tpot(perf, server, requests):
            perf.measure_tpot(Metric.of(f"tpot[n={requests}]", "serving"), server, load_of(requests))
    """)
    run = ("-v", "-m", "perf", "--perf-server-restarts=3")
    servers = pytester.runpytest_inprocess(*run, "--perf-record")
    servers.assert_outcomes(passed=2)
    servers.stdout.fnmatch_lines(
        [
            "perf: tpot[[]n=5[]], tpot[[]n=6[]]: on the same 3 starts of the server",
            "tpot[[]n=5[]] *NO_BASELINE, recorded *3 x server",
            "tpot[[]n=6[]] *NO_BASELINE, recorded *3 x server",
        ]
    )
    assert len(started) == 3, "each start serves both"
    (path,) = (pytester.path / "baselines").glob("*/*.json")
    stored = load(path).metrics
    for (session,) in (stored["tpot[n=5]"].sessions, stored["tpot[n=6]"].sessions):
        assert (session.level, len(session.replicates), session.telemetry["server_starts"]) == ("server", 3, 3)

    windows = pytester.runpytest_inprocess("-v", "-m", "perf", "--perf-replicates=2")
    windows.stdout.fnmatch_lines(
        [
            "*- level: 'server' in the baseline, 'window' now",
            "*next: measure it as it was recorded, with --perf-server-restarts; or record it anew: *",
            "tpot[[]n=5[]] *2 x window",
        ]
    )
