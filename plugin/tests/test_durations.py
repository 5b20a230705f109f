"""How long metrics took, from the times at which a session stored them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from stored import baseline

from pytest_decodegate.baseline.durations import LONGEST_SECONDS, seconds_by_metric
from pytest_decodegate.baseline.schema import Session, StoredMetric
from pytest_decodegate.metric import Metric, Replicate

START = datetime(2026, 1, 1, tzinfo=UTC)


def stored(name: str, *recordings: tuple[str, float]) -> StoredMetric:
    """A metric with one session for each (id, seconds after START)."""
    sessions = tuple(
        Session(number, (START + timedelta(seconds=seconds)).isoformat(), "process", (Replicate((1.0,)),))
        for number, seconds in recordings
    )
    return StoredMetric(Metric.of(name, "kernel"), sessions)


def test_a_metric_took_from_the_one_before_it_to_its_own_storing() -> None:
    file = baseline(stored("b", ("s1", 30.0)), stored("a", ("s1", 10.0)), stored("c", ("s1", 31.5)))
    assert seconds_by_metric([file]) == {"b": 20.0, "c": 1.5}


def test_the_last_session_that_knows_it_counts_across_files() -> None:
    old = baseline(stored("a", ("s1", 0.0)), stored("b", ("s1", 9.0)))
    new = baseline(stored("a", ("s2", 1000.0)), stored("b", ("s2", 1004.0)))
    assert seconds_by_metric([new, old]) == {"b": 4.0}


def test_a_night_between_two_metrics_is_no_measuring() -> None:
    file = baseline(stored("a", ("s1", 0.0)), stored("b", ("s1", LONGEST_SECONDS + 1)))
    assert seconds_by_metric([file]) == {}
    assert seconds_by_metric([]) == {}
