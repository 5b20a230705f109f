"""Numbers as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.gate.text.quantity import (
    format_band,
    format_interval,
    format_percent,
    format_value,
    rounded_up_band,
)
from pytest_decodegate.metric import UNITS


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (78.1e-6, "s", "78.1 us"),
        (12.12e-3, "s", "12.1 ms"),
        (1.5, "s", "1.50 s"),
        (3.2e-10, "s", "0.32 ns"),
        (82.4, "tok/s", "82.4 tok/s"),
        (12345.6, "tok/s", "12346 tok/s"),
        (3.35e12, "B/s", "3.35 TB/s"),
        (42.5e9, "B/s", "42.5 GB/s"),
        (12.0, "B/s", "12.0 B/s"),
    ],
)
def test_a_value_has_three_digits_and_a_fitting_prefix(value: float, unit: str, text: str) -> None:
    assert format_value(value, unit) == text


@pytest.mark.parametrize("unit", UNITS)
def test_every_unit_can_be_written(unit: str) -> None:
    assert format_value(1.0, unit).endswith(unit)


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(0.052, "+5.2 %"), (-0.0031, "-0.31 %"), (0.0, "+0.00 %"), (-0.000001, "+0.00 %"), (1.5, "+150.0 %")],
)
def test_a_change_has_its_sign(fraction: float, text: str) -> None:
    assert format_percent(fraction) == text


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(0.0302, "+3.02 %"), (-0.02996, "-2.996 %"), (0.030000001, "+3.0000 %"), (0.03, "+3.0 %"), (0.031, "+3.1 %")],
)
def test_a_change_near_the_band_has_the_digits_that_tell_it_from_the_band(fraction: float, text: str) -> None:
    assert format_percent(fraction, beside=0.03) == text
    assert format_interval(fraction, 0.2, beside=0.03) == f"{text} .. +20.0 %"


def test_a_size_has_none() -> None:
    assert format_percent(0.003, signed=False) == "0.30 %"


@pytest.mark.parametrize(("tolerance", "text"), [(0.02, "2 %"), (0.025, "2.5 %"), (0.07, "7 %")])
def test_a_band_is_written_as_it_was_typed(tolerance: float, text: str) -> None:
    assert format_band(tolerance) == text


@given(st.floats(0, 2))
def test_a_proposed_band_is_wide_enough_and_short_to_type(tolerance: float) -> None:
    band = rounded_up_band(tolerance)

    assert tolerance < band <= tolerance + 0.0011
    assert band == round(band, 3)
