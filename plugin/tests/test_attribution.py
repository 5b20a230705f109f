"""What explains a change of TPOT: by category, adding up, with the next bottleneck."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.profile.attribution import Attribution, CategorySum, attribute, of_ledger
from pytest_decodegate.profile.categories import Category
from pytest_decodegate.profile.ledger import Entry, Ledger, Time

BASE = {
    Category.ALLREDUCE: CategorySum(6.2e-3, 122),
    Category.MOE_GEMM: CategorySum(2.4e-3, 120),
    Category.GEMM: CategorySum(2.9e-3, 600),
}

sums = st.dictionaries(
    st.sampled_from(list(Category)), st.builds(CategorySum, st.floats(0, 0.02), st.integers(0, 200)), min_size=1
)


def changed(**seconds: float) -> dict[Category, CategorySum]:
    return {
        category: CategorySum(each.seconds + seconds.get(category.name, 0.0), each.calls)
        for category, each in BASE.items()
    }


def test_an_allreduce_that_slowed_down_explains_it() -> None:
    found = attribute(0.62e-3, BASE, changed(ALLREDUCE=0.58e-3))
    assert str(found) == "TPOT +0.62 ms: AllReduce +0.58 (122 calls x +4.8 us), rest +0.04"


def test_marlin_is_not_blamed_on_allreduce() -> None:
    found = attribute(0.3e-3, BASE, changed(MOE_GEMM=0.3e-3))
    assert [each.category for each in found.moved] == [Category.MOE_GEMM]
    assert found.rest_s == pytest.approx(0.0)


def test_when_one_shrinks_the_next_bottleneck_is_named() -> None:
    found = attribute(-5e-3, BASE, changed(ALLREDUCE=-5e-3))
    assert str(found).endswith("; the largest is now other GEMM, AllReduce before")


def test_calls_that_come_and_go_are_told() -> None:
    new = {**BASE, Category.CAST: CategorySum(4e-3, 60), Category.GEMM: CategorySum(1.4e-3, 300)}
    text = str(attribute(2.5e-3, BASE, new))
    assert "dtype cast +4.00 (new, 60 calls)" in text
    assert "other GEMM -1.50 (600 -> 300 calls)" in text
    assert "MoE GEMM -2.40 (gone)" in str(attribute(-2.4e-3, BASE, {**BASE, Category.MOE_GEMM: CategorySum(0, 0)}))


@given(st.floats(-0.02, 0.02), sums, sums)
def test_the_parts_add_up_to_the_change(
    change: float, base: dict[Category, CategorySum], new: dict[Category, CategorySum]
) -> None:
    found: Attribution = attribute(change, base, new)
    assert sum(each.seconds for each in found.moved) + found.rest_s == pytest.approx(change, abs=1e-12)
    sizes = [abs(each.seconds) for each in found.moved]
    assert sizes == sorted(sizes, reverse=True)


def test_a_ledger_gives_what_counts() -> None:
    step = Ledger(
        (
            Entry("topk", Category.ROUTING, 60, Time(3e-6), "routed"),
            Entry("shared_down", Category.GEMM, 60, Time(2e-6), "shared"),
            Entry("o_proj", Category.GEMM, 61, Time(6e-6)),
        )
    )
    found = of_ledger(step)
    assert found[Category.GEMM].seconds == pytest.approx(366e-6)
    assert found[Category.GEMM].calls == 61
    assert found[Category.ROUTING].seconds == pytest.approx(180e-6)
    assert found[Category.ROUTING].calls == 60
