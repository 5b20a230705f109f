"""What is too large, too long or has too many digits ends in a sentence and in bounded time, never in a traceback."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from foreign import DETAILED, PLAIN, benchmark_json, changed, nccl_json
from growth import assert_linear
from nccl_printing import Printing
from stored import MOE, baseline, stored

from pytest_decodegate.baseline.benchmark_json import dumps
from pytest_decodegate.cli import main
from pytest_decodegate.client import client, counters
from pytest_decodegate.client.endpoint import Endpoint
from pytest_decodegate.compare import git
from pytest_decodegate.errors import BadInput, ServerError
from pytest_decodegate.gang import agent, health
from pytest_decodegate.importing import nccl_table, nccl_text
from pytest_decodegate.machine.nccl_log import read_nccl_log
from pytest_decodegate.serving import log_facts, pages

HUGE = 10**400
"""Fits into no float, and is written with fewer digits than Python refuses to read."""

LOG = "host:1:2 [0] NCCL INFO "


def log_lines(text: str) -> object:
    """The lines of nccl-tests, or none where several processes seem to have printed."""
    try:
        return nccl_text.lines("log", text)
    except BadInput:
        return None


@pytest.mark.parametrize(
    ("function", "piece"),
    [
        *(
            (log_facts.read_facts, piece)
            for piece in ("Using [", "speculative_config=SpeculativeConfig(method='a'", "x=")
        ),
        *((log_facts.start_times, piece) for piece in ("Model loading took ", "1.", "torch.compile took 1")),
        *((log_facts.lines, piece) for piece in ("\x1b[", "a\r", "\n", " ")),
        *((pages.cache_facts, piece) for piece in ("vllm:cache_config_info{" + "a" * 9, 'a="', "}")),
        *((counters.parse, piece) for piece in ("a{} ", "}", "vllm:a ", "1\n")),
        *((read_nccl_log, LOG + piece) for piece in ("nranks 1 ", "1 coll channels, ", "\0")),
        *((nccl_table.is_table, piece) for piece in ("# nThread", "# Rank 1 ", "# nThread # Rank 1 [", "#\n")),
        *((log_lines, piece) for piece in ("# nThread 1 nGpus 1 ", "[1,0]<stdout>:", "a:1:2 [0] NCCL INFO ", "0: #\n")),
        (health.is_doubtful, "nccl"),
        (agent._EXIT.findall, "\n"),
        (agent._EXIT.findall, " rank"),
    ],
    ids=lambda value: getattr(value, "__name__", repr(value)),
)
def test_the_time_grows_with_the_text_and_not_with_its_square(function: Callable[[Any], object], piece: str) -> None:
    def read(text: str) -> object:
        one_line = {"nranks 1 ", "1 coll channels, "}
        for inner in one_line:  # its prefix once, or each would be a line of its own to the reader
            if piece == LOG + inner:
                return function(LOG + text.replace(LOG, ""))

        return function(ValueError(text)) if function is health.is_doubtful else function(text)

    assert_linear(read, piece)


def test_a_cache_line_with_one_very_long_word_is_read_in_linear_time() -> None:
    assert_linear(lambda text: pages.cache_facts(f"vllm:cache_config_info{{{text}}} 1"), "a")


def numbers(value: Any) -> Iterator[Any]:
    """The JSON value with HUGE in the place of one of its numbers, for each of them."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from ({**value, key: other} for other in numbers(inner))
    elif isinstance(value, list):
        for index, inner in enumerate(value[:2]):
            yield from ([*value[:index], other, *value[index + 1 :]] for other in numbers(inner))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield HUGE


@pytest.mark.parametrize(
    "content", [PLAIN, changed(DETAILED, backend="vllm"), nccl_json(), benchmark_json(with_data=True)], ids=len
)
def test_a_number_of_400_digits_in_a_result_is_refused_or_no_matter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    statuses = set()
    for number, other in enumerate(numbers(json.loads(content))):
        file = tmp_path / f"{number}.json"
        file.write_text(json.dumps(other))
        status = main(["import", str(file), "--out", str(tmp_path / f"out{number}")])
        statuses.add(status)
        assert status in (0, 3)
        assert status == 0 or f"{number}.json" in capsys.readouterr().err

    assert 3 in statuses


@pytest.mark.parametrize("digits", [400, 5000])
def test_a_number_of_many_digits_in_a_table_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], digits: int
) -> None:
    good = Printing().table((14336, 11.25, 11.5))
    for wrong in (good.replace(" 14336", " " + "1" * digits, 1), good.replace("11.25", "1" * digits, 1)):
        file = tmp_path / "table.txt"
        file.write_text(wrong)
        assert main(["import", str(file), "--out", str(tmp_path / "out")]) == 3
        assert "table.txt, line " in capsys.readouterr().err


def test_a_number_of_400_digits_in_a_baseline_is_refused_or_no_matter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = tmp_path / "good.json"
    good.write_bytes(dumps(baseline(stored(MOE, 40e-6, sessions=2))))
    statuses = set()
    for number, other in enumerate(numbers(json.loads(good.read_text()))):
        bad = tmp_path / f"bad{number}.json"
        bad.write_text(json.dumps(other))
        status = main(["compare", str(good), str(bad)])
        statuses.add(status)
        assert status != 3 or f"bad{number}.json" in capsys.readouterr().err

    assert 3 in statuses


def test_numbers_of_a_server_that_have_too_many_digits_are_left_out() -> None:
    many = "1" * 5000
    assert log_facts.read_facts(f"KV cache size: {many} tokens, tensor_parallel_size={many}") == {}
    assert log_facts.start_times("Graph capturing finished in 1.2.3 secs") == {}
    assert pages.cache_facts(f'vllm:cache_config_info{{num_gpu_blocks="{many}"}} 1') == {"kv_cache_blocks": many}
    answer = {"/server_info": json.dumps({"tp_size": HUGE, "dtype": "bf16"})}
    assert pages.read_pages(answer.get, "m") == {"dtype": "bf16"}
    page = f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{many}"}} 1\nvllm:num_preemptions_total 0\n'
    found = counters.parse(page)
    assert found is not None
    assert counters.acceptance(found) == {}


def test_a_page_that_does_not_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MOST_PAGE_BYTES", 1000)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"x" * 5000)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(ServerError, match="asked for /metrics: the answer is longer than"):
            pages.fetch(Endpoint(f"http://127.0.0.1:{server.server_port}", "m"), "/metrics")

        thread.join(10)


def test_a_large_file_of_a_revision_is_not_loaded_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = {f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "0001_a.json").write_bytes(os.urandom(300_000))
    for arguments in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run(["git", *arguments], check=True, env={**os.environ, **identity})

    assert len(git.content("main", "0001_a.json")) == 300_000
    monkeypatch.setattr(git, "MOST_BYTES", 1000)
    assert len(git.content("main", "0001_a.json")) == 1001
    with pytest.raises(BadInput, match="does not exist in"):
        git.content("main", "other.json")
