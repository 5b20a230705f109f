"""What the screen of a run says once for all of its metrics, and what it leaves for -v."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from judged import changed, result

from pytest_decodegate.cause import Cause, Finding
from pytest_decodegate.gate.result import Result
from pytest_decodegate.machine.provenance import Difference
from pytest_decodegate.report import briefly

PASS = result("gemm", "PASS")


def against(name: str, file: str, *choice: str) -> Result:
    return changed(PASS, name=name, basis=replace(PASS.judgement.basis, baseline=Path(file), choice=choice))


def noted(name: str, *notes: Finding) -> Result:
    return changed(PASS, name=name, notes=notes)


def test_a_baseline_is_said_once_with_the_reasons_that_it_has_for_all() -> None:
    first = against("a", "H200/3_x.json", "the only one", "newer, without this metric: 4_x.json", "of other cards")
    second = against("b", "H200/3_x.json", "the only one", "of other cards")
    assert list(briefly.compared([first, second])) == ["against H200/3_x.json: the only one; of other cards"]
    third = against("c", "H200/4_x.json", "the last of 2")
    assert list(briefly.compared([first, second, third])) == [
        "against H200/3_x.json: the only one; of other cards (2 metrics)",
        "against H200/4_x.json: the last of 2 (1 metric)",
    ]
    nothing_alike = [against("a", "H200/3_x.json", "the only one"), against("b", "H200/3_x.json", "the last of 2")]
    assert list(briefly.compared(nothing_alike)) == ["against H200/3_x.json"]
    assert list(briefly.compared([PASS])) == []


def test_what_differs_and_can_touch_nothing_is_one_line() -> None:
    cores = Difference("cores", 32, 16, declarable=False)
    digest = Difference("nccl_sha256", "1c86" * 16, "c830" * 16, declarable=True)
    results = [changed(PASS, name=f"k{n}", harmless=(cores, digest) if n else (cores,)) for n in range(3)]
    assert list(briefly.harmless([*results, PASS])) == [
        "differs and cannot touch 3 metrics (why: -v): cores: 32 -> 16; nccl_sha256"
    ]
    assert list(briefly.harmless([PASS])) == []


def test_notes_that_differ_in_their_numbers_alone_are_one() -> None:
    late = [Finding(f"the host was late, {n} again", about="late host").of(f"replicate {n}") for n in (4, 5)]
    results = [noted("a", *late), noted("b", late[0]), noted("c", Finding("plain")), noted("d", Finding("another"))]
    assert list(briefly.notes(results)) == [
        "note: a, b: replicate 4: the host was late, 4 again (and 1 like it: -v)",
        "note: c: plain",
        "note: d: another",
    ]


def test_notes_about_different_things_stay_apart_and_the_rest_is_counted() -> None:
    swaps = [Finding(f"kernel {n} appeared", Cause.KERNEL_SWAP, f"kernel {n}") for n in range(briefly.MOST_NOTES + 2)]
    *shown, rest = briefly.notes([noted("a", *swaps)])
    assert shown == [f"note: a: kernel {n} appeared" for n in range(briefly.MOST_NOTES)]
    assert rest == "and 2 more notes (-v)"
