"""What ran then and now, told by name."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.gate.evidence.swaps import is_swap, kernel_changes, swap_findings
from pytest_decodegate.machine.provenance import Difference

PROFILES = st.dictionaries(st.text("abc<>:", min_size=1, max_size=5), st.integers(1, 4), max_size=4)


def difference(field: str, base: object, new: object) -> Difference:
    return Difference(field, base, new, declarable=False)  # type: ignore[arg-type]


def test_a_cast_that_appears_and_a_gemm_that_is_swapped_are_named() -> None:
    base = {"marlin_moe_wna16::Marlin<8>": 2, "act_and_mul_kernel": 1, "moe_sum_kernel": 1}
    new = {"humming::gemm": 2, "act_and_mul_kernel": 1, "moe_sum_kernel": 2, "bfloat16tofloat32_copy_kernel": 1}
    assert swap_findings([difference("contract.kernels", base, new)]) == (
        "a kernel appeared: bfloat16tofloat32_copy_kernel, 1 a call",
        "a kernel appeared: humming::gemm, 2 a call",
        "a kernel is gone: marlin_moe_wna16::Marlin<8>, 2 a call before",
        "a kernel runs 2 times a call, 1 before: moe_sum_kernel",
    )


def test_a_backend_is_told_in_one_sentence() -> None:
    swap = difference("contract.backend", "FLASH_ATTN_MLA", "TRITON_MLA")
    assert is_swap(swap)
    assert swap_findings([swap]) == ("backend changed: FLASH_ATTN_MLA -> TRITON_MLA",)
    assert not is_swap(difference("contract.mode", "eager", "graph"))


@given(PROFILES, PROFILES)
def test_exactly_the_kernels_that_differ_are_told(base: dict[str, int], new: dict[str, int]) -> None:
    changed = [name for name in {*base, *new} if base.get(name) != new.get(name)]
    assert len(list(kernel_changes(base, new))) == len(changed)
