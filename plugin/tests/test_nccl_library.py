"""Which of several mapped copies of NCCL answers: two small libraries of that name, and the real dynamic linker."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_decodegate.machine.nccl_library import answering_torch

COMPILER = shutil.which("cc") or shutil.which("gcc")
NCCL = "int ncclGetVersion(int *version) { *version = %d; return 0; }"
TORCH = "int ncclGetVersion(int *); int torch_asks(void) { int version; ncclGetVersion(&version); return version; }"

ASK = """
import ctypes, sys
from pytest_decodegate.machine import nccl_library

torch = ctypes.CDLL(sys.argv[1])  # local, as Python loads extensions
for other in sys.argv[2:]:
    ctypes.CDLL(other)
file = nccl_library.answering_torch()
print(file, nccl_library.nccl_version(file), nccl_library.decode_nccl(torch.torch_asks()))
"""

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler to make the libraries with")


def compiled(folder: Path, name: str, code: str, *arguments: str) -> Path:
    assert COMPILER is not None
    folder.mkdir(exist_ok=True)
    library = folder / name
    (folder / "code.c").write_text(code)
    command = [COMPILER, "-shared", "-fPIC", "-o", str(library), str(folder / "code.c"), *arguments]
    subprocess.run(command, check=True)
    return library


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """NCCL 2.28.9 as torch was linked with it, another copy 2.28.3 of another name, and the torch that asks."""
    folder = tmp_path_factory.mktemp("nccl")
    torchs = compiled(folder / "torchs", "libnccl.so.2", NCCL % 22809, "-Wl,-soname,libnccl.so.2")
    other = compiled(folder / "other", "libnccl.so.2.28.3", NCCL % 22803)
    origin = [str(torchs), f"-Wl,-rpath,{torchs.parent}", "-Wl,--no-as-needed"]
    return {
        "torchs": torchs,
        "other": other,
        "torch": compiled(folder / "torch", "libtorch_cuda.so", TORCH, *origin),
    }


def ask(libraries: dict[str, Path], *also: Path, preload: Path | None = None) -> list[str]:
    environ = {**os.environ, "LD_LIBRARY_PATH": str(libraries["torch"].parent)}
    if preload:
        environ["LD_PRELOAD"] = str(preload)

    arguments = [str(libraries["torch"]), *map(str, also)]
    done = subprocess.run([sys.executable, "-c", ASK, *arguments], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_copy_that_torch_was_linked_with_answers(libraries: dict[str, Path]) -> None:
    assert ask(libraries) == [str(libraries["torchs"]), "2.28.9", "2.28.9"]


def test_a_copy_that_is_mapped_beside_it_answers_nobody(libraries: dict[str, Path]) -> None:
    """As vLLM's own, which it opens by its path."""
    assert ask(libraries, libraries["other"]) == [str(libraries["torchs"]), "2.28.9", "2.28.9"]


def test_a_preloaded_copy_answers_although_torchs_is_mapped_too(libraries: dict[str, Path]) -> None:
    assert ask(libraries, preload=libraries["other"]) == [str(libraries["other"]), "2.28.3", "2.28.3"]


def test_without_any_nobody_answers() -> None:
    code = "from pytest_decodegate.machine.nccl_library import answering_torch; print(answering_torch())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"
    assert answering_torch() is None or "nccl" in str(answering_torch())
