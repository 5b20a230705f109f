"""Causes as values: what foreign text is classified as, and what an error or a finding says in one line."""

from __future__ import annotations

import copy
import errno
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.cause import (
    MOST_CHARACTERS,
    Cause,
    Finding,
    cause_of,
    cause_of_text,
    last_exception,
    without_numbers,
)
from pytest_decodegate.errors import BadInput, DecodegateError, GangError, RankDied, RankHung, RankRaised, ServerError

NO_START = "gang 'candidate-w1-1': torchrun ended before rank 0 came up"
OTHER_ABI = "ImportError: libtorch_cuda.so: undefined symbol: ncclCommWindowRegister"
TRACEBACK = f'Traceback (most recent call last):\n  File "x.py", line 1\n    raise ImportError("no")\n{OTHER_ABI}'


class OutOfMemoryError(RuntimeError):
    """As torch has it, under a torch that says nothing of memory in its message."""


class OfOneAllocator(OutOfMemoryError):
    """A subclass of it."""


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (OutOfMemoryError("Tried to allocate 2 GiB"), Cause.OUT_OF_MEMORY),
        (OfOneAllocator("no"), Cause.OUT_OF_MEMORY),
        (MemoryError(), Cause.OUT_OF_MEMORY),
        (OSError(errno.ENOMEM, "fork"), Cause.OUT_OF_MEMORY),
        (RuntimeError("CUDA error: out of memory"), Cause.OUT_OF_MEMORY),
        (RuntimeError("cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY"), Cause.OUT_OF_MEMORY),
        (RuntimeError("ncclUnhandledCudaError: Cuda failure 2 'out of memory'"), Cause.OUT_OF_MEMORY),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), Cause.DEVICE),
        (RuntimeError("ncclUnhandledCudaError: Call to CUDA function failed."), Cause.DEVICE),
        (RuntimeError("NCCL error in: ../csrc/ProcessGroupNCCL.cpp:94"), Cause.DEVICE),
        (RuntimeError("uncorrectable ECC error encountered"), Cause.DEVICE),
        (ValueError("bad shape"), Cause.EXCEPTION),
        (OSError(errno.ENOENT, "no such file"), Cause.EXCEPTION),
    ],
)
def test_an_exception_is_classified_by_its_type_and_else_by_the_wordings_of_its_makers(
    error: BaseException, cause: Cause
) -> None:
    assert cause_of(error) is cause


def test_a_log_that_tells_of_nothing_known_has_no_cause() -> None:
    assert cause_of_text("INFO: 8 workers started\nSegmentation fault") is None
    assert cause_of_text("terminate called after throwing an instance of 'std::bad_alloc'") is Cause.OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("", ""),
        (TRACEBACK, OTHER_ABI),
        ("(pid=7) ERROR RuntimeError: no room\nbye", "RuntimeError: no room"),
        ("KeyError: 'a'\ntorch.OutOfMemoryError: CUDA", "torch.OutOfMemoryError: CUDA"),
        ("nothing: here", ""),
        (f"ValueError: {'x' * 1000}", f"ValueError: {'x' * (MOST_CHARACTERS - len('ValueError: '))}"),
    ],
)
def test_the_last_exception_of_a_log(log: str, expected: str) -> None:
    assert last_exception(log) == expected


def test_sizes_and_addresses_do_not_make_another_failure() -> None:
    assert without_numbers("0.5 of 12 at rank 3") == without_numbers("7 of 9.5 at rank 12")


@pytest.mark.parametrize(
    ("error", "brief"),
    [
        (RankDied(NO_START), f"RankDied: {NO_START}"),
        (RankDied(f"{NO_START}:\ntorchrun reports", why=OTHER_ABI), f"RankDied: {NO_START}: {OTHER_ABI}"),
        (
            RankRaised(f"rank 0 raised {OTHER_ABI}\n\n{TRACEBACK}", why=OTHER_ABI),
            f"RankRaised: rank 0 raised {OTHER_ABI}",
        ),
        (RankHung("\n\nrank 0 did not answer\n  File x"), "RankHung: rank 0 did not answer"),
        (DecodegateError(), "DecodegateError: "),
    ],
)
def test_an_error_in_one_line_keeps_its_reason(error: DecodegateError, brief: str) -> None:
    assert error.brief == error.finding.brief == brief
    assert error.finding == f"{type(error).__name__}: {error}"


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        (BadInput, Cause.BAD_INPUT),
        (RankDied, Cause.CRASH),
        (RankHung, Cause.HANG),
        (RankRaised, Cause.EXCEPTION),
        (ServerError, Cause.SERVER),
    ],
)
def test_every_kind_of_error_has_its_usual_cause(kind: type[DecodegateError], cause: Cause) -> None:
    assert kind("x").cause is cause
    assert kind("x", cause=Cause.OUT_OF_MEMORY).cause is Cause.OUT_OF_MEMORY


def test_an_error_that_repeats_another_is_the_same_failure() -> None:
    first = RankDied(f"{NO_START}\n{TRACEBACK}", cause=Cause.OUT_OF_MEMORY, why=OTHER_ABI)
    again = GangError(f"ranks of world size 1 broke 3 times; the first cause was:\n{first}", repeats=first)
    assert again.finding.key == first.finding.key
    assert again.finding.brief == first.brief
    assert again.finding != first.finding


@given(st.text(), st.sampled_from(Cause), st.text())
def test_a_finding_shows_and_compares_as_its_text_and_keeps_its_cause(text: str, cause: Cause, about: str) -> None:
    found = Finding(text, cause, about)
    assert (found, f"{found}", found.key) == (text, text, (cause, about))
    for kept in (copy.deepcopy(found), pickle.loads(pickle.dumps(found)), found.of("replicate 3")):
        assert kept.key == found.key

    assert found.of("base", apart=True).key != found.of("candidate", apart=True).key
    assert found.of("rank 0") == f"rank 0: {text}"
