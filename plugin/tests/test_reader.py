"""Reading baselines: what was written comes back equal, and anything else is refused by pointer."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from stored import kept, sealed
from strategies import RECORDED, baselines

from pytest_decodegate.baseline.benchmark_json import dumps
from pytest_decodegate.baseline.reader import load
from pytest_decodegate.baseline.schema import Baseline, Session, StoredMetric
from pytest_decodegate.errors import BadInput
from pytest_decodegate.machine.provenance import Provenance
from pytest_decodegate.metric import Json, Metric, Replicate


def session(name: str, *samples: tuple[float, ...]) -> Session:
    return Session(name, RECORDED, "process", tuple(map(Replicate, samples)), {"sm_mhz": 1965})


GEMM = StoredMetric(
    Metric("gemm[m=1]", "s", "kernel", 0.02, {"clock": "cuda_event"}),
    (session("s1", (1.2e-5, 1.3e-5), (1.25e-5,)), session("s2", (1.1e-5, 1.4e-5))),
)
TPOT = StoredMetric(Metric("decode", "tok/s", "serving", 0.03), (session("s1", (80.0, 82.0), (81.0, 79.5)),))
PROVENANCE = Provenance({"gpus": [{"name": "H200"}], "cpu": "x"}, {"nccl": "2.28.9", "cuda": None}, {})
BASELINE = Baseline(Path("b.json"), "H200-x2", "vllm", PROVENANCE, {"gemm[m=1]": GEMM, "decode": TPOT})


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Outside of any repository, where `commit_info` is cheap and says "unversioned"."""
    return tmp_path_factory.mktemp("scratch")


@settings(max_examples=60, deadline=None)
@given(baseline=baselines())
def test_what_is_written_comes_back_equal(scratch: Path, baseline: Baseline) -> None:
    path = scratch / "round_trip.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(scratch)
        path.write_bytes(dumps(baseline))

    assert load(path) == replace(kept(baseline), path=path)


@pytest.fixture
def document(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.chdir(tmp_path)
    return json.loads(dumps(BASELINE))


def refusal(path: Path, document: Any) -> str:
    """The message, after a check that the file is as it was."""
    path.write_text(json.dumps(document), encoding="utf-8")
    before = path.read_bytes()
    with pytest.raises(BadInput) as caught:
        load(path)

    assert path.read_bytes() == before
    return str(caught.value)


def at(document: Any, pointer: str) -> tuple[Any, Any]:
    """The container and the key that a JSON pointer names."""
    *parents, last = pointer.removeprefix("/").split("/")
    for key in parents:
        document = document[int(key) if isinstance(document, list) else key]

    return document, int(last) if isinstance(document, list) else last


M0 = "/decodegate/metrics/gemm[m=1]"
E0 = "/benchmarks/0/extra_info"
EDITS: list[tuple[str, Json | float, str]] = [
    ("/decodegate/schema", 4, "version 4 is not 3"),
    ("/decodegate/schema", "1", "version '1' is not 3"),
    ("/decodegate/schema", 2, "rewrite it once with `decodegate baselines rewrite FILE --why TEXT`"),
    ("/decodegate/machine_class", "", "length >= 1, found ''"),
    ("/decodegate/provenance", {"machine": {}}, "field 'stack' must be an object"),
    ("/decodegate/provenance/stack/nccl", float("nan"), "nan is no JSON number"),
    ("/benchmarks/0/name", "Gemm M=1", "'Gemm M=1' is none of /decodegate/metrics"),
    ("/benchmarks/0/fullname", "other", "'other' is not the name 'gemm[m=1]'"),
    ("/benchmarks/0/stats/min", float("nan"), "nan is no JSON number"),
    ("/benchmarks/0/stats/max", float("inf"), "inf is no JSON number"),
    ("/benchmarks/0/stats/min", -1.0, "found -1.0"),
    ("/benchmarks/0/stats/median", "fast", "Expected `float`, got `str`, found 'fast'"),
    ("/benchmarks/0/stats/rounds", 0, "found 0"),
    (f"{M0}/unit", "ms", "unknown unit 'ms'; known units are s, tok/s, B/s"),
    (f"{M0}/better", "higher", "'higher', but 'lower' is better for 's'"),
    (f"{M0}/kind", "gpu", "Invalid enum value 'gpu'"),
    (f"{M0}/tolerance", 0, "found 0"),
    (f"{M0}/tolerance", 5, "found 5"),
    (f"{M0}/tolerance", "2%", "Expected `float`, got `str`"),
    (f"{M0}/accepted", "s9", "'s9' is the id of no session"),
    (f"{E0}/session", "", "length >= 1, found ''"),
    (f"{E0}/session", "s9", "'s9' is none of /decodegate/sessions"),
    ("/benchmarks/1/extra_info/session", "s1", "session 's1' of 'gemm[m=1]' occurs twice"),
    ("/benchmarks/1/extra_info/level", "gang", "'gang' differs from 'process' of the first"),
    (f"{E0}/level", "host", "Invalid enum value 'host'"),
    (f"{E0}/recorded", "yesterday", "'yesterday' is no ISO 8601 time"),
    (f"{E0}/recorded", "2026-01-01T12:00:00", "with an offset"),
    (f"{E0}/values", [], "no replicate, so nothing was measured"),
    (f"{E0}/values/1", -1.3e-5, "found -1.3e-05"),
    (f"{E0}/values/1", 10**400, "Number out of range"),
    (f"{E0}/facts", [{}], "1, but there are 2 values"),
]


@pytest.mark.parametrize(("pointer", "value", "reason"), EDITS)
def test_an_edit_is_refused_where_it_is(
    tmp_path: Path, document: Any, pointer: str, value: Json | float, reason: str
) -> None:
    container, key = at(document, pointer)
    container[key] = value

    message = refusal(tmp_path / "b.json", document)

    assert message.startswith(f"{tmp_path / 'b.json'}: {pointer}: ")
    assert reason in message
    assert message.endswith("record again with `pytest -m perf --perf-record=all`")


@pytest.mark.parametrize(
    ("pointer", "named", "reason"),
    [
        ("/decodegate", "/decodegate", "this is no decodegate baseline"),
        ("/decodegate/schema", "/decodegate/schema", "version None"),
        ("/benchmarks", "/", "missing required field `benchmarks`"),
        ("/benchmarks/1/extra_info", "/benchmarks/1", "missing required field `extra_info`"),
        ("/benchmarks/0/stats/q1", "/benchmarks/0/stats", "missing required field `q1`"),
        ("/decodegate/digest", "/decodegate", "missing required field `digest`"),
        (f"{M0}/contract", M0, "missing required field `contract`"),
        (f"{E0}/level", E0, "missing required field `level`"),
        (f"{E0}/values", f"{E0}/values", "no replicate, so nothing was measured"),
        ("/decodegate/sessions/s1", f"{E0}/session", "'s1' is none of /decodegate/sessions"),
        (M0, "/benchmarks/0/name", "'gemm[m=1]' is none of /decodegate/metrics"),
    ],
)
def test_a_missing_field_is_named(tmp_path: Path, document: Any, pointer: str, named: str, reason: str) -> None:
    container, key = at(document, pointer)
    del container[key]

    message = refusal(tmp_path / "b.json", document)

    assert f": {named}: " in message
    assert reason in message


def test_an_unknown_field_of_ours_is_refused(tmp_path: Path, document: Any) -> None:
    document["benchmarks"][0]["extra_info"]["valeus"] = 0.5

    assert "/benchmarks/0/extra_info: Object contains unknown field `valeus`" in refusal(tmp_path / "b", document)


def test_an_unknown_field_of_others_is_kept_out_of_the_way(tmp_path: Path, document: Any) -> None:
    document["machine_info"]["extra"] = document["benchmarks"][0]["extra"] = "x"
    path = tmp_path / "b.json"
    path.write_bytes(sealed(document))

    assert load(path) == replace(kept(BASELINE), path=path)


def test_a_metric_that_no_benchmark_measures_is_refused(tmp_path: Path, document: Any) -> None:
    document["benchmarks"] = [one for one in document["benchmarks"] if one["name"] == "decode"]
    message = refusal(tmp_path / "b.json", document)
    assert f": {M0}: no benchmark has this name, so nothing was measured" in message


@pytest.mark.parametrize("document", [[], 3, None, "text", {"benchmarks": []}])
def test_other_json_is_no_baseline(tmp_path: Path, document: Json) -> None:
    assert ": /decodegate: missing, so this is no decodegate baseline" in refusal(tmp_path / "b.json", document)


def truncated(content: bytes) -> bytes:
    return content[: len(content) // 2]


@pytest.mark.parametrize(
    "spoil",
    [truncated, lambda content: b"", lambda content: b"\xff" + content, lambda content: b"[" * 200_000],
    ids=["truncated", "empty", "not UTF-8", "too deep"],
)
def test_what_is_not_json_is_refused(tmp_path: Path, document: Any, spoil: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "b.json"
    path.write_bytes(spoil(json.dumps(document).encode()))

    with pytest.raises(BadInput, match=r"b\.json: not JSON, perhaps cut short: .*; restore the file"):
        load(path)


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"missing\.json: cannot be read: No such file or directory; check the path"):
        load(tmp_path / "missing.json")
    with pytest.raises(BadInput, match="cannot be read: Is a directory"):
        load(tmp_path)
