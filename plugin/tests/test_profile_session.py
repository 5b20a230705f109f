"""`test_profile`: a server of its own, the table in the report, and a failure where the counts are wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import traces
import wheels
from aiohttp import web
from scripted import ScriptedServer, answer, streaming
from traces import Invented

from pytest_decodegate.errors import ServerError
from pytest_decodegate.resources.server import ServerUnderTest
from pytest_decodegate.serving.server import Server, attach

TEST = """
    import pytest

    @pytest.mark.perf
    def test_profile(perf, monkeypatch):
        monkeypatch.setattr(perf, "needs_gpu", lambda what: None)
        assert perf.profile(1).steps == 4
        print("profiled")
"""

TWICE = """
    import pytest

    @pytest.mark.perf
    @pytest.mark.parametrize("streams", [1, 2])
    def test_profile(perf, streams, monkeypatch):
        monkeypatch.setattr(perf, "needs_gpu", lambda what: None)
        assert perf.profile(streams).steps == 4

    @pytest.mark.perf
    def test_what_is_timed(server):
        assert server.endpoint
"""


@pytest.fixture
def opened(scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> list[Path | None]:
    """Folders of the servers that were opened; each stands for one of ours, of three layers, and writes there."""
    folders: list[Path | None] = []
    scripted.completion = streaming(answer(32 + 9))

    async def start(request: web.Request) -> web.StreamResponse:
        return web.Response()

    async def stop(request: web.Request) -> web.StreamResponse:
        assert folders[-1] is not None
        written = len(list(folders[-1].glob("*.gz")))
        traces.torch_trace(folders[-1] / f"rank0.{written}.pt.trace.json.gz", Invented(world=1))
        return web.Response()

    scripted.commands = {"start_profile": start, "stop_profile": stop}

    def open_server(server: ServerUnderTest) -> object:
        folders.append(server._traces)
        return attach(scripted.url)

    monkeypatch.setattr(ServerUnderTest, "_open", open_server)
    monkeypatch.setattr(ServerUnderTest, "layers", 3)
    return folders


def test_a_profile_is_taken_of_a_server_of_its_own(pytester: pytest.Pytester, opened: list[Path | None]) -> None:
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(TEST)
    result = pytester.runpytest_inprocess("--perf", "-rP")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*profile of the decode step: *profile_of_1.json", "*MoE GEMM *4 *12.00*"])
    assert len(opened) == 1
    assert opened[0] is not None
    assert (opened[0] / "profile_of_1.json").exists()


def test_one_server_serves_all_profiles_and_none_that_is_timed_has_a_profiler(
    pytester: pytest.Pytester, opened: list[Path | None]
) -> None:
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(TWICE)
    pytester.runpytest_inprocess("--perf").assert_outcomes(passed=2, failed=1)  # it comes to no verdict
    traces_of, timed = opened
    assert timed is None
    assert traces_of is not None
    assert {file.name for file in traces_of.glob("*.json")} == {"profile_of_1.json", "profile_of_2.json"}


def test_a_server_that_dies_in_a_profile_keeps_none_from_being_timed(
    pytester: pytest.Pytester, opened: list[Path | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object, **__: object) -> None:
        raise ServerError("the server ended while it answers /stop_profile")

    def checked(server: ServerUnderTest) -> object:
        started: Any = opened_server(server)
        if server._traces is None:
            return started
        quiet = {"stop": lambda: None, "log_size": lambda: 0, "log": lambda *_: ""}
        return replace(started, process=SimpleNamespace(check=gone, **quiet))

    def gone(doing: str) -> None:
        raise ServerError(f"the server ended {doing}")

    opened_server = ServerUnderTest._open
    monkeypatch.setattr(ServerUnderTest, "_open", checked)
    monkeypatch.setattr("pytest_decodegate.session.profiling.capture", dies)
    monkeypatch.setattr(Server, "started", lambda self: "")
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(TWICE)
    result = pytester.runpytest_inprocess("--perf")
    result.stdout.fnmatch_lines(["*the server ended while it answers /stop_profile*", "*the server ended between two*"])
    assert opened[-1] is None, "the one that is timed has been started"


def test_wrong_counts_fail(
    pytester: pytest.Pytester, opened: list[Path | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ServerUnderTest, "layers", 8)
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(TEST)
    result = pytester.runpytest_inprocess("--perf")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*4 Marlin launches a step, and 8 layers need 14*"])
    assert "profiled" not in result.stdout.str()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "SKIPPED*a profile of a decode step is one of a GPU's kernels"),
        (["--perf-server=http://127.0.0.1:9"], "SKIPPED*decodegate profile --server URL"),
    ],
)
def test_where_none_can_be_taken(pytester: pytest.Pytester, options: list[str], said: str) -> None:
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(TEST if options else TEST.replace("monkeypatch.setattr", "(lambda *_: None)"))
    result = pytester.runpytest_inprocess("--perf", "-rs", *options)
    result.stdout.fnmatch_lines([said])


@pytest.mark.parametrize("version", wheels.VERSIONS)
def test_what_is_asked_of_vllm_is_there(version: str) -> None:
    """Endpoints, fields of --profiler-config, and the annotations by which steps are found."""
    config = wheels.source(version, "vllm/config/profiler.py")
    for field in ("profiler:", "torch_profiler_dir:", "torch_profiler_with_stack:", "ignore_frontend:"):
        assert f"    {field}" in config
    assert "    torch_profiler_dump_cuda_time_total:" in config

    router = wheels.source(version, "vllm/entrypoints/serve/profile/api_router.py")
    assert '@router.post("/start_profile")' in router
    assert '@router.post("/stop_profile")' in router
    worker = wheels.source(version, "vllm/v1/worker/gpu_worker.py")
    assert '"execute_context_"' in worker
    assert ".async_llm" in wheels.source(version, "vllm/v1/engine/async_llm.py")
