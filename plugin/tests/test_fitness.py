"""The checks of doctor, on scripted GPUs and fake folders."""

from __future__ import annotations

import json
import os
import re
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from fake_nvml import BLACKWELL, H200, FakeGpu, FakeNvml
from fake_sensor import look
from hypothesis import given
from hypothesis import strategies as st
from scripted_cards import cards

from pytest_decodegate.cli import main
from pytest_decodegate.fitness import acs
from pytest_decodegate.fitness.check import CheckOutcome, Grade, HostCheck, Symptom
from pytest_decodegate.fitness.host_checks import core_list
from pytest_decodegate.fitness.host_files import read_host_files, room
from pytest_decodegate.fitness.reading import inspect_cards, read_all, read_early, with_loads
from pytest_decodegate.fitness.readings import CardLoad, HostReadings, Importable, LoadedStack, LostGpus, Space
from pytest_decodegate.fitness.table import CHECKS, early_failures, run_checks
from pytest_decodegate.machine import fingerprint as fingerprint_module
from pytest_decodegate.machine.cpu_load import OtherUse
from pytest_decodegate.machine.fingerprint import machine
from pytest_decodegate.machine.nvml import NvmlSensor, open_sensor
from pytest_decodegate.machine.pcie import PcieLink
from pytest_decodegate.report.doctor import as_json, lines

NO_FILES = Path("/nowhere")
FULL = PcieLink(5, 16)
BUSY = look(sm_clock_mhz=1980, pcie=FULL)
FAST = CardLoad((replace(BUSY, memory_clock_mhz=3201),) * 5, {}, 4e12, 55e9)
LOCKED = {
    "nvmlDeviceGetApplicationsClock": lambda kind: 1500,
    "nvmlDeviceGetDefaultApplicationsClock": lambda kind: 1980,
}
ERROR = pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
PROCESS = SimpleNamespace(pid=1, usedGpuMemory=7 << 30)


def readings(
    *gpus: FakeGpu, own: Sequence[int] = (), root: Path = Path("/nowhere"), attached: bool = False
) -> HostReadings:
    """What is read of a host of these scripted GPUs, through the real reading of NVML."""
    double = FakeNvml(*gpus)
    seen = machine({}, double, root)
    sensor = open_sensor(double) if gpus else None
    return read_all(read_early(seen, sensor, root / "baselines", own, attached=False), root)


def loaded(*loads: CardLoad, base: Mapping[str, Any] = H200) -> HostReadings:
    """A host whose cards showed `loads`."""
    seen = readings(*cards(*({} for _ in loads), base=base))
    return with_loads(seen, {card.gpu.uuid: load for card, load in zip(seen.cards, loads, strict=True)})


def outcome(name: str, seen: HostReadings) -> CheckOutcome:
    return next(check for check in CHECKS if check.name == name).run(seen)


def test_a_healthy_host_is_fit() -> None:
    seen = replace(loaded(FAST, FAST), descriptors=1 << 16, steal=0.0, client_floor=("fast", True))
    seen = replace(seen, cores=frozenset(range(8)))  # of the machine that runs the tests there may be fewer
    grades = {each.check.name: each.grade for each in run_checks(seen)}
    assert set(grades.values()) <= {Grade.OK, Grade.SKIP}
    looked = {name for name, grade in grades.items() if grade is Grade.OK}
    assert looked >= {"gpus", "throttling", "clocks", "memory-clock", "pcie", "p2p", "persistence", "power-limit"}


@pytest.mark.parametrize(
    ("name", "changes", "grade", "text"),
    [
        ("persistence", {"nvmlDeviceGetPersistenceMode": 0}, Grade.WARN, "GPU 1: off"),
        ("power-limit", {"nvmlDeviceGetEnforcedPowerLimit": 450_000}, Grade.WARN, "GPU 1: 450 W of 700 W"),
        ("memory-errors", {"nvmlDeviceGetTotalEccErrors": 2}, Grade.FAIL, "GPU 1: 2 uncorrected errors"),
        ("memory-errors", {"nvmlDeviceGetRemappedRows": [0, 1, 1, 0]}, Grade.WARN, "GPU 1: rows wait for a reset"),
        ("memory-errors", {"nvmlDeviceGetRemappedRows": [0, 1, 0, 1]}, Grade.FAIL, "GPU 1: a row that cannot"),
        ("ecc", {"nvmlDeviceGetEccMode": [1, 0]}, Grade.WARN, "GPU 1: on, and off after a reboot"),
        (
            "ecc",
            {"nvmlDeviceGetEccMode": [0, 0]},
            Grade.WARN,
            "GPU 0: on, and not so on all cards; GPU 1: off, and not",
        ),
        ("mig", {"nvmlDeviceGetMigMode": [0, 1]}, Grade.WARN, "GPU 1: off now, and on after a reboot"),
        ("compute-mode", {"nvmlDeviceGetComputeMode": 3}, Grade.FAIL, "GPU 1: exclusive_process"),
        ("throttling", {"nvmlDeviceGetCurrentClocksEventReasons": 0x40}, Grade.FAIL, "GPU 1: hw_thermal_slowdown"),
        ("clock-lock", LOCKED, Grade.WARN, "GPU 1: application clock 1500 MHz, by default 1980 MHz"),
        ("gpus", {"nvmlDeviceGetVbiosVersion": ERROR}, Grade.WARN, "NVML: GPU 1: nvmlDeviceGetVbiosVersion: Unknown"),
    ],
)
def test_a_fault_of_one_card_is_found_and_named(name: str, changes: dict[str, Any], grade: Grade, text: str) -> None:
    healthy, faulty = (outcome(name, readings(*cards({}, change))) for change in ({}, changes))
    assert healthy.grade in (Grade.OK, Grade.SKIP)
    assert (faulty.grade, faulty.text[: len(text)]) == (grade, text)
    assert "{gpus}" not in faulty.mend


def test_the_mend_names_the_cards_that_it_is_of() -> None:
    off = {"nvmlDeviceGetPersistenceMode": 0}
    found = outcome("persistence", readings(*cards({}, off, {}, off)))
    assert (found.text, found.mend.split("   ")[0]) == ("GPUs 1, 3: off", "sudo nvidia-smi -i 1,3 -pm 1")


@pytest.mark.parametrize(
    ("name", "change", "grade", "text"),
    [
        ("clocks", {"looks": (look(sm_clock_mhz=1500),) * 5}, Grade.WARN, "GPU 1: 1500 of 1980 MHz under load"),
        ("clocks", {"looks": (look(sm_clock_mhz=1930),) * 5}, Grade.WARN, "GPU 1: 1930 of 1980 MHz under load"),
        ("memory-clock", {"looks": (replace(BUSY, memory_clock_mhz=1600),) * 5}, Grade.WARN, "GPU 1: 1600 of 3201"),
        ("clock-lock", {"looks": (look(sm_clock_mhz=1500),) * 5}, Grade.WARN, "GPU 1: 1500 MHz throughout"),
        ("power-cap", {"limited_s": {"sw_power_cap": 0.1}}, Grade.WARN, "GPU 1: the power limit held the clocks down"),
        ("throttling", {"limited_s": {"hw_slowdown": 0.1}}, Grade.FAIL, "GPU 1: hw_slowdown"),
        ("pcie", {"looks": (look(pcie=PcieLink(4, 16)),) * 5}, Grade.WARN, "GPU 1: gen 4 x16 of gen 5 x16 under load"),
        ("pcie", {"looks": (look(pcie=PcieLink(5, 4)),) * 5}, Grade.FAIL, "GPU 1: gen 5 x4 of gen 5 x16 under load"),
        ("rates", {"copy_bytes_s": 3e12}, Grade.WARN, "GPU 1: copies 3000 GB/s"),
        ("rates", {"host_bytes_s": 20e9}, Grade.WARN, "GPU 1: copies 4000 GB/s, from the host 20.0 GB/s"),
    ],
)
def test_a_fault_under_load_is_found(name: str, change: dict[str, Any], grade: Grade, text: str) -> None:
    assert outcome(name, loaded(FAST, FAST)).grade is Grade.OK
    found = outcome(name, loaded(FAST, replace(FAST, **change)))
    assert (found.grade, found.text[: len(text)]) == (grade, text)


def test_a_clock_that_moves_or_is_held_down_for_a_reason_is_no_lock() -> None:
    moving = replace(FAST, looks=(look(sm_clock_mhz=1500), look(sm_clock_mhz=1515), look(sm_clock_mhz=1500)))
    capped = replace(FAST, looks=(look("sw_power_cap", sm_clock_mhz=1500),) * 5)
    assert outcome("clock-lock", loaded(moving, capped)).grade is Grade.OK


def test_an_idle_link_of_generation_1_is_no_fault() -> None:
    waking = replace(FAST, looks=(look(pcie=PcieLink(1, 16)), *(look(pcie=FULL),) * 4))
    assert outcome("pcie", loaded(waking)).grade is Grade.OK


def test_what_was_not_loaded_says_why() -> None:
    seen = replace(readings(*cards({})), not_loaded="not loaded: --no-load")
    for name in ("clocks", "memory-clock", "pcie", "power-cap", "rates"):
        found = outcome(name, seen)
        assert (found.grade, found.text) == (Grade.SKIP, "not loaded: --no-load")


@pytest.mark.parametrize(
    ("changes", "grade", "text"),
    [
        ({"nvmlDeviceGetComputeRunningProcesses": [PROCESS], "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=90)},
         Grade.FAIL, "GPU 0: pid 1 (python3, 7168 MiB), busy 90 %"),
        ({"nvmlDeviceGetComputeRunningProcesses": [PROCESS]}, Grade.WARN, "GPU 0: 500 MiB held, by pid 1 (python3"),
        ({"nvmlDeviceGetMemoryInfo": SimpleNamespace(total=143771 << 20, used=90 << 30)},
         Grade.WARN, "GPU 0: 92160 MiB held, by no process that NVML can name"),
    ],
)  # fmt: skip
def test_strangers_on_the_cards(changes: dict[str, Any], grade: Grade, text: str) -> None:
    seen = readings(*cards(changes))
    # Whether pid 1 may map CUDA depends on who runs the tests.
    seen = replace(seen, cards=tuple(replace(card, cuda_users=frozenset()) for card in seen.cards))
    found = outcome("gpu-processes", seen)
    assert (found.grade, found.text[: len(text)]) == (grade, text)
    assert outcome("gpu-processes", replace(seen, attached=True)).grade is Grade.OK


def test_our_own_processes_are_no_strangers() -> None:
    busy = {"nvmlDeviceGetComputeRunningProcesses": [PROCESS], "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=0)}
    assert outcome("gpu-processes", readings(*cards(busy), own=[1])).grade is Grade.OK


def test_cards_without_peer_access_are_named_by_pair() -> None:
    found = outcome("p2p", readings(*cards({}, {}, base=BLACKWELL)))
    assert (found.grade, found.text[:4]) == (Grade.WARN, "0-1:")
    assert "read not supported" in found.text


def config_space(*capabilities: tuple[int, int]) -> bytes:
    """A configuration space with these extended capabilities: (id, the 16 bits at offset 6 of each)."""
    space = bytearray(4096)
    for place, (number, control) in enumerate(capabilities):
        offset = acs.FIRST + 0x40 * place
        following = offset + 0x40 if place + 1 < len(capabilities) else 0
        struct.pack_into("<I", space, offset, number | 1 << 16 | following << 20)
        struct.pack_into("<H", space, offset + 6, control)

    return bytes(space)


@pytest.mark.parametrize(
    ("space", "found"),
    [
        (config_space((0x0001, 0xFFFF), (0x000D, 0x001D)), True),
        (config_space((0x000D, 0x0011)), False),
        (config_space((0x0001, 0x001D)), False),
        (config_space()[:64], None),
        (b"", None),
    ],
)
def test_acs_is_read_from_the_configuration_space(space: bytes, found: bool | None) -> None:
    assert acs.redirects(space) is found


@given(st.binary(max_size=600).map(lambda tail: bytes(acs.FIRST) + tail))
def test_no_configuration_space_hangs_or_breaks_the_reader(space: bytes) -> None:
    assert acs.redirects(space) in (True, False, None)


def a_root(folder: Path, *, control: int = 0x1D, translation: str = "DMA-FQ") -> Path:
    """A folder that looks like a host with a PCIe bridge, a card behind an IOMMU, and a slow governor."""
    bridge, card = (folder / f"sys/bus/pci/devices/0000:{place}:00.0" for place in ("00", "01"))
    files: dict[Path, str | bytes] = {
        bridge / "class": "0x060400\n",
        bridge / "config": config_space((0x000D, control)),
        card / "class": "0x030200\n",
        card / "vendor": "0x10de\n",
        card / "iommu_group/type": f"{translation}\n",
        folder / "sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet\n",
        folder / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
        folder / "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "performance\n",
        folder / "sys/devices/system/node/node0/x": "",
        folder / "sys/devices/system/node/node1/x": "",
        folder / "proc/sys/kernel/numa_balancing": "1\n",
    }
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return folder


def test_what_the_kernel_tells_is_judged(tmp_path: Path) -> None:
    seen = readings(*cards({}, {}, base=BLACKWELL), root=a_root(tmp_path))
    for name, text in {
        "acs-iommu": "ACS of 1 PCIe bridges redirects peers (0000:00:00.0); "
        "the IOMMU translates what cards read and write (DMA-FQ)",
        "numa": "2 node(s), the kernel moves pages between them",
        "governor": "powersave on 1 cores",
        "clock-source": "hpet",
    }.items():  # fmt: skip
        found = outcome(name, seen)
        assert (found.grade, found.text) == (Grade.WARN, text), name


def test_bridges_that_only_root_may_read_are_said(tmp_path: Path) -> None:
    root = a_root(tmp_path, translation="identity")
    (root / "sys/bus/pci/devices/0000:00:00.0/config").write_bytes(bytes(64))
    found = outcome("acs-iommu", readings(*cards({}, {}, base=BLACKWELL), root=root))
    assert (found.grade, "for root to read" in found.text) == (Grade.SKIP, True)


def test_cards_over_nvlink_do_not_ask_for_acs(tmp_path: Path) -> None:
    assert outcome("acs-iommu", readings(*cards({}, {}), root=a_root(tmp_path))).grade is Grade.SKIP


def test_an_empty_root_has_nothing_to_judge(tmp_path: Path) -> None:
    files = read_host_files(tmp_path)
    assert (files.clock_source, dict(files.governors), files.numa_balancing) == (None, {}, None)


@pytest.mark.parametrize(("text", "found"), [("0-2,5", {0, 1, 2, 5}), ("7", {7}), ("", set()), ("all", set())])
def test_core_lists(text: str, found: set[int]) -> None:
    assert core_list(text) == found


def test_a_card_whose_cores_we_may_not_use(tmp_path: Path) -> None:
    folder = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text("1\n")
    (folder / "local_cpulist").write_text("1000-1003\n")
    seen = readings(*cards({}), root=tmp_path)
    assert outcome("numa", seen).text == "GPU 0: cores 1000-1003 are near it, and this process may run on none of them"
    assert outcome("numa", replace(seen, cores=frozenset({1001}))).grade is Grade.OK


def test_quotas_and_neighbours_on_the_cores(tmp_path: Path) -> None:
    quiet = replace(readings(*cards({})), cores=frozenset(range(8)))
    assert outcome("cores", quiet).grade is Grade.OK
    assert "1 cores may be used, and 2 processes" in outcome("cores", replace(quiet, cores=frozenset({0}))).text
    busy = OtherUse(8, others=4.0, own=0.1, most=("ffmpeg (pid 9)", 3.9), stalled=None)
    found = outcome("cores", replace(quiet, others=busy))
    assert (found.grade, found.text) == (Grade.WARN, "others use 4.0 of 8 cores now, most: ffmpeg (pid 9)")


@pytest.mark.parametrize(
    ("name", "seen", "grade"),
    [
        ("room", {"spaces": (Space("baselines", "/b", 1 << 20, 1 << 40),)}, Grade.FAIL),
        ("room", {"spaces": (Space("baselines", "/b", 1 << 30, 1 << 40),)}, Grade.WARN),
        ("room", {"spaces": (Space("shared memory", "/dev/shm", 64 << 20, 64 << 20),)}, Grade.WARN),
        ("room", {"spaces": (Space("shared memory", "/dev/shm", 1 << 20, 64 << 20),)}, Grade.FAIL),
        ("file-descriptors", {"descriptors": 128}, Grade.FAIL),
        ("file-descriptors", {"descriptors": 512}, Grade.WARN),
        ("file-descriptors", {"descriptors": 1024}, Grade.OK),
        ("cpu-steal", {"steal": 0.2}, Grade.FAIL),
        ("cpu-steal", {"steal": 0.01}, Grade.WARN),
        ("cpu-steal", {"steal": 0.001}, Grade.OK),
        ("client", {"client_floor": ("no server", False)}, Grade.FAIL),
        ("baselines", {"baselines": ()}, Grade.WARN),
        ("baselines", {"baselines": ("x/0001_y.json",)}, Grade.OK),
        ("gpus", {"fingerprint": None, "refused": "a GPU is lost"}, Grade.FAIL),
        ("gpus", {"lost_gpus": LostGpus("recorded on 8 and shows 7", sure=True)}, Grade.FAIL),
        ("gpus", {"lost_gpus": LostGpus("a host of this name recorded on 8", sure=False)}, Grade.WARN),
    ],
)
def test_limits_of_the_host(name: str, seen: dict[str, Any], grade: Grade) -> None:
    assert outcome(name, replace(readings(*cards({})), **seen)).grade is grade


def stack(**facts: Any) -> LoadedStack:
    known = {"torch": "2.11.0+cu130", "cuda": "13.0", "nccl": "2.28.9", "nccl_path": ["/env/libnccl.so.2"], **facts}
    packages = (Importable("torch", "2.11.0+cu130"), Importable("vllm", "0.26.0"))
    installed = {"nccl": "2.28.9", "vllm_wants_torch": "2.11.0"}
    return LoadedStack(packages, known, driver_cuda=(13, 0), installed=installed)


@pytest.mark.parametrize(
    ("name", "found", "grade", "text"),
    [
        ("cuda", stack(cuda="14.0"), Grade.FAIL, "torch was built for CUDA 14.0, the driver runs up to 13.0"),
        ("cuda", stack(cuda="13.1"), Grade.WARN, "torch was built for CUDA 13.1, the driver runs up to 13.0"),
        ("cuda", stack(cuda="12.8"), Grade.OK, "torch was built for CUDA 12.8"),
        ("cuda", stack(cuda=None), Grade.FAIL, "torch 2.11.0+cu130 is a build without CUDA"),
        ("nccl", stack(), Grade.OK, "2.28.9 answers, as installed"),
        ("nccl", stack(nccl="2.27.3"), Grade.WARN, "2.27.3 answers from /env/libnccl.so.2, and 2.28.9 is installed"),
        ("nccl", stack(nccl_unused=["/opt/libnccl.so.2"]), Grade.WARN, "another copy is mapped too: /opt/libnccl.so.2"),
        ("vllm-torch", stack(), Grade.OK, "vLLM wants torch 2.11.0, and 2.11.0+cu130 is there"),
        (
            "vllm-torch",
            replace(stack(), installed={"vllm_wants_torch": "2.10.0"}),
            Grade.FAIL,
            "vLLM wants torch 2.10.0",
        ),
        ("packages", replace(stack(), packages=(Importable("torch", None, "no torch"),)), Grade.FAIL, "no torch"),
        ("packages", replace(stack(), packages=(Importable("vllm", None, "no vllm"),)), Grade.WARN, "no vllm"),
        ("nccl", LoadedStack(problem="it cannot run ranks"), Grade.SKIP, "it cannot run ranks"),
    ],
)
def test_what_ranks_would_load(name: str, found: LoadedStack, grade: Grade, text: str) -> None:
    checked = outcome(name, replace(readings(*cards({})), stack=found))
    assert (checked.grade, checked.text[: len(text)]) == (grade, text)


def test_room_is_that_of_the_nearest_folder_that_exists(tmp_path: Path) -> None:
    found = room("baselines", tmp_path / "not" / "yet")
    assert found
    assert found.total == os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize


def test_the_table_is_complete() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    assert all(check.cost and check.mend and re.fullmatch(r"[a-z0-9-]+", check.name) for check in CHECKS)


def test_an_outcome_is_its_worst_and_nothing_seen_is_not_ok() -> None:
    symptoms = [Symptom(Grade.OK, "fine", 0), Symptom(Grade.FAIL, "hot", 2), Symptom(Grade.WARN, "warm", 1)]
    check = HostCheck("heat", lambda _: symptoms, "cost", "cool {gpus}")
    found = check.run(HostReadings(None))
    assert (found.grade, found.text, found.mend) == (Grade.FAIL, "GPU 2: hot", "cool 2")
    assert HostCheck("nothing", lambda _: (), "cost", "mend").run(HostReadings(None)).grade is Grade.SKIP


def test_text_and_json_say_the_same() -> None:
    outcomes = run_checks(readings(*cards({"nvmlDeviceGetComputeMode": 2})))
    text = "\n".join(lines(outcomes, (), 7, 3.0))
    document = json.loads(as_json(outcomes, (), 7, 3.0))
    assert document["fit"] is False
    assert document["run"]["minutes"] == 7
    assert text.splitlines()[-1].startswith("NOT FIT to gate: compute-mode")
    for check in document["checks"]:
        assert re.search(rf"^{check['grade']:<4}  {check['name']} ", text, re.MULTILINE)
        assert (check["mend"] is not None) == (check["grade"] in ("WARN", "FAIL"))


def test_doctor_as_json_works_without_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = FakeNvml(init=pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND))
    monkeypatch.setattr(fingerprint_module, "machine", lambda: machine({}, absent, tmp_path))
    status = main(["doctor", "--format", "json", "--baselines", str(tmp_path), "--python", "nowhere"])
    document = json.loads(capsys.readouterr().out)
    grades = {check["name"]: check["grade"] for check in document["checks"]}
    assert (status, grades["gpus"], grades["clocks"], grades["packages"]) == (1, "WARN", "SKIP", "FAIL")


def test_only_what_is_cheap_ends_a_run() -> None:
    slow = replace(
        readings(*cards({})), steal=1.0, lost_gpus=LostGpus("one is lost", sure=True), client_floor=("none", False)
    )
    assert list(early_failures(slow)) == []


def test_a_card_without_a_sensor_is_not_judged() -> None:
    assert inspect_cards(machine({}, FakeNvml(*cards({})), Path("/nowhere")), None, ()) == ()


def test_nvml_tells_which_cuda_the_driver_runs() -> None:
    assert NvmlSensor(FakeNvml()).driver_cuda == (13, 0)


def test_this_pythons_requirements_are_read() -> None:
    from pytest_decodegate.resources.probe import INSTALLED, ask_python

    found = ask_python(sys.executable, INSTALLED, {}, 60.0, ())
    assert set(found) <= {"nccl", "vllm_wants_torch"}
