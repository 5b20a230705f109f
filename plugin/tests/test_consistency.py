"""What a file says twice: edits of either show, unless the reader leaves unread what no verdict rests on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored import MOE, RATE, baseline, stored

from pytest_decodegate.baseline.benchmark_json import dumps
from pytest_decodegate.baseline.reader import load, parse
from pytest_decodegate.errors import BadInput

PATH = Path("0001_a.json")
STATS = ("min", "max", "mean", "median", "stddev", "total", "ops", "rounds", "iterations")


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("outside"))
        return dumps(baseline(stored(MOE, 40e-6), stored(RATE, 80.0, sessions=2)))


@settings(max_examples=60, deadline=None)
@given(
    benchmark=st.integers(0, 1), name=st.sampled_from(STATS), factor=st.floats(1.00001, 10) | st.floats(0.1, 0.99999)
)
def test_an_edited_statistic_is_refused_where_it_is(content: bytes, benchmark: int, name: str, factor: float) -> None:
    document = json.loads(content)
    stats = document["benchmarks"][benchmark]["stats"]
    stats[name] = stats[name] + 1 if name in ("rounds", "iterations") else stats[name] * factor

    with pytest.raises(BadInput, match=rf"/benchmarks/{benchmark}/stats/{name}: .* does not follow from the samples"):
        parse(PATH, json.dumps(document).encode())


@pytest.mark.parametrize(
    ("data", "pointer", "reason"),
    [
        (lambda data: [*data[:3], data[3] * 1.001, *data[4:]], "/data/3", ".* does not follow from the samples"),
        (lambda data: data[:-1], "/data", "9 values, but the sessions hold 10 samples"),
        (lambda data: [*data[:2], "fast", *data[3:]], "/data/2", "Expected `float`, got `str`, found 'fast'"),
        (lambda data: [-1.0, *data[1:]], "/data/0", "Expected `float` > 1e-30, found -1.0"),
        (lambda data: {"all": data}, "/data", "Expected `array`, got `object`"),
    ],
)
def test_an_edited_copy_of_the_samples_is_refused_where_it_is(
    content: bytes, data: Any, pointer: str, reason: str
) -> None:
    document = json.loads(content)
    stats = document["benchmarks"][0]["stats"]
    stats["data"] = data(stats["data"])

    with pytest.raises(BadInput, match=f"/benchmarks/0/stats{pointer}: {reason}"):
        parse(PATH, json.dumps(document).encode())


def test_digits_that_another_tool_rounded_are_no_edit(content: bytes) -> None:
    document = json.loads(content)
    for benchmark in document["benchmarks"]:
        stats = benchmark["stats"]
        stats.update({name: float(f"{stats[name]:.11g}") for name in STATS[:7]})
        stats["data"] = [float(f"{value:.11g}") for value in stats["data"]]

    assert parse(PATH, json.dumps(document).encode()) == parse(PATH, content)


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize(
    ("field", "edited"), [("value", 41e-6), ("samples", [41e-6, 41e-6]), ("samples", []), ("samples", [0.0])]
)
def test_what_a_verdict_rests_on_is_always_checked(
    content: bytes, field: str, edited: object, statistics: bool
) -> None:
    document = json.loads(content)
    document["benchmarks"][0]["extra_info"]["sessions"][0]["replicates"][2][field] = edited

    with pytest.raises(BadInput, match=r"/benchmarks/0/extra_info/sessions/0/replicates/2/(value|samples)"):
        parse(PATH, json.dumps(document).encode(), statistics=statistics)


def test_statistics_can_be_left_unread(content: bytes, tmp_path: Path) -> None:
    document = json.loads(content)
    document["benchmarks"][0]["stats"].update(median=1.0, data=[1.0])
    path = tmp_path / "0001_edited.json"
    path.write_text(json.dumps(document))

    assert load(path, statistics=False).metrics == parse(PATH, content).metrics
    with pytest.raises(BadInput, match="/benchmarks/0/stats/data: 1 values"):
        load(path)
