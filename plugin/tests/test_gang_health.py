"""GPUs that are asked whether they work, by real processes under a Python that is none."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from pytest_decodegate.cause import Cause
from pytest_decodegate.errors import BadInput, DecodegateError, GangError, RankDied, RankHung, RankRaised
from pytest_decodegate.gang import health
from pytest_decodegate.gang.health import Health, ProbedGpu, is_doubtful
from pytest_decodegate.gang.options import GangOptions
from pytest_decodegate.machine.fingerprint import machine
from pytest_decodegate.process import processes

HUNG = RankHung("rank 1 of w2-1 did not answer open_workload() within 3 s\nits stack: ...")
SHOWN = [ProbedGpu("GPU-aa", "GPU 0 (0000:18:00.0, GPU-aa)"), ProbedGpu("GPU-bb", "GPU 1 (0000:2a:00.0, GPU-bb)")]
TAG = "HEALTH_TEST_TAG"
GPUS = machine().gpus


def asked(tmp_path: Path, script: str, gpus: list[ProbedGpu] = SHOWN) -> tuple[Health, GangOptions]:
    """Health whose probes run `script` in a shell instead of Python; "$2" is what Python would be given."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    options = GangOptions(log_root=tmp_path / "gangs", python=str(python), env={TAG: str(tmp_path)})
    return Health(gpus, lambda: options, lambda uuid: f"pid 77 (python, holder of {uuid})"), options


def stay() -> None:
    """Nobody has to leave."""


@pytest.mark.parametrize(
    "error",
    [
        HUNG,
        RankDied("rank 0 died (SIGKILL)"),
        RankRaised("an illegal memory access was encountered", cause=Cause.DEVICE),
        GangError("gang 'w2-1' was still busy 3 s after it was given up", cause=Cause.HANG),
        GangError("ranks broke 3 times; the first cause was:\n", repeats=HUNG),
        GangError("the base failed: ...", repeats=RankDied("rank 0 died (SIGKILL)", cause=Cause.OUT_OF_MEMORY)),
    ],
)
def test_hangs_deaths_and_device_errors_make_gpus_doubtful(error: Exception) -> None:
    assert is_doubtful(error)


@pytest.mark.parametrize(
    "error",
    [
        RankRaised("rank 0 raised ValueError: bad shape"),
        RankRaised("torch.AcceleratorError: CUDA error: out of memory", cause=Cause.OUT_OF_MEMORY),
        BadInput("no such path"),
    ],
)
def test_what_a_program_does_wrong_does_not(error: Exception) -> None:
    assert not is_doubtful(error)


def test_gpus_that_work_are_asked_once_after_a_hang(tmp_path: Path) -> None:
    here, options = asked(tmp_path, f'echo "$CUDA_VISIBLE_DEVICES" >> {tmp_path}/asked')
    assert here.sick(stay) == ()
    assert not (tmp_path / "asked").exists()  # without doubt it costs nothing

    here.doubt(RankRaised("ValueError: bad shape"))
    assert here.sick(stay) == ()
    assert not (tmp_path / "asked").exists()

    here.doubt(HUNG)
    assert here.sick(stay) == ()
    assert here.sick(stay) == ()
    assert sorted((tmp_path / "asked").read_text().split()) == ["GPU-aa", "GPU-bb"]
    assert options.log_root.joinpath("probe-GPU-aa.log").read_text() == ""


def test_a_gpu_on_which_a_fresh_process_hangs_is_wedged_until_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "PROBE_SECONDS", 0.5)
    here, _ = asked(tmp_path, '[ "$CUDA_VISIBLE_DEVICES" = GPU-aa ] || exec sleep 3600')
    here.doubt(HUNG)
    (sentence,) = here.sick(stay)
    assert sentence == (
        "GPU 1 (0000:2a:00.0, GPU-bb) does not work any more: a fresh process did not get through a context, an "
        "allocation and a copy in 0.5 s; it is held by pid 77 (python, holder of GPU-bb): end that, or reset the GPU "
        "(`nvidia-smi --gpu-reset -i GPU-bb`), or reboot, before anything is measured on it; asked because RankHung: "
        "rank 1 of w2-1 did not answer open_workload() within 3 s"
    )
    assert processes.tagged(TAG, str(tmp_path)) == []

    begin = time.monotonic()
    here.doubt(HUNG)
    assert here.sick(lambda: pytest.fail("asked again")) == (sentence,)
    assert time.monotonic() - begin < health.PROBE_SECONDS


def test_a_fresh_process_that_fails_is_quoted(tmp_path: Path) -> None:
    here, _ = asked(tmp_path, "echo Traceback; echo 'RuntimeError: CUDA error: unknown error' >&2; exit 1", SHOWN[:1])
    here.doubt(HUNG)
    (sentence,) = here.sick(stay)
    assert "a fresh process on it failed (RuntimeError: CUDA error: unknown error)" in sentence


def test_a_fresh_process_that_fails_without_a_word_has_an_exit_code(tmp_path: Path) -> None:
    here, _ = asked(tmp_path, "exit 3", SHOWN[:1])
    here.doubt(HUNG)
    assert "failed (exit code 3)" in here.sick(stay)[0]


def test_memory_that_does_not_come_back_is_the_reason_and_nothing_is_started(tmp_path: Path) -> None:
    def held() -> None:
        raise DecodegateError("GPU memory did not come back within 60 s: GPU-aa still uses 14336 MiB")

    here, _ = asked(tmp_path, f"touch {tmp_path}/asked")
    here.doubt(HUNG)
    (sentence,) = here.sick(held)
    assert sentence.startswith("the GPUs cannot be used: GPU memory did not come back within 60 s: GPU-aa still uses")
    assert not (tmp_path / "asked").exists()


def test_without_a_gpu_there_is_nothing_to_doubt(tmp_path: Path) -> None:
    here, _ = asked(tmp_path, "exit 1", [])
    here.doubt(HUNG)
    assert here.sick(lambda: pytest.fail("nothing to make room for")) == ()


def test_the_real_probe_fails_on_a_gpu_that_is_not_there(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the probe runs on torch")
    options = GangOptions(log_root=tmp_path)
    here = Health(SHOWN[:1], lambda: options, lambda _: "nobody")
    here.doubt(HUNG)
    (sentence,) = here.sick(stay)
    assert re.search(r"a fresh process on it failed \(\w+: .*CUDA", sentence)


@pytest.mark.skipif(not GPUS, reason="needs a GPU that works")
def test_the_real_probe_passes_on_gpus_that_work(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the probe runs on torch")
    options = GangOptions(log_root=tmp_path)
    here = Health([ProbedGpu(gpu.uuid, f"GPU {gpu.index}") for gpu in GPUS], lambda: options, lambda _: "nobody")
    here.doubt(HUNG)
    assert here.sick(stay) == ()
