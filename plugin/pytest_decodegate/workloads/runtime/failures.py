"""Known failures of ops, each explained in a sentence that names the op, the shapes and the way out."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ...errors import BadInput, DecodegateError


@dataclass(frozen=True, slots=True)
class _Failure:
    """A kind of failure. shows: pattern found in "<type>: <message>" of the exception."""

    shows: re.Pattern[str]
    what: str
    way_out: str


_FAILURES = (
    _Failure(
        re.compile(r"^OutOfMemoryError|CUDA out of memory|CUBLAS_STATUS_ALLOC_FAILED"),
        "the GPU is out of memory",
        "end what else runs on it, take fewer replicates (--perf-replicates), or a smaller shard (more ranks)",
    ),
    _Failure(
        re.compile(r"no kernel image|kernel image is invalid|PTX|ptxas", re.IGNORECASE),
        "this build has no machine code for this GPU, and the driver did not compile its PTX",
        "use a release built for this GPU, or a newer driver, and unset CUDA_DISABLE_PTX_JIT",
    ),
    _Failure(
        re.compile(
            r"_OpNamespace|module 'vllm\S*' has no attribute|^(Import|ModuleNotFound)Error: .*\bvllm|"
            r"Could not run '|No such operator|Couldn't find an operator"
        ),
        "the vLLM that is installed does not have this op",
        "use a release that does, built for CUDA and for this torch, or leave this test out with -k",
    ),
    _Failure(
        re.compile(r"divisible|does not divide|[Ss]ize mismatch|[Ii]nvalid thread config|unsupported shape"),
        "the kernel does not take these shapes",
        "choose a tensor-parallel size at which every dim divides: 1, 2, 4 or 8 for Kimi-K2.5",
    ),
)


@contextlib.contextmanager
def explained(op: str, shapes: str) -> Iterator[None]:
    """Raise BadInput, one sentence, for the failures that an op is known for; let everything else pass as it is.

    Also a decorator, for a check that runs the op later. Known are: device memory used up, no machine code for the GPU
    (or the driver's PTX JIT failing), an op that this vLLM lacks, and shapes that the kernel refuses.
    """
    try:
        yield
    except DecodegateError:
        raise
    except Exception as error:
        if sentence := _sentence(error):
            raise BadInput(f"{op} ({shapes}): {sentence}") from error

        raise


def _sentence(error: Exception) -> str | None:
    message = str(error).strip() or "no message"
    text = f"{type(error).__name__}: {message}"
    for failure in _FAILURES:
        if failure.shows.search(text):
            return f"{failure.what} ({text.splitlines()[0][:200]}); {failure.way_out}"

    return None


def needs_gpu(op: str, capability: tuple[int, int] = (8, 0)) -> None:
    """Raise BadInput if this rank's GPU is absent or older than compute capability `capability` (major, minor)."""
    import torch

    if not torch.cuda.is_available():
        raise BadInput(
            f"{op} needs an NVIDIA GPU, and torch {torch.__version__} sees none; check nvidia-smi, "
            "CUDA_VISIBLE_DEVICES, and that this torch is built for CUDA"
        )

    found = torch.cuda.get_device_capability()
    if found < capability:
        raise BadInput(
            f"{op} needs a GPU of compute capability {_dotted(capability)} or newer; "
            f"{torch.cuda.get_device_name()} has {_dotted(found)}: leave this test out with -k"
        )


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
