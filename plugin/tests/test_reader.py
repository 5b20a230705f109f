"""Reading baselines: what was written comes back equal, and anything else is refused by pointer."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_decodegate.baseline.benchmark_json import dumps
from pytest_decodegate.baseline.reader import load
from pytest_decodegate.baseline.schema import Baseline, Session, StoredMetric
from pytest_decodegate.errors import BadInput
from pytest_decodegate.machine.provenance import Provenance
from pytest_decodegate.metric import DEFAULT_TOLERANCE, UNITS, Json, Level, Metric, Replicate
from pytest_decodegate.printable import printable

RECORDED = "2026-01-01T12:00:00+00:00"


def session(name: str, *samples: tuple[float, ...]) -> Session:
    return Session(name, RECORDED, "process", tuple(map(Replicate, samples)), {"sm_mhz": 1965})


GEMM = StoredMetric(
    Metric("gemm[m=1]", "s", "kernel", 0.02, {"clock": "cuda_event"}),
    (session("s1", (1.2e-5, 1.3e-5), (1.25e-5,)), session("s2", (1.1e-5, 1.4e-5))),
)
TPOT = StoredMetric(Metric("decode", "tok/s", "serving", 0.03), (session("s1", (80.0, 82.0), (81.0, 79.5)),))
PROVENANCE = Provenance({"gpus": [{"name": "H200"}], "cpu": "x"}, {"nccl": "2.28.9", "cuda": None}, {})
BASELINE = Baseline(Path("b.json"), "H200-x2", "vllm", PROVENANCE, {"gemm[m=1]": GEMM, "decode": TPOT})


def texts(min_size: int = 0, max_size: int | None = None) -> st.SearchStrategy[str]:
    """Texts that can be shown; others do not come back as they were written."""
    seen = st.characters(exclude_categories=("Cc", "Cf", "Cs", "Zl", "Zp"))
    return st.text(seen, min_size=min_size, max_size=max_size).filter(lambda text: printable(text) == text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1e300, 1e300) | texts(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts(max_size=5), inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(texts(max_size=8), json_values, max_size=3)
replicates = st.builds(Replicate, st.lists(st.floats(1e-12, 1e12), min_size=1, max_size=5).map(tuple), objects)


@st.composite
def stored_metrics(draw: st.DrawFn, name: str) -> StoredMetric:
    metric = Metric(
        name,
        draw(st.sampled_from(sorted(UNITS))),
        draw(st.sampled_from(sorted(DEFAULT_TOLERANCE))),
        draw(st.floats(0.001, 0.9)),
        draw(objects),
    )
    levels: list[Level] = ["process", "gang", "window", "server"]
    level = draw(st.sampled_from(levels))
    names = draw(st.lists(texts(min_size=1, max_size=5), min_size=1, max_size=3, unique=True))
    some = st.lists(replicates, min_size=1, max_size=3).map(tuple)
    return StoredMetric(metric, tuple(Session(one, RECORDED, level, draw(some), draw(objects)) for one in names))


@st.composite
def baselines(draw: st.DrawFn) -> Baseline:
    names = draw(st.lists(st.from_regex(r"[a-z0-9][a-z0-9_.=]{0,6}", fullmatch=True), max_size=3, unique=True))
    metrics = {name: draw(stored_metrics(name)) for name in names}
    provenance = Provenance(draw(objects), draw(objects), {})
    return Baseline(Path("x"), draw(texts(min_size=1, max_size=9)), draw(texts(max_size=9)), provenance, metrics)


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

    assert load(path) == replace(baseline, path=path)


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


S0 = "/benchmarks/0/extra_info/sessions/0"
EDITS: list[tuple[str, Json | float, str]] = [
    ("/decodegate/schema", 3, "version 3 is not 2"),
    ("/decodegate/schema", "1", "version '1' is not 2"),
    ("/decodegate/machine_class", "", "length >= 1, found ''"),
    ("/decodegate/provenance", {"machine": {}}, "field 'stack' must be an object"),
    ("/decodegate/provenance/stack/nccl", float("nan"), "nan is no JSON number"),
    ("/benchmarks/0/name", "Gemm M=1", "use lower-case letters"),
    ("/benchmarks/0/fullname", "other", "'other' is not the name 'gemm[m=1]'"),
    ("/benchmarks/1/name", "gemm[m=1]", "metric 'gemm[m=1]' occurs twice"),
    ("/benchmarks/0/stats/min", float("nan"), "nan is no JSON number"),
    ("/benchmarks/0/stats/max", float("inf"), "inf is no JSON number"),
    ("/benchmarks/0/stats/min", -1.0, "found -1.0"),
    ("/benchmarks/0/stats/min", 1.05e-5, "1.05e-05 does not follow from the samples; they give 1.1e-05"),
    ("/benchmarks/0/stats/max", 1e-3, "edited by hand?"),
    ("/benchmarks/0/stats/mean", 1.2e-5, "edited by hand?"),
    ("/benchmarks/0/stats/median", 1.2e-5, "edited by hand?"),
    ("/benchmarks/0/stats/stddev", 0.0, "edited by hand?"),
    ("/benchmarks/0/stats/total", 1.0, "edited by hand?"),
    ("/benchmarks/1/stats/ops", 1.0, "edited by hand?"),
    ("/benchmarks/0/stats/rounds", 6, "edited by hand?"),
    ("/benchmarks/0/stats/iterations", 2, "edited by hand?"),
    ("/benchmarks/0/stats/median", "fast", "Expected `float`, got `str`, found 'fast'"),
    ("/benchmarks/0/stats/data", [], "0 values, but the sessions hold 5 samples"),
    ("/benchmarks/1/stats/data/2", 0.5, "they give 0.0123"),
    ("/benchmarks/0/extra_info/unit", "ms", "unknown unit 'ms'; known units are s, tok/s, B/s"),
    ("/benchmarks/0/extra_info/better", "higher", "'higher', but 'lower' is better for 's'"),
    ("/benchmarks/0/extra_info/kind", "gpu", "Invalid enum value 'gpu'"),
    ("/benchmarks/0/extra_info/tolerance", 0, "found 0"),
    ("/benchmarks/0/extra_info/tolerance", 5, "found 5"),
    ("/benchmarks/0/extra_info/tolerance", "2%", "Expected `float`, got `str`"),
    ("/benchmarks/0/extra_info/sessions", [], "Expected `array` of length >= 1"),
    (f"{S0}/id", "", "found ''"),
    ("/benchmarks/0/extra_info/sessions/1/id", "s1", "session 's1' occurs twice"),
    ("/benchmarks/0/extra_info/sessions/1/level", "gang", "'gang' differs from 'process' of the first"),
    (f"{S0}/level", "host", "Invalid enum value 'host'"),
    (f"{S0}/recorded", "yesterday", "'yesterday' is no ISO 8601 time"),
    (f"{S0}/recorded", "2026-01-01T12:00:00", "with an offset"),
    (f"{S0}/replicates", [], "no replicate, so nothing was measured"),
    (f"{S0}/replicates/0/samples", [], "Expected `array` of length >= 1"),
    (f"{S0}/replicates/0/samples/1", -1.3e-5, "found -1.3e-05"),
    (f"{S0}/replicates/0/samples/1", 10**400, "Number out of range"),
    (f"{S0}/replicates/0/value", 1.2e-5, "edited by hand?"),
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
        ("/benchmarks/0/stats/data", "/benchmarks/0/stats", "missing required field `data`"),
        (f"{S0}/replicates/0/facts", f"{S0}/replicates/0", "missing required field `facts`"),
    ],
)
def test_a_missing_field_is_named(tmp_path: Path, document: Any, pointer: str, named: str, reason: str) -> None:
    container, key = at(document, pointer)
    del container[key]

    message = refusal(tmp_path / "b.json", document)

    assert f": {named}: " in message
    assert reason in message


def test_an_unknown_field_of_ours_is_refused(tmp_path: Path, document: Any) -> None:
    document["benchmarks"][0]["extra_info"]["tolerence"] = 0.5

    assert "/benchmarks/0/extra_info: Object contains unknown field `tolerence`" in refusal(tmp_path / "b", document)


def test_an_unknown_field_of_others_is_kept_out_of_the_way(tmp_path: Path, document: Any) -> None:
    document["machine_info"]["extra"] = document["benchmarks"][0]["stats"]["extra"] = "x"
    path = tmp_path / "b.json"
    path.write_text(json.dumps(document), encoding="utf-8")

    assert load(path) == replace(BASELINE, path=path)


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
