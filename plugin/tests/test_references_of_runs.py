"""What a whole run does with the file it finds, through the plugin on a scripted host or server: no rank is needed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from scripted import ScriptedServer, answer, streaming
from scripted_host import host, run_on
from stored import baseline, sealed, write

from pytest_decodegate.baseline.reader import load
from pytest_decodegate.baseline.schema import Session, StoredMetric
from pytest_decodegate.metric import Metric

RUN = ("-m", "perf", "--perf-replicates=2", "--perf-max-replicates=2", "-p", "no:cacheprovider")
HERE, OTHER = "NVIDIA-H200-x1", "NVIDIA-B200-x8-NVLink"

KERNEL = """
    import pytest
    from pytest_decodegate.metric import Metric


    def work():
        pass


    @pytest.mark.perf(tolerance="25%")
    def test_kernel(perf):
        perf.measure(Metric.of("kernel", "kernel"), work)
"""


@pytest.fixture(autouse=True)
def on_one_gpu(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")  # long lines stay whole
    pytester.makeini("[pytest]\n")
    run_on(monkeypatch, host(1))


def stored(pytester: pytest.Pytester) -> list[Path]:
    return sorted((pytester.path / "baselines").glob("*/*.json"))


def test_a_damaged_baseline_is_refused_and_kept(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(KERNEL)
    pytester.runpytest_inprocess(*RUN, "--perf-record").assert_outcomes(passed=1)
    (path,) = stored(pytester)
    document = json.loads(path.read_text())
    document["decodegate"]["metrics"]["kernel"]["better"] = "sideways"
    damaged = sealed(document)
    path.write_bytes(damaged)
    refused = pytester.runpytest_inprocess(*RUN, "--perf-record=all")
    refused.assert_outcomes(failed=1)
    refused.stdout.fnmatch_lines([f"*BadInput: *{path.name}*/decodegate/metrics/kernel*sideways*"])
    refused.stdout.no_fnmatch_line("*pytest_decodegate/baseline/*")
    assert path.read_bytes() == damaged


def test_a_published_figure_is_a_reference_and_no_recording(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = StoredMetric(
        Metric("kernel", "s", "kernel", 0.25, {}),
        (Session("p", "2026-01-01T00:00:00+00:00", "published", (), point=1e-5),),
    )
    published = baseline(
        point, path="0000_published.json", machine_class=HERE, machine={}, stack={}, published="a write-up"
    )
    path = write(pytester.path / "baselines" / HERE, published)
    pytester.makepyfile(KERNEL)
    run_on(monkeypatch, host(1), seconds=1e-4)
    shown = pytester.runpytest_inprocess(*RUN)
    shown.assert_outcomes(passed=1)
    shown.stdout.fnmatch_lines(["kernel: REGRESSED: *", "measured elsewhere, *", "advisory: kernel REGRESSED +9*"])

    pytester.runpytest_inprocess(*RUN, "--perf-record=missing").assert_outcomes(passed=1)
    assert [one.name[:5] for one in stored(pytester)] == ["0000_", "0001_"]
    assert load(path).metrics["kernel"].level == "published"
    pytester.runpytest_inprocess(*RUN).assert_outcomes(passed=1)


def test_a_baseline_of_another_machine_class_is_confounded(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(KERNEL)
    pytester.runpytest_inprocess(*RUN, "--perf-record").assert_outcomes(passed=1)
    (path,) = stored(pytester)
    other = write(pytester.path, replace(load(path), path=Path("0001_other.json"), machine_class=OTHER))
    result = pytester.runpytest_inprocess(*RUN, f"--perf-baseline={other}")
    result.stdout.fnmatch_lines(["kernel: CONFOUNDED: *", f"*machine_class: {OTHER} -> *"])


def test_a_named_baseline_is_read_once(pytester: pytest.Pytester) -> None:
    """A branch that is checked out while a run goes on must not change what the rest of it is compared with."""
    pytester.makepyfile(KERNEL)
    pytester.runpytest_inprocess(*RUN, "--perf-record").assert_outcomes(passed=1)
    stored(pytester)[0].rename("named.json")
    pytester.makeconftest("from pathlib import Path\ndef pytest_runtest_setup(): Path('named.json').unlink()")
    result = pytester.runpytest_inprocess(*RUN, "--perf-baseline=named.json")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["against */named.json: named by --perf-baseline"])


def test_an_attached_server_is_compared_by_its_own_word(pytester: pytest.Pytester, scripted: ScriptedServer) -> None:
    """Nine runs of one baseline, six seconds: each tells of something else that the server says of itself."""
    scripted.completion, scripted.version = streaming(answer(), pause_s=0.01), "0.26.0"
    pytester.makepyfile(
        """
        import pytest
        from pytest_decodegate.metric import Metric
        from pytest_decodegate.measure.window import Load


        @pytest.mark.perf(tolerance="80%")
        def test_tpot(perf, server):
            perf.measure_tpot(Metric.of("tpot", "serving"), server, Load(1, 8, 4, 5))
        """
    )
    attached = (*RUN, f"--perf-server={scripted.url}")
    pytester.runpytest_inprocess(*attached, "--perf-record").assert_outcomes(passed=1)
    (path,) = stored(pytester)
    assert json.loads(path.read_text())["decodegate"]["provenance"]["stack"]["vllm"] == "0.26.0"
    pytester.runpytest_inprocess(*attached).assert_outcomes(passed=1)

    scripted.version = "0.33.0"
    upgraded = pytester.runpytest_inprocess(*attached)
    upgraded.stdout.fnmatch_lines(["tpot: CONFOUNDED: *", "*vllm: 0.26.0 -> 0.33.0", "*--perf-change vllm*"])
    pytester.runpytest_inprocess(*attached, "--perf-change=vllm").assert_outcomes(passed=1)

    scripted.version = "0.26.0"
    _check_that_settings_gate(pytester, scripted, attached)

    scripted.models = ["another-model"]
    another = pytester.runpytest_inprocess(*attached)
    another.stdout.fnmatch_lines(["tpot: CONFOUNDED: *", "*contract.model: 'the-model' in the baseline*"])


def _check_that_settings_gate(pytester: pytest.Pytester, scripted: ScriptedServer, attached: tuple[str, ...]) -> None:
    """What the pages of the server did not say when it was recorded, what they say since, and what they say anew."""
    scripted.pages["server_info"] = {"server_args": {"tp_size": 8, "kv_cache_dtype": "auto"}}
    told = pytester.runpytest_inprocess(*attached, "-rA")
    told.assert_outcomes(passed=1)
    told.stdout.fnmatch_lines(["*the server that was recorded did not say: tensor-parallel-size, kv-cache-dtype*"])
    pytester.runpytest_inprocess(*attached, "--perf-record=all").assert_outcomes(passed=1)

    scripted.pages["server_info"] = {"server_args": {"tp_size": 4, "kv_cache_dtype": "fp8"}}
    changed = pytester.runpytest_inprocess(*attached)
    changed.stdout.fnmatch_lines(
        ["tpot: CONFOUNDED: *", "*flag:tensor-parallel-size: 8 -> 4", "*flag:kv-cache-dtype: auto -> fp8"]
    )
    both = "--perf-change=flag:tensor-parallel-size,flag:kv-cache-dtype"
    pytester.runpytest_inprocess(*attached, both).assert_outcomes(passed=1)
    scripted.pages.clear()
