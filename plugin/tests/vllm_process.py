"""Opens workloads in a process of its own, as a rank does: importing vLLM changes a process and warns on the way."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import unittest
from dataclasses import asdict
from pathlib import Path
from typing import Any

SECONDS = 240


def opened(cases: dict[str, tuple[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """What ranks say of workloads, by case: "module:function" under workloads/ and its arguments.

    Each answer has the fields of rank.Opened and "seconds" of one sample, or "refused" with the sentence of BadInput or
    of a skip. The process is the only rank of a gloo group.
    """
    with tempfile.TemporaryDirectory() as folder:
        answers = Path(folder, "answers.json")
        environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, json.dumps(cases), str(answers)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, done.stderr[-3000:]
        told: dict[str, dict[str, Any]] = json.loads(answers.read_text())
        return told


def _open(case: str, name: str, params: dict[str, Any]) -> dict[str, Any]:
    from pytest_decodegate.errors import BadInput
    from pytest_decodegate.gang.protocol import Function
    from pytest_decodegate.workloads.runtime import rank

    module, function = name.split(":")
    factory = getattr(importlib.import_module(f"pytest_decodegate.workloads.{module}"), function)
    try:
        answer = asdict(rank.open_workload(case, Function.of(factory), params))
    except (BadInput, unittest.SkipTest) as error:
        return {"refused": str(error)}

    answer["seconds"] = rank.take_samples(case, 1).seconds[0]
    rank.close_workload(case)
    return answer


def _be_the_only_rank() -> None:
    import torch
    import torch.distributed as dist

    from pytest_decodegate.workloads.collectives import communicators

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    os.environ["LOCAL_RANK"] = "0"
    communicators._device = lambda: torch.device("cuda", 0)  # named, but never used by the builds for CPUs


if __name__ == "__main__":
    _be_the_only_rank()
    asked: dict[str, tuple[str, dict[str, Any]]] = json.loads(sys.argv[1])
    Path(sys.argv[2]).write_text(json.dumps({case: _open(case, *what) for case, what in asked.items()}))
