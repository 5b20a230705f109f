"""Workloads that write to NCCL_DEBUG_FILE as NCCL would, on ranks that have no GPU."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import NoReturn

from pytest_decodegate.workloads.runtime.timing import CpuClock, Workload

LINE = "NCCL INFO "


def collective(tokens: int, algorithm: str = "RING") -> Workload:
    """An AllReduce of 14,336 bytes a token; it connects when it is first used in a process, as communicators do."""

    def check() -> None:
        if not _connected:
            _connected.append(True)
            _say("NCCL version 2.28.9+cuda13.0")
            _say("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM")
        if os.environ["RANK"] == "0":
            _say("AllReduce: 2 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}")
            for _ in range(3):
                size = tokens * 14336
                _say(f"AllReduce: {size} Bytes -> Algo {algorithm} proto LL channel{{Lo..Hi}}={{0..{tokens}}}")

    return _workload(check)


def exchange() -> Workload:
    """Sends and receives, of which NCCL writes nothing."""
    return _workload(lambda: _say("NCCL version 2.28.9+cuda13.0"))


def failing() -> NoReturn:
    raise RuntimeError("CUDA error: out of memory")


_connected: list[bool] = []


def _workload(check: object) -> Workload:
    def checked() -> None:
        assert callable(check)
        check()

    return Workload(
        burst=lambda: sum(range(10_000)), calls=1, clock=CpuClock(), check=checked, contract={"library": "nccl"}
    )


def _say(text: str) -> None:
    path = os.environ.get("NCCL_DEBUG_FILE")
    if os.environ.get("NCCL_DEBUG") == "INFO" and path:
        name = path.replace("%h", socket.gethostname()).replace("%p", str(os.getpid()))
        with Path(name).open("a") as log:
            log.write(f"{socket.gethostname()}:{os.getpid()}:{os.getpid()} [0] {LINE}{text}\n")
