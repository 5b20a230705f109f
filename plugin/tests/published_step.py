"""The step that the reference host's write-up publishes: CUDA time by category, from a profile of 155 steps."""

from __future__ import annotations

from pytest_decodegate.profile.categories import Category
from pytest_decodegate.profile.ledger import Entry, Ledger, Time

TPOT_S = 12.1e-3
TOTAL_MS = 21.7

SHARES = {
    Category.ALLREDUCE: 0.515,
    Category.ATTENTION: 0.153,
    Category.GEMM: 0.134,
    Category.MOE_GEMM: 0.111,
    Category.ROUTING: 0.045,
    Category.REST: 0.042,
}


def published() -> Ledger:
    """NCCL's 127 AllReduces as they are published, 9.88 ms; the rest of a category is one entry."""
    return Ledger(
        (
            Entry("allreduce_nccl", Category.ALLREDUCE, 127, Time(9.88e-3 / 127)),
            Entry("allreduce_other", Category.ALLREDUCE, 1, Time((11.17 - 9.88) * 1e-3)),
            Entry("attention", Category.ATTENTION, 61, Time(3.32e-3 / 61)),
            Entry("other_gemm", Category.GEMM, 1, Time(2.90e-3)),
            Entry("marlin_moe", Category.MOE_GEMM, 60, Time(2.40e-3 / 60)),
            Entry("routing", Category.ROUTING, 60, Time(0.99e-3 / 60)),
            Entry("rest", Category.REST, 1, Time(0.92e-3)),
        )
    )
