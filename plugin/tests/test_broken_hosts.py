"""What `pytest -m perf`, `decodegate doctor` and `decodegate upgrade` say on hosts whose GPUs are in trouble.

NVML and the kernel's view are scripted; all above them is real.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pynvml
import pytest
from fake_nvml import BLACKWELL, NOT_SUPPORTED, FakeGpu, FakeNvml
from made_up_source import SOURCE

from pytest_decodegate.cli import BAD_INPUT, main
from pytest_decodegate.machine import fingerprint, nvml

really = fingerprint.machine

TESTS = (
    SOURCE
    + """
    from pytest_decodegate.machine import fingerprint


    def here():
        return fingerprint.provenance(fingerprint.machine(), {"torch": "2.13.0"}, {})


    @pytest.mark.perf(metric="made_up")
    def test_made_up(perf):
        perf.gate(Metric.of("made_up", "kernel"), Source(), here)
"""
)

EIGHT = tuple(FakeGpu(place, BLACKWELL) for place in range(1, 9))


@pytest.fixture(autouse=True)
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(test_made_up=TESTS)
    monkeypatch.setattr(nvml, "open_sensor", lambda: None)


def on(monkeypatch: pytest.MonkeyPatch, root: Path, double: FakeNvml, environ: Mapping[str, str] | None = None) -> None:
    """Let this process see a host with eight NVIDIA GPUs on PCI, of which NVML says what `double` says."""
    for place in range(8):
        device = root / f"sys/bus/pci/devices/0000:{place:02x}:00.0"
        device.mkdir(parents=True, exist_ok=True)
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text("0x030200\n")

    monkeypatch.setattr(fingerprint, "machine", partial(really, environ or {}, double, root))


def broken(code: int) -> FakeNvml:
    return FakeNvml(init=pynvml.NVMLError(code))


LOST = {"nvmlDeviceGetName": pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)}
CUT = {"nvmlDeviceGetMigMode": [1, 1], "nvmlDeviceGetMaxMigDeviceCount": 0}
TROUBLE: Mapping[str, tuple[Any, Mapping[str, str], str]] = {
    **{
        str(code): (broken(code), {}, "this host has 8 NVIDIA GPUs on PCI (0000:00:00.0 ...), but no NVIDIA driver *")
        for code in (18, 4, 9, 15, 999)
    },
    "lost": (FakeNvml(FakeGpu(1), FakeGpu(2, changes=LOST)), {}, "NVML failed *GPU is lost*"),
    "visible=9": (FakeNvml(*EIGHT), {"CUDA_VISIBLE_DEVICES": "9"}, "CUDA_VISIBLE_DEVICES='9': '9' names 0 GPUs*"),
    "visible=square": (FakeNvml(*EIGHT), {"CUDA_VISIBLE_DEVICES": "²"}, "CUDA_VISIBLE_DEVICES='²': *names 0 GPUs*"),
    "mig": (FakeNvml(FakeGpu(1, changes=CUT)), {}, "GPU 0 * is in MIG mode, and no instance of it is chosen; *"),
}


def doctor(capsys: pytest.CaptureFixture[str]) -> pytest.LineMatcher:
    """What doctor prints. Of a Python that is not there, as importing torch and vLLM takes seconds."""
    capsys.readouterr()
    assert main(["doctor", "--python", "nowhere"]) == 1
    return pytest.LineMatcher(capsys.readouterr().out.splitlines())


@pytest.mark.parametrize("name", TROUBLE)
def test_trouble_is_one_sentence_to_a_run_and_to_doctor(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    double, environ, said = TROUBLE[name]
    on(monkeypatch, tmp_path, double, environ)
    for more in ((), ("-q", "--no-header")):
        result = pytester.runpytest("-m", "perf", *more)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([f"ERROR: {said}"])
        result.stdout.no_fnmatch_line("*INTERNALERROR*")

    doctor(capsys).fnmatch_lines([f"FAIL  gpus *{said}", "FAIL  packages *torch: nowhere cannot be run*"])


def test_an_upgrade_on_a_broken_host_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    on(monkeypatch, tmp_path, broken(18))
    assert main(["upgrade", "--candidate", "this", "--", "-p", "no:cacheprovider"]) == BAD_INPUT
    assert "ERROR: this host has 8 NVIDIA GPUs" in capsys.readouterr().err


def test_a_test_that_takes_a_gpu_fails_with_the_same_sentence(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    on(monkeypatch, tmp_path, broken(18))
    pytester.makepyfile(test_made_up="def test_gpus(gpus): pass")
    result = pytester.runpytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["DecodegateError: this host has 8 NVIDIA GPUs *"])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_collecting_asks_nothing_of_the_gpus(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    on(monkeypatch, tmp_path, broken(18))
    assert pytester.runpytest("-m", "perf", "--collect-only").ret == pytest.ExitCode.OK


def test_eight_cards_on_pcie_record_and_gate_and_their_loss_is_said(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    on(monkeypatch, tmp_path, FakeNvml(*EIGHT))
    for option, verdict in (("--perf-record", "NO_BASELINE"), ("--perf-replicates=5", "PASS")):
        result = pytester.runpytest("-m", "perf", option)
        result.stdout.fnmatch_lines(
            [
                "perf: machine class NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition-x8-PCIe-SYS (*",
                f"made_up: {verdict}: *",
            ]
        )
        result.stdout.no_fnmatch_line("*is one lost*")

    recorded = "(*) recorded on 8 GPUs as NVIDIA-RTX-PRO-6000-*-x8-* on 20*"
    hidden = {"CUDA_VISIBLE_DEVICES": "0,1"}
    no_driver, seven = broken(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND), FakeNvml(*EIGHT[1:])
    for double, environ, grade, said in (
        (
            no_driver,
            {},
            "WARN",
            f"a host of this name {recorded} and this one shows 0 GPUs now (no NVIDIA driver *); *",
        ),
        (seven, {}, "FAIL", f"this host {recorded} and it shows 7 GPUs now, without GPU-*: is one lost, *"),
        (seven, hidden, "FAIL", f"this host {recorded} and it shows 7 GPUs now: is one lost, *"),
    ):
        on(monkeypatch, tmp_path, double, environ)
        pytester.runpytest("-m", "perf").stdout.fnmatch_lines([f"perf: {said}"])
        doctor(capsys).fnmatch_lines([f"{grade}  gpus *{said}"])

    on(monkeypatch, tmp_path, FakeNvml(*EIGHT), hidden)
    pytester.runpytest("-m", "perf").stdout.no_fnmatch_line("*is one lost*")


def test_another_hosts_gpus_are_not_missed(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    on(monkeypatch, tmp_path, FakeNvml(*EIGHT))
    pytester.runpytest("-m", "perf", "--perf-record").assert_outcomes(passed=1)
    on(monkeypatch, tmp_path, FakeNvml(FakeGpu(21, BLACKWELL), FakeGpu(22, BLACKWELL)))
    pytester.runpytest("-m", "perf").stdout.no_fnmatch_line("*is one lost*")  # another host of one name
    monkeypatch.setattr("platform.node", lambda: "another-host")
    on(monkeypatch, tmp_path, broken(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND))
    pytester.runpytest("-m", "perf").stdout.no_fnmatch_line("*is one lost*")
    on(monkeypatch, tmp_path, FakeNvml(*EIGHT[2:]))
    said = "perf: this host (another-host) recorded on 8 GPUs as * and it shows 6 GPUs now, without GPU-*, GPU-*: is *"
    pytester.runpytest("-m", "perf").stdout.fnmatch_lines([said])  # under another name since


def test_a_host_with_unified_memory_runs(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    chip = {"nvmlDeviceGetName": "NVIDIA GB10", "nvmlDeviceGetMemoryInfo": NOT_SUPPORTED}
    on(monkeypatch, tmp_path, FakeNvml(FakeGpu(1, BLACKWELL, chip)))
    result = pytester.runpytest("-m", "perf", "--perf-record")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["perf: machine class NVIDIA-GB10-x1 (*"])
