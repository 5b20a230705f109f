"""Causes as values: what foreign text is classified as, and what an error or a finding says in one line."""

from __future__ import annotations

import copy
import errno
import os
import pickle
import sys
from dataclasses import replace
from pathlib import Path

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
    root_exception,
    without_numbers,
)
from pytest_decodegate.errors import BadInput, DecodegateError, GangError, RankDied, RankHung, RankRaised, ServerError
from pytest_decodegate.gang import exit_reasons, worker
from pytest_decodegate.gang.exit_reasons import RankNames
from pytest_decodegate.gang.protocol import Failure, Hello
from pytest_decodegate.serving.process import ServerProcess

NO_START = "gang 'candidate-w1-1': torchrun ended before rank 0 came up"
NO_ROOM = "torch.OutOfMemoryError: CUDA out of memory"
OTHER_ABI = "ImportError: libtorch_cuda.so: undefined symbol: ncclCommWindowRegister"
TRACEBACK = f'Traceback (most recent call last):\n  File "x.py", line 1\n    raise ImportError("no")\n{OTHER_ABI}'


class OutOfMemoryError(RuntimeError):
    """As torch has it, under a torch that says nothing of memory in its message."""


class OfOneAllocator(OutOfMemoryError):
    """A subclass of it."""


class Mute(Exception):
    """An exception whose text raises."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


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
    assert cause_of(error, str(error)) is cause


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


ENGINE = "(EngineCore pid=25) ERROR 08-18 02:57:12 [core.py:1231]"
NO_CACHE = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"
POINTER = "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above."


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (f"INFO ImportError: no triton\n{ENGINE} {NO_CACHE}\nRuntimeError: again\n{POINTER}", NO_CACHE),
        (f"{ENGINE} {NO_CACHE}\nOSError: later, of its own", "OSError: later, of its own"),
        (f"{ENGINE} {NO_CACHE}\nbye", NO_CACHE),
        (POINTER, "RuntimeError: Engine core initialization failed. See root cause above."),
        ("", ""),
    ],
)
def test_an_exception_that_refers_to_another_is_not_the_cause(log: str, expected: str) -> None:
    assert root_exception(log) == expected


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


def failure(error: BaseException, at: float) -> Failure:
    return replace(worker._describe(error), at=at)


def test_a_rank_says_itself_what_is_behind_its_exception() -> None:
    assert worker._describe(OutOfMemoryError("Tried to allocate 2 GiB")).cause is Cause.OUT_OF_MEMORY
    assert worker._describe(BadInput("no such path")).cause is Cause.BAD_INPUT
    assert worker._describe(SystemExit(3)).cause is Cause.EXCEPTION
    assert worker._describe(Mute()).cause is Cause.EXCEPTION


def test_memory_that_one_rank_has_not_is_why_the_others_fail() -> None:
    first, short = failure(RuntimeError("NCCL error: peer is gone"), 1.0), failure(MemoryError(), 2.0)
    roster = RankNames("w2-1", {rank: Hello(rank, rank, 4711, "n1", "/tmp", "python") for rank in (0, 1)})
    assert exit_reasons.rank_raised("setup", {0: first}, roster).cause is Cause.DEVICE
    assert exit_reasons.rank_raised("setup", {0: first, 1: short}, roster).cause is Cause.OUT_OF_MEMORY


def test_one_exception_with_other_numbers_is_one_failure() -> None:
    def raised(rank: int, size: int) -> RankRaised:
        roster = RankNames(f"w2-{rank}", {rank: Hello(rank, rank, 4711, "n1", "/tmp", "python")})
        return exit_reasons.rank_raised("setup", {rank: failure(ValueError(f"bad size {size}"), 1.0)}, roster)

    assert raised(0, 14336).finding.key == raised(1, 7168).finding.key
    assert raised(0, 14336).finding != raised(1, 7168).finding


@pytest.mark.parametrize(
    ("log", "cause", "why"),
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory",
            Cause.OUT_OF_MEMORY,
            "torch.OutOfMemoryError: CUDA out of memory",
        ),
        ("INFO loading\nKeyError: 'kimi'", Cause.SERVER, "KeyError: 'kimi'"),
        ("INFO loading", Cause.SERVER, ""),
    ],
)
def test_a_server_that_ended_is_classified_by_its_log(tmp_path: Path, log: str, cause: Cause, why: str) -> None:
    path = tmp_path / "server.log"
    command = [sys.executable, "-c", f"print({log!r})"]
    server = ServerProcess(command, environment=dict(os.environ), log_path=path, grace_seconds=1.0)
    assert server.ended_within(60)
    with pytest.raises(ServerError, match="the server ended while starting") as raised:
        server.check("while starting")

    assert raised.value.cause is cause
    head = f"ServerError: the server ended while starting (exit code 0); the last lines of {path}"
    assert raised.value.brief == (f"{head}: {why}" if why else f"{head}:")


def test_a_server_whose_first_error_scrolled_away_says_it_before_the_last_lines(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("\n".join([f"{ENGINE} {NO_CACHE}", *(f"  frame {n}" for n in range(90)), POINTER]))
    server = ServerProcess(["cat", str(path)], environment=dict(os.environ), log_path=tmp_path / "log", grace_seconds=1)
    assert server.ended_within(60)

    with pytest.raises(ServerError) as raised:
        server.check("while starting")

    assert f"its first error: {NO_CACHE}\nthe last lines of" in str(raised.value)
    assert raised.value.brief.endswith(NO_CACHE)
