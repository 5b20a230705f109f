"""The order of perf tests: cheap ones first, files together, and nothing moves where no cost is known."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_host import without_ranks
from stored import baseline, write

from pytest_decodegate.baseline.schema import Session, StoredMetric
from pytest_decodegate.machine.fingerprint import machine
from pytest_decodegate.metric import Metric, Replicate
from pytest_decodegate.session import order


class Item:
    """A test of a file; metric: what it declares, "" for a test that is no perf test."""

    def __init__(self, file: str, metric: str) -> None:
        self.path, self.metric = Path(file), metric

    def get_closest_marker(self, name: str) -> object:
        return self.metric or None


def ordered(items: list[Any], seconds: dict[str, float]) -> list[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "declared_metrics", lambda item: SimpleNamespace(names=(item.metric,)))
        items = list(items)
        order.cheap_first(items, seconds)

    return items


def metrics(items: list[Any]) -> list[str]:
    return [item.metric for item in items]


def test_files_are_sorted_by_what_they_cost_and_stay_together() -> None:
    items = [Item("tpot.py", "tpot"), Item("kernels.py", "slow"), Item("kernels.py", "fast"), Item("kernels.py", "new")]
    assert metrics(ordered(items, {"tpot": 300.0, "slow": 9.0, "fast": 2.0})) == ["fast", "slow", "new", "tpot"]


def test_where_no_cost_is_known_nothing_moves() -> None:
    items = [Item("b.py", "b"), Item("a.py", "a")]
    assert metrics(ordered(items, {"elsewhere": 1.0})) == ["b", "a"]


names = st.sampled_from(["", "a", "b", "c", "d"])


@given(st.lists(st.tuples(st.sampled_from("xyz"), names)), st.dictionaries(names, st.floats(0.1, 1e3)))
def test_no_test_is_lost_and_other_tests_stay_where_they_are(
    tests: list[tuple[str, str]], seconds: dict[str, float]
) -> None:
    before = [Item(file, metric) for file, metric in tests]
    after = ordered(before, seconds)
    assert sorted(map(id, after)) == sorted(map(id, before))
    others = [(place, item) for place, item in enumerate(before) if not item.metric]
    assert [(place, item) for place, item in enumerate(after) if not item.metric] == others
    files = [item.path for item in after if item.metric]
    begun = [path for place, path in enumerate(files) if place == 0 or files[place - 1] != path]
    is_known = any(item.metric in seconds for item in before if item.metric)
    assert not is_known or len(begun) == len(set(begun))


def at(recorded: tuple[str, int]) -> StoredMetric:
    name, seconds = recorded
    when = (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)).isoformat()
    session = Session("s1", when, "process", (Replicate((1.0, 1.1)), Replicate((1.0, 1.2))))
    return StoredMetric(Metric.of(name, "cpu"), (session,))


TESTS = """
    import pytest
    from pytest_decodegate.measure.source import Taken
    from pytest_decodegate.metric import Metric, Replicate

    class Source:
        level = "process"

        def take(self, count):
            return Taken("process", tuple(Replicate((1.0, 1.1, 1.2, 1.05)) for _ in range(count)))

    @pytest.mark.perf(metric="m{n}")
    @pytest.mark.parametrize("n", [1, 2, 3])
    def test_m(perf, n):
        perf.gate(Metric.of(f"m{n}", "cpu"), Source())
"""


def test_a_run_measures_what_was_cheap_to_record_first(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_ranks(monkeypatch)
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(test_it=TESTS)
    recorded = {"m1": 0, "m2": 100, "m3": 101}  # what passed between two recordings is what the second one took
    here = machine().machine_class
    write(pytester.path / "baselines" / here, baseline(*map(at, recorded.items()), machine_class=here))
    again = pytester.runpytest_inprocess("-m", "perf", "-v", "--perf-budget=3m")
    named = [line.split()[0].rpartition("::")[2] for line in again.outlines if line.startswith("test_it.py::")]
    begun = list(dict.fromkeys(named))
    assert begun == ["test_m[3]", "test_m[1]", "test_m[2]"]
    again.stdout.fnmatch_lines(
        ["perf: metrics that are open after 5 replicates may take 3 min more in all (--perf-budget), the cheap ones *"]
    )
