"""Errors in one line: the reason is not lost, and errors with one cause are alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.gate.text.brief import MOST_CHARACTERS, alike, brief

NO_START = "RankDied: gang 'candidate-w1-1': torchrun ended before rank 0 came up"
NO_TORCH = "/v/bin/python has no torch: install it there"
OTHER_ABI = "ImportError: libtorch_cuda.so: undefined symbol: ncclCommWindowRegister"
TRACEBACK = f'Traceback (most recent call last):\n  File "x.py", line 1\n    raise ImportError("no")\n{OTHER_ABI}'
AGAIN = "GangError: ranks of world size 1 broke 3 times in this session; the first cause was:\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        (NO_START, NO_START),
        (f"{NO_START}\n{NO_TORCH}\ntorchrun reports:\nno module", f"{NO_START}: {NO_TORCH}"),
        (f"{NO_START}\ntorchrun reports:\n{TRACEBACK}", f"{NO_START}: {OTHER_ABI}"),
        (f"{NO_START}\ntorchrun reports:\n(nothing)", NO_START),
        (f"RankRaised: rank 0 raised ImportError in setup: no\n\nrank 0:\n{TRACEBACK}", None),
        ("RankHung: rank 0 did not answer\n--- stack of rank 0 ---\n  File x", "RankHung: rank 0 did not answer"),
        ("vLLM died; its log:\n(pid=7) ERROR RuntimeError: no room", "vLLM died; its log: RuntimeError: no room"),
    ],
)
def test_the_reason_stands_beside_what_happened(text: str, expected: str | None) -> None:
    assert brief(text) == (text.partition("\n")[0] if expected is None else expected)


def test_an_error_that_repeats_the_first_is_alike() -> None:
    first = f"{NO_START}\n{NO_TORCH}\ntorchrun reports:\nno module"
    again = AGAIN + first.removeprefix("RankDied: ").replace("w1-1", "w2-3")
    assert alike(again) == alike(first)
    assert alike(f"{NO_START}\n{TRACEBACK}") != alike(first)


@given(st.text())
def test_any_text_is_one_line_that_is_no_longer_than_its_first_and_the_reason(text: str) -> None:
    assert len(brief(text).splitlines()) <= 1
    assert len(brief(text)) <= max(map(len, text.splitlines()), default=0) + MOST_CHARACTERS + 2
