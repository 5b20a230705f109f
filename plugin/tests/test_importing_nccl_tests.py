"""The JSON and the table of nccl-tests, in the formats of src/util.cu of its 2.19.6."""

from __future__ import annotations

import pytest
from foreign import TABLE_END, TABLE_HEAD, imported, nccl_json, row, source
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.errors import BadInput
from pytest_decodegate.importing.baseline import Told, joined


def test_nccl_tests_json() -> None:
    found = joined([source(nccl_json())], Told())
    out, inside = found.metrics.values()
    assert out.metric.name == "nccl_tests_all_reduce[bytes=14336,type=bfloat16,world=2,op=sum]"
    assert inside.metric.name == "nccl_tests_all_reduce_in_place[bytes=14336,type=bfloat16,world=2,op=sum]"
    assert (out.sessions[0].point, inside.sessions[0].point) == pytest.approx((11.5e-6, 10.5e-6))
    assert out.metric.contract["formula"] == "nccl_tests_time_v1"
    assert found.provenance.stack == {
        "nccl": "2.28.9",
        "driver": "unknown",
        "env:NCCL_ALGO": "Ring",
        "env:NCCL_PROTO": "LL",
    }
    assert found.provenance.machine == {"gpus": [{"name": "NVIDIA H200"}, {"name": "NVIDIA H200"}]}
    assert found.published == "nccl-tests: result.json"


def test_nccl_tests_table() -> None:
    content = TABLE_HEAD + row(14336, (11.25, 11.5)) + row(28672, (12.0, 12.5)) + TABLE_END
    found = joined([source(content.encode())], Told())
    points = {
        name.partition("[")[0] + one.metric.name[-40:]: one.sessions[0].point for name, one in found.metrics.items()
    }
    assert list(points.values()) == pytest.approx([11.25e-6, 11.5e-6, 12.0e-6, 12.5e-6])
    contract = next(iter(found.metrics.values())).metric.contract
    assert (contract["iterations"], contract["graph"]) == (20, True)
    assert found.provenance.stack["nccl"] == "2.28.9"
    assert len(found.metrics) == 4


@given(st.floats(0.01, 9999.0), st.booleans(), st.booleans(), st.sampled_from(["0", "N/A", "0e+00"]))
def test_any_row_of_a_table_is_read(time: float, per_iteration: bool, stamped: bool, wrong: str) -> None:
    stamp = "  2026-01-02 03:04:05" if stamped else ""
    line = row(14336, (time, 2 * time), wrong=wrong, per_iteration=per_iteration, stamp=stamp)
    metrics = imported((TABLE_HEAD + line + TABLE_END).encode())
    assert [one.sessions[0].point for one in metrics.values()] == pytest.approx([time / 1e6, 2 * time / 1e6], abs=6e-9)


def test_a_replay_has_one_half() -> None:
    (name,) = imported((TABLE_HEAD + row(14336, (11.0,)) + TABLE_END).encode())
    assert "in_place" in name


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (nccl_json(results=[]), "no results; was the run cut short"),
        (nccl_json(args=[]), "field 'args' is \\[\\]: the command line"),
        (
            nccl_json(results=[{"size": 8, "type": "float", "redop": "sum", "out_of_place": {"cpu_time": 1}}]),
            "without -C",
        ),
        (
            nccl_json(results=[{"size": 8, "type": "float", "redop": "sum", "out_of_place": {"time": 1, "nwrong": 3}}]),
            "results\\[0\\], out_of_place: field 'nwrong' is 3: the collective gave wrong data",
        ),
        ((TABLE_HEAD + row(8, (1.0, 1.0), wrong="7")).encode(), "line 12: column '#wrong' is '7'"),
        ((TABLE_HEAD + row(8, (0.0001, 1.0)).replace("0.00", "0.00")).encode(), "line 12: column 'time' is '0.00'"),
        ((TABLE_HEAD + row(8, (1.0, 1.0)) * 2).encode(), "occurs twice"),
        (TABLE_HEAD.replace("# Collective", "# ").encode(), "does not say which collective"),
    ],
)
def test_wrong_results_of_nccl_tests_are_named(content: bytes, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        imported(content)
