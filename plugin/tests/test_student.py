"""Quantiles of Student's t against scipy's and against published tables."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtrit

from pytest_decodegate.gate.stats.student import NEARLY_NORMAL_DF, t_quantile

degrees = st.floats(0.5, 1e6)


# Standard tables, e.g. NIST/SEMATECH e-Handbook 1.3.6.7.2.
@pytest.mark.parametrize(
    ("probability", "df", "expected"),
    [(0.975, 8, 2.306), (0.975, 1, 12.706), (0.99, 10, 2.764), (0.975, 30, 2.042), (0.975, math.inf, 1.960)],
)
def test_it_is_the_tabulated_one(probability: float, df: float, expected: float) -> None:
    assert t_quantile(probability, df) == pytest.approx(expected, abs=5e-4)


@given(probability=st.floats(0.51, 1 - 1e-6), df=degrees)
def test_it_is_scipys(probability: float, df: float) -> None:
    assert t_quantile(probability, df) == pytest.approx(float(stdtrit(df, probability)), rel=1e-8)


@given(probability=st.floats(0.501, 0.9999), df=degrees)
def test_it_is_symmetric(probability: float, df: float) -> None:
    assert t_quantile(1 - probability, df) == pytest.approx(-t_quantile(probability, df), rel=1e-9)


@pytest.mark.parametrize("df", [0.5, 8.0, 1e5])
def test_the_middle_is_zero(df: float) -> None:
    assert t_quantile(0.5, df) == 0


def test_both_ways_of_computing_meet() -> None:
    below, above = (t_quantile(0.975, NEARLY_NORMAL_DF + step) for step in (-1e-9, 1e-9))

    assert below == pytest.approx(above, rel=1e-10)
