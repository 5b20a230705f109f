import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from foreign import DETAILED, PLAIN, PUBLIC, benchmark_json, changed, imported, nccl_json, source
from foreign_serving import aiperf_json, guidellm_benchmark, guidellm_json, sglang_json
from hypothesis import given, settings
from hypothesis import strategies as st
from stored import baseline, stored, write

from pytest_decodegate.baseline.reader import load
from pytest_decodegate.baseline.store import Store
from pytest_decodegate.cli import BAD_INPUT, main
from pytest_decodegate.client.stream import TPOT_FORMULA
from pytest_decodegate.errors import BadInput
from pytest_decodegate.gate.verdict import identity_differences
from pytest_decodegate.importing.baseline import UserFacts, joined
from pytest_decodegate.metric import Metric


def test_vllm_bench_without_details_is_published_figures() -> None:
    metrics = imported(PLAIN)
    assert list(metrics) == ["tpot[c=2]", "ttft[c=2]", "output_throughput[c=2]"]
    (session,) = metrics["tpot[c=2]"].sessions
    assert session.level == "published"
    assert session.point == json.loads(PLAIN)["median_tpot_ms"] / 1e3
    assert session.recorded.startswith("2026-11-29T22:26:00")
    assert metrics["output_throughput[c=2]"].metric.unit == "tok/s"


def test_vllm_bench_with_details_is_one_window_of_requests() -> None:
    metrics = imported(DETAILED)
    (replicate,) = metrics["tpot[c=2]"].sessions[0].replicates
    assert metrics["tpot[c=2]"].level == "window"
    assert len(replicate.samples) == replicate.facts["requests"] == 6
    # vLLM's own median over requests, by vLLM's own code.
    assert replicate.value * 1e3 == pytest.approx(json.loads(DETAILED)["median_tpot_ms"])
    assert metrics["ttft[c=2]"].sessions[0].values[0] * 1e3 == pytest.approx(json.loads(DETAILED)["median_ttft_ms"])


def test_a_rate_names_the_metric_where_no_concurrency_was_given() -> None:
    assert "tpot[rate=1.5]" in imported(changed(PLAIN, max_concurrency=None, request_rate=1.5))


@pytest.mark.parametrize(
    ("backend", "version", "formula"),
    [
        ("openai", None, "vllm_bench_openai_v1"),
        ("openai-chat", "0.20.0", "vllm_bench_chat_v1"),
        ("openai-chat", "0.26.1", "vllm_bench_chat_v1"),
        ("openai-chat", "0.33.0", "vllm_bench_chat_v3"),
        ("openai-chat", "0.29.0", "vllm_bench_chat_0.29"),
    ],
)
def test_the_formula_follows_client_and_version(backend: str, version: str | None, formula: str) -> None:
    metrics = imported(changed(PLAIN, backend=backend), user=UserFacts(client_version=version))
    assert metrics["tpot[c=2]"].metric.contract["formula"] == formula


def test_a_chat_client_of_unknown_version_is_asked_for() -> None:
    with pytest.raises(BadInput, match=r"0\.json: field 'backend' is 'openai-chat': .*--client-version 0\.33\.0"):
        imported(changed(PLAIN, backend="openai-chat"))


def test_tpot_of_another_formula_is_another_measurement() -> None:
    known = imported(DETAILED)["tpot[c=2]"]
    ours = replace(known.metric, contract={**known.metric.contract, "formula": TPOT_FORMULA})
    assert "contract.formula" in [one.field for one in identity_differences(known, ours, "window")]
    assert not list(identity_differences(known, known.metric, "window"))


def test_compare_refuses_two_formulas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for version in ("0.26.0", "0.33.0"):
        file = tmp_path / f"chat-{version}.json"
        file.write_bytes(changed(DETAILED, backend="openai-chat", label=version))
        asked = ["import", str(file), "--client-version", version, "--stack", f"vllm={version}", "--label", version]
        assert main([*asked, "--out", str(tmp_path / "b")]) == 0

    files = sorted(map(str, (tmp_path / "b" / "unknown").glob("*.json")))
    capsys.readouterr()
    main(["compare", *files, "--change", "vllm"])
    shown = capsys.readouterr().out
    assert "contract.formula: vllm_bench_chat_v1 -> vllm_bench_chat_v3" in shown
    assert "2 CONFOUNDED" in shown  # throughput has no such formula


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"failed": 2}, "field 'failed' is 2: requests failed"),
        ({"completed": 0}, "field 'completed' is 0: nothing"),
        ({"failed": ..., "completed": 5}, "field 'completed' is 5: 6 prompts were sent"),
        ({"errors": ["", "reset by peer"]}, r"field 'errors\[1\]' is 'reset by peer': requests failed"),
        ({"median_tpot_ms": "fast"}, "field 'median_tpot_ms' is 'fast': a finite number above 0"),
        ({"median_tpot_ms": ...}, "field 'median_tpot_ms' is missing"),
        ({"num_prompts": True}, "field 'num_prompts' is True"),
        ({"output_throughput": float("inf")}, "field 'output_throughput' is inf"),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=f"0.json: {message}"):
        imported(changed(PLAIN, **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"itls": [[0.1]]}, "field 'itls' has 1 elements: 6 requests were completed"),
        ({"itls": []}, r"field 'itls' is \[\]: one list for each of 6 requests"),
        ({"itls": [[0.1]] * 5 + [["x"]]}, r"field 'itls\[5\]\[0\]' is 'x': a finite number is needed"),
        ({"ttfts": [0.1] * 5 + [None]}, r"field 'ttfts\[5\]' is None: a finite number is needed"),
        ({"output_lens": [1] * 6, "total_output_tokens": 6}, "no request has two tokens"),
    ],
)
def test_wrong_details_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        imported(changed(DETAILED, **changes))


def test_pytest_benchmark_with_samples_is_a_process() -> None:
    found = joined([source(benchmark_json(with_data=True))], UserFacts(kind="kernel"))
    (one,) = found.metrics.values()
    assert (one.metric.name, one.metric.kind, one.level) == ("tests/test_a.py/test_sort[8]", "kernel", "process")
    assert one.sessions[0].replicates[0].samples == (0.019, 0.02, 0.024)
    assert found.provenance.machine == {"cpu": "A CPU"}
    assert found.provenance.stack["python"] == "3.12.1"
    assert found.provenance.stack["kernel"] == "6.5.0-1025-azure"
    assert found.published == ""


def test_pytest_benchmark_without_samples_is_a_figure() -> None:
    (one,) = imported(benchmark_json(with_data=False)).values()
    assert one.sessions[0].point == 0.02


def test_a_baseline_of_ours_is_none_to_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, baseline(stored(Metric.of("kernel", "kernel"), 1e-5)))
    with pytest.raises(BadInput, match="it is a baseline already"):
        imported(path.read_bytes())


@pytest.mark.parametrize("content", [b"", b"hello", b"[1]", b'{"a": 1}', b"\xff\xfe", b"[" * 100_000])
def test_files_of_no_known_tool(content: bytes) -> None:
    with pytest.raises(BadInput, match=r"0\.json: of no known tool"):
        imported(content)


VALUES = st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text(max_size=3)
JSON = VALUES | st.lists(VALUES, max_size=2) | st.dictionaries(st.text(max_size=2), VALUES, max_size=1)


def _somewhere(document: Any, data: st.DataObject) -> tuple[Any, Any]:
    """An object or list in the document, and a key of it."""
    while True:
        key = data.draw(st.sampled_from(sorted(document) if isinstance(document, dict) else range(len(document))))
        if not isinstance(document[key], dict | list) or not document[key] or data.draw(st.booleans()):
            return document, key

        document = document[key]


CONTENTS = [
    PLAIN,
    DETAILED,
    nccl_json(),
    benchmark_json(with_data=True),
    sglang_json(),
    aiperf_json(),
    guidellm_json(guidellm_benchmark({"type_": "concurrent", "streams": 16})),
]


@settings(max_examples=150)
@given(st.sampled_from(CONTENTS), st.data())
def test_any_damage_to_a_field_is_bad_input_or_harmless(content: bytes, data: st.DataObject) -> None:
    document = json.loads(content)
    inner, key = _somewhere(document, data)
    if data.draw(st.booleans()):
        del inner[key]
    else:
        inner[key] = data.draw(JSON)

    try:
        metrics = imported(json.dumps(document).encode())
    except BadInput as error:
        message = str(error)
    else:
        message = "0.json"
        assert all(value > 0 for one in metrics.values() for value in one.sessions[0].values)

    assert "0.json" in message


def test_several_files_are_several_sessions_or_concurrencies() -> None:
    later = changed(DETAILED, date="20261130-000000")
    metrics = imported(later, DETAILED, changed(DETAILED, max_concurrency=4))
    assert len(metrics["tpot[c=2]"].sessions) == 2
    assert metrics["tpot[c=2]"].sessions[0].recorded < metrics["tpot[c=2]"].sessions[1].recorded
    assert len(metrics["tpot[c=4]"].sessions) == 1


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (
            ((PUBLIC / "pb_py310.json").read_bytes(), (PUBLIC / "pb_py312.json").read_bytes()),
            "1.json: field 'python' is '3.12.0', in another file '3.10.0': a baseline is of one stack",
        ),
        ((DETAILED, DETAILED), "1.json: is given twice"),
        ((DETAILED, changed(PLAIN, max_concurrency=4)), "some of the files have samples"),
        ((DETAILED, changed(DETAILED, model_id="other")), "'contract.model' is 'other', in another result 'paced'"),
        ((nccl_json(), nccl_json(nccl_version=23207, results=[])), "no results"),
        (
            (nccl_json(), nccl_json(nccl_version=23207, args=["broadcast_perf"])),
            "1.json: field 'nccl' is '2.32.7', in another file '2.28.9'",
        ),
    ],
)
def test_files_that_do_not_go_together(contents: tuple[bytes, ...], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        imported(*contents)


@pytest.mark.parametrize(
    "content",
    [PLAIN, DETAILED, nccl_json(), benchmark_json(with_data=True)],
    ids=["vllm", "vllm detailed", "nccl-tests", "pytest-benchmark"],
)
def test_the_command_stores_what_can_be_read_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    file, out = tmp_path / "result.json", tmp_path / "baselines"
    file.write_bytes(content)
    asked = ["import", str(file), "--out", str(out), "--machine-class", "NVIDIA-H200-x2-NVLink"]
    assert main([*asked, "--stack", "driver=580.95", "--label", "mine"]) == 0
    said = capsys.readouterr().out
    (path,) = Store(out).files("NVIDIA-H200-x2-NVLink")
    assert path.name == "0001_mine.json"
    assert f"{path}: " in said
    assert load(path).provenance.stack["driver"] == "580.95"
    assert "driver" not in said.splitlines()[-1]
    assert main(asked) == BAD_INPUT
    assert "holds these sessions already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.json"], "none.json: cannot be read: No such file"),
        (["{}", "--stack", "nccl"], "--stack 'nccl': write NAME"),
    ],
)
def test_wrong_arguments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    file = tmp_path / "result.json"
    file.write_bytes(PLAIN)
    told = [argument.replace("{}", str(file)) for argument in arguments]
    assert main(["import", *told, "--out", str(tmp_path / "b")]) == BAD_INPUT
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("said", "status"), [("2.28.9", 0), ("2.99", BAD_INPUT)])
def test_the_user_may_not_contradict_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], said: str, status: int
) -> None:
    file = tmp_path / "result.json"
    file.write_bytes(nccl_json())
    assert main(["import", str(file), "--stack", f"nccl={said}", "--out", str(tmp_path / "b")]) == status
    if status:
        assert "result.json: field 'nccl' is '2.28.9', but --stack says '2.99'" in capsys.readouterr().err


def test_a_date_that_nobody_knows_is_stored_as_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / name for name in ("dated.json", "undated.json")]
    files[0].write_bytes(PLAIN)
    files[1].write_bytes(changed(PLAIN, date=...))
    for file in files:
        assert main(["import", str(file), "--out", str(tmp_path / "b"), "--label", file.stem]) == 0

    capsys.readouterr()
    for command in ("history", "baselines"):
        asked = ["history", "tpot[c=2]"] if command == "history" else ["baselines"]
        assert main([*asked, "--baselines", str(tmp_path / "b")]) == 0

    shown = capsys.readouterr().out
    undated, dated = (
        next(line for line in shown.splitlines() if f"_{name}.json" in line) for name in ("undated", "dated")
    )
    assert " 2026-11-29 22:26 " in dated
    assert " - " in undated.partition(".json")[0]
    assert shown.index("_undated.json") < shown.index("_dated.json")


def test_what_neither_file_says_is_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("engine_vllm.json", "engine_sgl.json"):
        asked = ["import", str(PUBLIC / name), "--label", name.removesuffix(".json"), "--out", str(tmp_path)]
        assert main(asked) == 0

    capsys.readouterr()
    main(["compare", *sorted(map(str, tmp_path.glob("*/*.json")))])
    shown = capsys.readouterr().out
    assert "unknown on both sides, so not compared: nccl, driver" in shown
    assert "nothing differs" not in shown
    assert "contract.engine: " in shown
    assert "3 CONFOUNDED" in shown
