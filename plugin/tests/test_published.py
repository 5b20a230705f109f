"""Published figures: a file of points, what may be compared with it, and that nobody takes it for statistics."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_nvml import BLACKWELL
from scripted import ScriptedServer, as_asked
from scripted_host import host, run_on
from suite_metrics import suite_metrics

from pytest_decodegate.baseline.benchmark_json import dumps
from pytest_decodegate.baseline.reader import load, parse
from pytest_decodegate.baseline.schema import Baseline
from pytest_decodegate.baseline.selection import contrast
from pytest_decodegate.baseline.store import Store
from pytest_decodegate.errors import BadInput
from pytest_decodegate.gate.text.explain import explain
from pytest_decodegate.gate.verdict import Judgement, Verdict, judge
from pytest_decodegate.importing.serving_result import load_of
from pytest_decodegate.machine.provenance import Provenance
from pytest_decodegate.metric import Json, Measurement, Metric, Replicate
from pytest_decodegate.profile.categories import Category

BASELINES = Path(__file__).parents[2] / "baselines"
CLASS = "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition-x8-PCIe"
FILE = BASELINES / CLASS / "0000_published.json"
MODEL = "moonshotai/Kimi-K2.5"
GPU: Mapping[str, Json] = {"name": "RTX PRO 6000 Blackwell Server Edition", "memory_gib": 96, "power_limit_w": 600}
HOST = Provenance({"gpus": [dict(GPU)] * 8, "link": "PCIe-SYS"}, {"nccl": "2.28.9", "driver": "580"}, {})
CONTRACT: Mapping[str, Json] = {"model": MODEL, "concurrency": 1, "formula": "tpot_client_v1", "output_tokens": 128}
TPOT = Metric("tpot[c=1]", "s", "serving", 0.03, CONTRACT)

# The write-up's own table: metric, value in the metric's unit, share of CUDA time.
FIGURES = [
    ("tpot[c=1]", 12.1e-3, None),
    ("output_throughput[c=1]", 82.0, None),
    ("throughput_plateau", 1536.0, None),
    ("cuda_time[allreduce]", 11.17e-3, 0.515),
    ("cuda_time[attention]", 3.32e-3, 0.153),
    ("cuda_time[gemm]", 2.90e-3, 0.134),
    ("cuda_time[moe_gemm]", 2.40e-3, 0.111),
    ("cuda_time[routing]", 0.99e-3, 0.045),
    ("cuda_time[rest]", 0.92e-3, 0.042),
    ("cuda_time[total]", 21.7e-3, 1.0),
    ("allreduce_nccl_call", 78e-6, None),
    ("allreduce_custom_call", 1125e-6, None),
]


def measured(seconds: float, metric: Metric = TPOT) -> Measurement:
    factors = (1.0, 1.002, 0.998)
    return Measurement(metric, tuple(Replicate((seconds * one, seconds * one * 1.001)) for one in factors), "window")


def judged(seconds: float, metric: Metric = TPOT, host: Provenance = HOST) -> Judgement:
    return judge(measured(seconds, metric), contrast(load(FILE), host, frozenset()))


@pytest.mark.parametrize(("name", "value", "share"), FIGURES)
def test_the_file_holds_the_published_figures(name: str, value: float, share: float | None) -> None:
    (session,) = load(FILE).metrics[name].sessions

    assert (session.level, session.point, session.replicates) == ("published", value, ())
    assert session.telemetry.get("share") == share


def test_the_file_says_what_it_is_and_what_it_lacks() -> None:
    baseline = load(FILE)

    assert baseline.machine_class == CLASS == FILE.parent.name
    assert "Points without samples" in baseline.published
    assert "the link class is unknown" in baseline.published
    assert set(baseline.metrics) == {name for name, _, _ in FIGURES}
    assert baseline.metrics["allreduce_nccl_call"].sessions[0].telemetry["calls_per_step"] == 127
    categories = [value for name, value, _ in FIGURES if name.startswith("cuda_time") and "total" not in name]
    assert sum(categories) == pytest.approx(21.7e-3)


@pytest.mark.parametrize(
    ("seconds", "verdict"),
    [(12.1e-3, Verdict.PASS), (12.4e-3, Verdict.PASS), (12.6e-3, Verdict.REGRESSED), (11.0e-3, Verdict.IMPROVED)],
)
def test_the_band_alone_decides(seconds: float, verdict: Verdict) -> None:
    judgement = judged(seconds)

    assert judgement.verdict == verdict
    assert judgement.numbers.change == pytest.approx(seconds / 12.1e-3 - 1, abs=1e-3)
    assert (
        judgement.numbers.lo,
        judgement.numbers.hi,
        judgement.numbers.confidence,
        judgement.basis.session_noise,
    ) == (None,) * 4
    assert judgement.basis.sessions == 0


def test_the_text_says_that_there_is_no_interval_and_what_was_not_compared() -> None:
    said = explain(judged(12.6e-3))

    assert "+4.2 % (+ is worse, noise unknown)" in said
    assert "the band alone decides and no interval is known" in said
    assert "not published, so not compared: contract.formula, contract.output_tokens, gpus.power_limit_w" in said
    assert "unknown, unknown" not in said


@pytest.mark.parametrize(
    ("metric", "host", "reason"),
    [
        (replace(TPOT, contract={**CONTRACT, "concurrency": 8}), HOST, "contract.concurrency"),
        (replace(TPOT, unit="tok/s"), HOST, "unit"),
        (TPOT, replace(HOST, machine={"gpus": [{**GPU, "name": "H200"}] * 8}), "gpus[0].name"),
        (TPOT, replace(HOST, machine={"gpus": [dict(GPU)] * 2}), "gpus[2].name"),
    ],
)
def test_what_is_published_must_match(metric: Metric, host: Provenance, reason: str) -> None:
    judgement = judged(12.1e-3, metric, host)

    assert judgement.verdict == Verdict.CONFOUNDED
    assert judgement.reasons[0].startswith(reason)


def test_another_name_of_the_model_is_said_and_no_refusal() -> None:
    served = replace(TPOT, contract={**CONTRACT, "model": "kimi"})
    judgement = judged(12.1e-3, served)

    assert judgement.verdict == Verdict.PASS
    assert judgement.notes[0].startswith("published for the model 'moonshotai/Kimi-K2.5'; 'kimi' is served here")
    assert judged(12.1e-3).notes == ()


def test_a_figure_of_a_known_stack_gates_as_imported_ones_do() -> None:
    """What a user imported of this host, by the numbers of a load generator, says what it ran on."""
    figures = load(FILE)
    known = replace(figures, provenance=replace(figures.provenance, stack={"vllm": "0.26.0"}))
    host = replace(HOST, stack={**HOST.stack, "vllm": "0.26.0"})

    assert judge(measured(12.1e-3), contrast(known, host, frozenset())).basis.elsewhere is False
    assert judged(12.1e-3).basis.elsewhere is True


def test_no_published_name_is_one_that_nothing_shows() -> None:
    """A figure is of a metric of the suite, or says by which command its like is shown, in that command's own names."""
    emitted = suite_metrics()
    shown = {f"cuda_time[{category}]" for category in (*Category, "total")} | {
        "allreduce_nccl_call",
        "allreduce_custom_call",
    }
    imported = {f"{name}[{load_of(streams, None)}]" for name in ("tpot", "output_throughput") for streams in (1, 128)}
    known = {"None": emitted, "decodegate profile": shown, "decodegate import": imported}
    for name, stored in load(FILE).metrics.items():
        assert name in known[str(stored.sessions[0].telemetry.get("shown_by"))]

    assert set(load(FILE).metrics) & emitted == {"tpot[c=1]", "throughput_plateau"}


SUITE = """
    import pytest
    from pytest_decodegate.metric import Metric
    from pytest_decodegate.measure.window import Load


    @pytest.mark.perf(metric="tpot[c={streams}]", tolerance="50%")
    @pytest.mark.parametrize("streams", [1, 2])
    def test_tpot(perf, server, streams):
        perf.measure_tpot(Metric.of(f"tpot[c={streams}]", "serving"), server, Load(streams, 8, 4, 5))
"""
CARD = {**BLACKWELL, "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=97_887 * 2**20, used=0)}


@pytest.fixture
def reference_host(
    pytester: pytest.Pytester, scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., pytest.RunResult]:
    """Run SUITE against a server on eight cards over PCIe, beside the published figures."""
    pytester.makepyfile(SUITE)
    pytester.makeini("[pytest]\n")
    copy = pytester.path / "baselines" / CLASS / FILE.name
    copy.parent.mkdir(parents=True)
    copy.write_bytes(FILE.read_bytes())
    scripted.completion = as_asked(pause_s=0.02)
    run_on(monkeypatch, host(8, CARD))

    def run(*options: str) -> pytest.RunResult:
        server = f"--perf-server={scripted.url}"
        return pytester.runpytest_inprocess("-v", "-m", "perf", server, "--perf-replicates=2", *options)

    return run


def test_the_reference_host_is_shown_beside_the_published_figures_and_gated_by_none(
    reference_host: Callable[..., pytest.RunResult],
) -> None:
    """20 ms a token is beyond the band of 50 % around 12.1 ms: shown as such, and no failure."""
    result = reference_host()

    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "tpot[[]c=1] *REGRESSED, advisory *12.1 ms*",
            "tpot[[]c=2] *NO_BASELINE*",
            f"against {CLASS}/0000_published.json: the only one of published figures, for nothing was recorded on *",
            "note: tpot[[]c=1]: published for the model 'moonshotai/Kimi-K2.5'; 'the-model' is served here*",
            "measured elsewhere, on a stack that the publication does not name: it is shown and gates nothing; *",
        ]
    )


def test_what_is_recorded_on_the_reference_host_takes_the_place_of_the_published_figures(
    reference_host: Callable[..., pytest.RunResult],
) -> None:
    """Two runs on a server whose pace is beyond the published band: what was recorded must be what gates."""
    reference_host("--perf-record").assert_outcomes(passed=2)
    result = reference_host()

    assert "REGRESSED" not in result.stdout.str()
    result.stdout.fnmatch_lines([f"against {CLASS}-SYS/0001_*: the only one of this very stack"])


def test_figures_of_another_class_are_not_looked_at(tmp_path: Path) -> None:
    copy = tmp_path / CLASS / FILE.name
    copy.parent.mkdir()
    copy.write_bytes(FILE.read_bytes())
    store = Store(tmp_path)

    assert [each.path for each in store.candidates(f"{CLASS}-SYS")] == [copy]
    assert store.candidates(CLASS.replace("x8", "x4") + "-SYS") == []
    assert store.candidates(f"{CLASS}X") == []


def test_it_is_not_the_place_to_record_into(tmp_path: Path) -> None:
    copy = tmp_path / CLASS / FILE.name
    copy.parent.mkdir()
    copy.write_bytes(FILE.read_bytes())

    path = Store(tmp_path).record(HOST, CLASS, "vllm", measured(12.1e-3), "s1")

    assert path.name == "0001_vllm.json"
    assert copy.read_bytes() == FILE.read_bytes()


def test_it_survives_a_round_trip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    baseline = load(FILE)

    assert parse(FILE, dumps(baseline)) == baseline


def edited(change: Mapping[str, Any]) -> bytes:
    """The file with keys of its first recording set, or removed where the value is None."""
    document = json.loads(FILE.read_text())
    session = document["benchmarks"][0]["extra_info"]
    for key, value in change.items():
        session.pop(key, None)
        session.update({key: value} if value is not None else {})

    return json.dumps(document).encode()


VALUES = [0.0121]


@pytest.mark.parametrize(
    ("change", "pointer", "reason"),
    [
        ({"point": None}, "/benchmarks/0/extra_info/point", "only published figures are points"),
        ({"level": "gang"}, "/benchmarks/0/extra_info/point", "only published figures are points"),
        ({"values": VALUES}, "/benchmarks/0/extra_info/values", "a published figure has none"),
        ({"level": "gang", "point": None}, "/benchmarks/0/extra_info/values", "nothing was measured"),
        ({"point": 0.013}, "/decodegate/digest", "edited by hand"),
        (
            {"level": "gang", "point": None, "values": VALUES},
            "/decodegate/published",
            "a file is published as a whole",
        ),
    ],
)
def test_a_point_is_never_taken_for_a_sample(change: Mapping[str, Any], pointer: str, reason: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse(FILE, edited(change))

    assert f"{FILE}: {pointer}: " in str(refused.value)
    assert reason in str(refused.value)


def test_measurements_do_not_become_published_by_a_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recorded = load(Store(tmp_path).record(HOST, CLASS, "vllm", measured(12.1e-3), "s1"))
    marked: Baseline = replace(recorded, published="somewhere")

    with pytest.raises(BadInput, match=r"/decodegate/published: 'somewhere', but metric 'tpot\[c=1\]'"):
        parse(recorded.path, dumps(marked))


def test_pytest_benchmark_reads_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest_benchmark", "compare", str(FILE), "--columns=median,rounds"]

    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)

    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name, _, _ in FIGURES)
