"""What is said of bytes and operations beside a time."""

from __future__ import annotations

import pytest

from pytest_decodegate.metric import Replicate
from pytest_decodegate.report.rates import client, line, rates


def test_rates_are_medians_over_the_replicates_that_have_them() -> None:
    shares = (0.40, 0.50, 0.48)
    replicates = [Replicate((1.0,), {"memory_share": share, "bytes_s": 4.2e12 * share}) for share in shares]
    achieved = rates([*replicates, Replicate((1.0,), {"warmup_batches": 3, "bytes_s": None})])

    assert achieved == pytest.approx({"memory_share": 0.48, "bytes_s": 2.016e12})
    assert line(achieved) == "2.02 TB/s, 48.0 % of the memory's ceiling"


def test_the_hot_twin_and_the_bus_are_said_where_there_are_any() -> None:
    assert line({"hot_over_cold": 0.945}) == "hot 0.94x"
    assert line({"algbw_bytes_s": 1.9e9, "busbw_bytes_s": 1.9e9}) == "busbw 1.90 GB/s"
    assert line(rates([])) == ""


def test_the_client_is_told_once_by_its_largest_error() -> None:
    seen = [rates([Replicate((1.0,), {"client_error": error})]) for error in (0.0004, -0.007, 0.002)]
    (told,) = client([{}, *seen])
    assert told == "the client reads a known TPOT up to -0.70 % off on this host, subtracted from nothing"
    assert list(client([{}])) == []
