from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.errors import BadInput
from pytest_decodegate.metric import DEFAULT_TOLERANCE, UNITS, Metric, Replicate, parse_tolerance


@given(st.decimals(min_value="0.01", max_value="99.99", places=2))
def test_tolerance_reads_back_what_was_written(percent: object) -> None:
    assert parse_tolerance(f"{percent}%", "here") == pytest.approx(float(str(percent)) / 100)
    assert parse_tolerance(f" {percent} % ", "here") == pytest.approx(float(str(percent)) / 100)


@pytest.mark.parametrize("text", ["5", "-3%", "abc", "", "%", "0%", "100%", "3%%", "nan%", "1e1%", "3 percent"])
def test_tolerance_that_is_no_percentage_is_refused_with_place_and_value(text: str) -> None:
    with pytest.raises(BadInput, match="over there: tolerance") as error:
        parse_tolerance(text, "over there")

    assert repr(text) in str(error.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "Bad Name"}, "metric name 'Bad Name'"),
        ({"name": "../../etc"}, "metric name '../../etc'"),
        ({"unit": "furlong"}, "unknown unit 'furlong'"),
        ({"kind": "magic"}, "unknown kind 'magic'"),
        ({"tolerance": 0.0}, "tolerance 0.0"),
        ({"tolerance": 1.5}, "tolerance 1.5"),
        ({"tolerance": math.nan}, "tolerance nan"),
    ],
)
def test_metric_names_the_field_and_value_it_refuses(change: dict[str, object], said: str) -> None:
    fields: dict[str, object] = {"name": "gemm", "unit": "s", "kind": "kernel", "tolerance": 0.02}
    with pytest.raises(BadInput, match="metric") as error:
        Metric(**{**fields, **change})  # type: ignore[arg-type]

    assert said in str(error.value)


def test_metric_of_takes_the_band_of_its_kind() -> None:
    assert Metric.of("gemm", "kernel").tolerance == DEFAULT_TOLERANCE["kernel"]
    assert Metric.of("gemm", "kernel", tolerance=0.5).tolerance == 0.5


@given(st.floats(min_value=1e-9, max_value=1e9), st.sampled_from(sorted(UNITS)))
def test_seconds_are_lower_is_better_in_every_unit(value: float, unit: str) -> None:
    metric = Metric.of("gemm", "kernel", unit=unit)
    worse = value * 2 if metric.better == "lower" else value / 2
    assert metric.seconds(worse) > metric.seconds(value)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_replicate_refuses_samples_that_are_no_times(bad: float) -> None:
    with pytest.raises(BadInput, match="sample 1 is"):
        Replicate((1.0, bad))


def test_replicate_without_samples_measured_nothing() -> None:
    with pytest.raises(BadInput, match="measured nothing"):
        Replicate(())


@given(st.lists(st.floats(min_value=1e-9, max_value=1e9), min_size=1))
def test_process_value_is_the_median(samples: list[float]) -> None:
    assert Replicate(tuple(samples)).value == statistics.median(samples)
