"""Traces that cannot be trusted are refused with what is wrong and what to do, and never give a whole table."""

from __future__ import annotations

import gzip
import json
import math
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import traces
from hypothesis import given
from hypothesis import strategies as st
from traces import Invented

from pytest_decodegate.errors import BadInput
from pytest_decodegate.profile import json_stream
from pytest_decodegate.profile.reading import read_profile

Document = dict[str, Any]


def one_rank(folder: Path, *edits: Callable[[Document], None]) -> Path:
    return traces.torch_trace(folder / "rank0.json", Invented(world=1), *edits)


def refused(*paths: Path) -> str:
    with pytest.raises(BadInput) as error:
        read_profile(paths)

    assert str(paths[0].parent) in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
def test_truncated_gzip(tmp_path: Path, part: float) -> None:
    whole = traces.torch_trace(tmp_path / "rank0.json.gz", Invented(world=1)).read_bytes()
    cut = tmp_path / "cut.json.gz"
    cut.write_bytes(whole[: int(len(whole) * part)])
    assert "the gzip file is truncated: copy it again" in refused(cut)


def test_damaged_gzip(tmp_path: Path) -> None:
    path = traces.torch_trace(tmp_path / "rank0.json.gz", Invented(world=1))
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    path.write_bytes(damaged)
    assert "the gzip file is damaged" in refused(path)


@pytest.mark.parametrize("part", [0.0001, 0.3, 0.9, 0.9999])
def test_json_that_ends_early(tmp_path: Path, part: float) -> None:
    path = one_rank(tmp_path)
    whole = path.read_text()
    path.write_text(whole[: max(1, int(len(whole) * part))])
    assert "ends in the middle" in refused(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no JSON object"),
        ("[1]", "is no JSON object"),
        ('{"traceEvents": [{"ph": nonsense}]}', "is no JSON"),
        ('{"traceEvents": [{} {}]}', "a comma or ']' should stand here"),
        ('{"traceEvents": [1]}', "an event is '1' where an object should be"),
        ('{"traceEvents": []}', "has no traceEvents"),
        ('{"a": 1}', "has no traceEvents"),
        ('{"a" 1}', "a colon should stand here"),
        ('{"traceEvents": [{}]} more', "more follows"),
        ('{"traceEvents": [{"cat": "cpu_op"}]}', "no GPU events"),
    ],
)
def test_what_is_no_trace(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(text)
    assert said in refused(path)


def test_no_file(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "none.json")


def test_no_gpu_events(tmp_path: Path) -> None:
    def without(document: Document) -> None:
        document["traceEvents"] = [
            event for event in document["traceEvents"] if "cat" not in event or "op" in event["cat"]
        ]

    assert "activities must include CUDA" in refused(one_rank(tmp_path, without))


def test_several_processes_in_one_file(tmp_path: Path) -> None:
    def both(document: Document) -> None:
        other = traces.torch_trace(tmp_path / "other.json", Invented(rank=1, world=2))
        document["traceEvents"] += json.loads(other.read_text())["traceEvents"]

    said = refused(one_rank(tmp_path, both))
    assert "holds kernels of GPU 0 and of GPU 1" in said
    assert "one a rank" in said


def test_two_processes_that_call_their_gpu_the_same(tmp_path: Path) -> None:
    def both(document: Document) -> None:
        for process in (17, 18):
            labels = {"ph": "M", "name": "process_labels", "pid": process, "tid": 0, "args": {"labels": "CPU"}}
            document["traceEvents"] += [labels, labels]

    assert "is of processes 17 and 18" in refused(one_rank(tmp_path, both))


def test_a_missing_rank(tmp_path: Path) -> None:
    path = traces.two_ranks(tmp_path)[1]
    assert "its run has 2 ranks, and rank(s) 0 have no file" in refused(path)
    profile = read_profile([path], missing_allowed=True).profile
    assert profile.partial
    assert profile.missing == (0,)


def test_one_rank_twice(tmp_path: Path) -> None:
    first, _ = traces.two_ranks(tmp_path)
    assert "are both of rank 0" in refused(first, first)


def test_a_rank_that_nothing_names(tmp_path: Path) -> None:
    def silent(document: Document) -> None:
        del document["distributedInfo"]

    paths = [traces.torch_trace(tmp_path / f"{name}.json", Invented(), silent) for name in "ab"]
    assert "does not say which rank it is of" in refused(*paths)


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (Invented(rank=1, period_us=1100), "do not end together"),
        (Invented(rank=1, offset_us=40e6), "do not end together"),
        (Invented(rank=1, layers=4), "do not end together"),
        (Invented(rank=1, world=4), "are of two runs: ranks is 2 and 4"),
        (Invented(rank=1, extra=((traces.MARLIN, 3.0),)), "MoE GEMM on one rank and"),
    ],
    ids=["other periods", "later", "deeper", "other world", "other kernels"],
)
def test_ranks_of_different_runs(tmp_path: Path, second: Invented, said: str) -> None:
    first = traces.torch_trace(tmp_path / "rank0.json", Invented(rank=0, steps=12))
    other = traces.torch_trace(tmp_path / "rank1.json", Invented(**{**vars(second), "steps": 12}))
    assert said in refused(first, other)


def test_another_nccl(tmp_path: Path) -> None:
    def newer(document: Document) -> None:
        document["distributedInfo"]["nccl_version"] = "2.31.2"

    first, _ = traces.two_ranks(tmp_path)
    second = traces.torch_trace(tmp_path / "rank1.json", Invented(rank=1), newer)
    assert "are of two runs: nccl is '2.28.9' and '2.31.2'" in refused(first, second)


@pytest.mark.parametrize(
    ("field", "value"),
    [("ts", -5.0), ("ts", 1.8e19), ("dur", -1.0), ("dur", 1.8e16), ("ts", math.nan)],
)
def test_impossible_times(tmp_path: Path, field: str, value: float) -> None:
    def wrong(document: Document) -> None:
        document["traceEvents"][5][field] = value

    assert "no such time" in refused(one_rank(tmp_path, wrong))


def test_a_clock_that_wraps(tmp_path: Path) -> None:
    """Half the trace is 2**32 us later: a 32-bit counter that overflowed."""

    def wrapped(document: Document) -> None:
        for event in document["traceEvents"][30:]:
            if "ts" in event:
                event["ts"] += 2**32

    assert "timestamps wrapped or are of two clocks" in refused(one_rank(tmp_path, wrapped))


@pytest.mark.parametrize("missing", ["ts", "dur", "name"])
def test_a_kernel_without_a_field(tmp_path: Path, missing: str) -> None:
    def wrong(document: Document) -> None:
        del document["traceEvents"][5][missing]

    assert "a GPU event without usable" in refused(one_rank(tmp_path, wrong))


def test_no_decode_step(tmp_path: Path) -> None:
    def prefills(document: Document) -> None:
        for event in document["traceEvents"]:
            event["name"] = event["name"].replace("context_0(0)_generation_1(1)", "context_1(7)_generation_1(1)")

    assert "no decode step in it (" in refused(one_rank(tmp_path, prefills))


def test_no_pattern(tmp_path: Path) -> None:
    path = traces.torch_trace(tmp_path / "rank0.json", Invented(world=1, steps=1), annotated=False)
    assert "no decode steps found" in refused(path)


def test_graphs_of_nsys_without_their_kernels(tmp_path: Path) -> None:
    path = traces.nsys_export(tmp_path / "x.sqlite", [Invented(world=1)])
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER)")
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (1)")

    assert "--cuda-graph-trace=node" in refused(path)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL", "no GPU events"),
        ("DROP TABLE StringIds", "no export of nsys"),
        ("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN streamId", "no usable nsys export"),
    ],
)
def test_databases_that_are_no_export(tmp_path: Path, statement: str, said: str) -> None:
    path = traces.nsys_export(tmp_path / "x.sqlite", [Invented(world=1)])
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(statement)

    assert said in refused(path)


def test_a_truncated_export(tmp_path: Path) -> None:
    path = traces.nsys_export(tmp_path / "x.sqlite", [Invented(world=1)])
    path.write_bytes(path.read_bytes()[:5000])
    assert "no usable nsys export" in refused(path)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.lists(values), st.dictionaries(st.text(), values, max_size=3), st.sampled_from([None, 1]), st.integers(1, 40))
def test_streaming_reads_what_json_reads(
    tmp_path_factory: pytest.TempPathFactory, items: list[Any], others: Document, indent: int | None, window: int
) -> None:
    document = {**others, "events": items, "last": 12345}
    path = tmp_path_factory.mktemp("stream") / "x.json"
    path.write_text(json.dumps(document, indent=indent))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_stream, "_WINDOW", window)  # values then end anywhere in it
        found = list(json_stream.members(path, "events"))

    assert [value for _, value, is_item in found if is_item] == document["events"]
    assert {key: value for key, value, is_item in found if not is_item} == {
        key: value for key, value in document.items() if key != "events"
    }


def test_a_value_without_an_end_is_not_read_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "_MOST_ITEM", 1000)
    monkeypatch.setattr(json_stream, "_WINDOW", 100)
    path = tmp_path / "rank0.json"
    with gzip.open(path, "wt") as file:
        file.write('{"traceEvents": [{"name": "' + "x" * 5000 + '"}]}')

    assert "one value of more than 1000 characters" in refused(path)
