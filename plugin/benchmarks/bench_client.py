"""Our client beside that of `vllm bench serve`, on the same loopback server of known pace, in turn.

python plugin/benchmarks/bench_client.py, in an environment with vLLM and on two idle cores; exit code 1 if a promise is
missed. Each client runs in a process of its own; its error is that of its median TPOT against what the server sent.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import io
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Self

import uvloop

from pytest_decodegate.client import stream
from pytest_decodegate.client.client import Client
from pytest_decodegate.client.endpoint import Endpoint
from pytest_decodegate.client.paced import paced
from pytest_decodegate.measure.load import no_garbage_collection

CONCURRENCY = 128
STEP_SECONDS = 0.01
RATE = 12_800  # a token for each stream at every step; higher rates bring several, as with speculative decoding
SECONDS = 8.0
RAMP_SECONDS = 2.0
REPEATS = 5
MOST_ERROR = 0.002
LIMIT_ERROR = 0.01
GROWTH = 1.5
TRIES = 5
KEPT_PACE = 0.01
PROMPT = [1] * 16


@dataclass(frozen=True, slots=True)
class Run:
    """One run. error: of the median TPOT. cpu_us: CPU time a token. kept_pace: whether the server was so fast."""

    error: float
    cpu_us: float
    kept_pace: bool


def ours(endpoint: Endpoint, tokens: int) -> float:
    """Median TPOT in seconds by our client, its reading of the answers included."""

    async def ask() -> list[stream.Exchange]:
        async with Client(endpoint, stall_seconds=60) as client:
            asked = (client.complete(PROMPT, output_tokens=tokens) for _ in range(CONCURRENCY))
            return await asyncio.gather(*asked)

    with no_garbage_collection():
        times = (stream.read(exchange).tpot_s for exchange in uvloop.run(ask()))
        return statistics.median(tpot_s for tpot_s in times if tpot_s is not None)


def theirs(endpoint: Endpoint, tokens: int) -> float:
    """Median TPOT in seconds by vLLM's own benchmark, called as its command line calls it."""
    from vllm.benchmarks.datasets import SampleRequest
    from vllm.benchmarks.serve import TaskType, benchmark

    asked = [SampleRequest(prompt=PROMPT, prompt_len=len(PROMPT), expected_output_len=tokens)] * CONCURRENCY
    with contextlib.redirect_stdout(io.StringIO()):
        result = asyncio.run(
            benchmark(
                task_type=TaskType.GENERATION,
                endpoint_type="openai",
                api_url=f"{endpoint.url}/v1/completions",
                base_url=endpoint.url,
                model_id=endpoint.model,
                model_name=endpoint.model,
                tokenizer=object(),  # asked only where usage is missing
                input_requests=asked,
                logprobs=None,
                request_rate=float("inf"),
                burstiness=1.0,
                disable_tqdm=True,
                num_warmups=0,
                profile=False,
                selected_percentile_metrics=["tpot"],
                selected_percentiles=[99.0],
                ignore_eos=True,
                goodput_config_dict={},
                max_concurrency=CONCURRENCY,
                lora_modules=None,
                extra_headers=None,
                extra_body=None,
                ready_check_timeout_sec=0,
            )
        )

    return float(result["median_tpot_ms"]) / 1e3


CLIENTS: dict[str, Callable[[Endpoint, int], float]] = {"decodegate": ours, "vllm": theirs}


def measure(client: Callable[[Endpoint, int], float], tokens_per_step: int, seconds: float) -> Run:
    """Run `client` once, for so long, against a server of so many tokens a step."""
    steps = round(seconds / STEP_SECONDS)
    tokens = steps * tokens_per_step
    with paced(STEP_SECONDS, tokens_per_step) as server:
        gc.collect()
        gc.freeze()
        before = time.process_time()
        found = client(server.endpoint, tokens)
        cpu_us = (time.process_time() - before) / tokens / CONCURRENCY * 1e6
        sent = statistics.median(server.sent_tpot_s())

    return Run(abs(found / sent - 1), cpu_us, abs(sent * tokens_per_step / STEP_SECONDS - 1) < KEPT_PACE)


def serve_commands(name: str) -> None:
    """In a client's process: read "TOKENS_PER_STEP SECONDS" from stdin, answer each with a Run."""
    measure(CLIENTS[name], 1, RAMP_SECONDS)  # imports and caches are not what is compared
    print("ready", flush=True)
    for line in sys.stdin:
        tokens_per_step, seconds = line.split()
        print(json.dumps(asdict(measure(CLIENTS[name], int(tokens_per_step), float(seconds)))), flush=True)


class Worker:
    """One client in a process of its own."""

    def __init__(self, name: str) -> None:
        command = [sys.executable, __file__, "--client", name]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.name = name
        self._read()

    def _read(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(
                f"the client {self.name} ended with {self._process.wait()}; run it with --client to see why"
            )

        return line

    def run(self, tokens_per_step: int, seconds: float) -> Run:
        """One run at so many tokens a step."""
        assert self._process.stdin
        self._process.stdin.write(f"{tokens_per_step} {seconds}\n")
        self._process.stdin.flush()
        return Run(**json.loads(self._read()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def highest_rate(worker: Worker) -> int:
    """The last rate of a growing row at which the error is under 1 % in one of some tries: noise only adds to it."""
    tokens_per_step = highest = 1
    while any(_is_good(worker.run(tokens_per_step, RAMP_SECONDS)) for _ in range(TRIES)):
        highest = tokens_per_step
        tokens_per_step = math.ceil(tokens_per_step * GROWTH)

    return highest * RATE


def _is_good(run: Run) -> bool:
    return run.kept_pace and run.error < LIMIT_ERROR


def promises(us: Worker, them: Worker) -> Iterator[tuple[str, float, float]]:
    """(what, found, limit) of each promise; nothing found may be above its limit."""
    pairs = [(us.run(1, SECONDS), them.run(1, SECONDS)) for _ in range(REPEATS)]
    for name, runs in zip(("decodegate", "vllm"), zip(*pairs, strict=True), strict=True):
        error, cpu_us = (statistics.median(getattr(run, field) for run in runs) for field in ("error", "cpu_us"))
        print(f"{name:<10} at {RATE:,} tok/s: error {error:.3%}, {cpu_us:.1f} us of CPU a token")

    yield f"median TPOT error at {RATE:,} tok/s", statistics.median(mine.error for mine, _ in pairs), MOST_ERROR
    ratios = [mine.cpu_us / other.cpu_us for mine, other in pairs]
    yield "CPU time per token, of vLLM's", statistics.median(ratios), 0.5
    rates = {worker.name: highest_rate(worker) for worker in (them, us)}
    print("highest rate with an error under 1 %: " + ", ".join(f"{name} {rate:,.0f}" for name, rate in rates.items()))
    yield "vLLM's highest rate, of ours", rates["vllm"] / rates["decodegate"], 0.5


def main() -> int:
    """Print the table; 1 if a promise is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--client", choices=CLIENTS)
    if name := parser.parse_args().client:
        serve_commands(name)
        return 0

    with Worker("decodegate") as us, Worker("vllm") as them:
        found = list(promises(us, them))

    for what, value, limit in found:
        print(f"{what:<40} {value:>8.4f}   at most {limit:<6g} {'CONFIRMED' if value <= limit else 'MISSED'}")

    return int(any(value > limit for _, value, limit in found))


if __name__ == "__main__":
    sys.exit(main())
