"""The memory of a GPU as CUDA tells it: of a chip that shares its memory with the CPU, NVML tells none."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

from ..process.processes import scrubbed

SECONDS: Final = 60.0
"""For a process to initialise CUDA: seconds on a host without persistence mode."""

# A process of its own: pytest's shall never hold a CUDA context, and a broken libcuda may end whoever loads it.
_CODE: Final = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
def ask(name, *arguments):
    if code := getattr(cuda, name)(*arguments):
        sys.exit(f"{name} answers {code}")
device, size = ctypes.c_int(), ctypes.c_size_t()
ask("cuInit", 0)
ask("cuDeviceGet", ctypes.byref(device), 0)
ask("cuDeviceTotalMem_v2", ctypes.byref(size), device)
print(size.value)
"""


def cuda_memory_bytes(uuid: str) -> int:
    """Bytes that CUDA can use on GPU `uuid`, by cuDeviceTotalMem; raises OSError with CUDA's words if it is mute."""
    environment = {**scrubbed(os.environ), "CUDA_VISIBLE_DEVICES": uuid}
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _CODE],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"CUDA did not answer within {SECONDS:g} s") from error

    if done.returncode or not done.stdout.strip().isdecimal():
        raise OSError((done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"])[-1])

    return int(done.stdout)
