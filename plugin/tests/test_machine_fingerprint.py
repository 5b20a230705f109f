from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from fake_nvml import BLACKWELL, NOT_SUPPORTED, FakeGpu, FakeNvml

from pytest_decodegate.errors import BadInput, DecodegateError
from pytest_decodegate.machine.fingerprint import Fingerprint, machine, provenance
from pytest_decodegate.machine.gpus import Gpu
from pytest_decodegate.machine.host import read_host, short_cpu
from pytest_decodegate.machine.nvml import GpuProcess, GpuReading, open_sensor
from pytest_decodegate.machine.pcie import PcieLink
from pytest_decodegate.machine.provenance import Provenance, differences, parse_declared, undeclared
from pytest_decodegate.metric import Json


def host_with(*gpus: FakeGpu, environ: Mapping[str, str] | None = None) -> Fingerprint:
    return machine(environ or {}, FakeNvml(*gpus))


def uuids(gpus: Sequence[Gpu]) -> list[int]:
    return [gpu.index for gpu in gpus]


def test_two_h200s_have_a_class_with_their_link() -> None:
    print_ = host_with(FakeGpu(1), FakeGpu(2))
    assert print_.machine_class == "NVIDIA-H200-x2-NVLink"
    assert print_.no_gpu_reason == ""
    assert print_.problems == ()
    assert print_.gpus[0].machine == {
        "memory_gib": 140,
        "pci_device_id": "0x233510de",
        "sm_clock_max_mhz": 1980,
        "memory_clock_max_mhz": 3201,
        "sm_clock_set_mhz": None,
        "memory_clock_set_mhz": None,
        "power_limit_w": 700,
        "ecc": True,
        "mig": False,
        "persistence": True,
        "compute_mode": "default",
        "pcie_gen_max": 5,
        "pcie_width_max": 16,
        "nvlinks_active": 18,
    }


def test_eight_blackwells_on_pcie() -> None:
    print_ = host_with(*(FakeGpu(place, BLACKWELL) for place in range(1, 9)))
    assert print_.machine_class == "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition-x8-PCIe-SYS"


def test_one_gpu_has_no_link() -> None:
    print_ = host_with(FakeGpu(1))
    assert print_.link is None
    assert print_.machine_class == "NVIDIA-H200-x1"


def test_unlike_gpus_are_all_named() -> None:
    print_ = host_with(FakeGpu(1), FakeGpu(2, BLACKWELL), FakeGpu(3, BLACKWELL))
    assert print_.machine_class.startswith("NVIDIA-H200-x1-NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition-x2-")


@pytest.mark.parametrize("name", ["NVIDIA Tesla V100-SXM2-32GB", "Tesla V100-SXM2-32GB", "NVIDIA V100-SXM2-32GB"])
def test_a_driver_that_renames_the_gpu_keeps_its_class(name: str) -> None:
    assert host_with(FakeGpu(1, changes={"nvmlDeviceGetName": name})).machine_class == "NVIDIA-V100-SXM2-32GB-x1"


@pytest.mark.parametrize(
    ("ancestors", "link"),
    [((10, 10), "PCIe-PIX"), ((10, 30), "PCIe-PHB"), ((40, 50), "PCIe-SYS"), ((20, 0), "PCIe-PXB")],
)
def test_the_longest_way_between_two_gpus_is_the_link(ancestors: tuple[int, int], link: str) -> None:
    # Three pairs, asked in the same order by everybody who asks.
    ways = itertools.cycle([ancestors[0], ancestors[1], ancestors[0]])
    slow = {"nvmlDeviceGetTopologyCommonAncestor": lambda other: next(ways)}
    assert host_with(*(FakeGpu(place, BLACKWELL, slow) for place in (1, 2, 3))).link == link


def test_a_link_that_nobody_can_tell_is_plain_pcie() -> None:
    mute = {"nvmlDeviceGetTopologyCommonAncestor": NOT_SUPPORTED}
    assert host_with(FakeGpu(1, BLACKWELL, mute), FakeGpu(2, BLACKWELL, mute)).link == "PCIe"


def test_active_nvlinks_stand_in_where_peer_status_is_not_supported() -> None:
    mute = {"nvmlDeviceGetP2PStatus": NOT_SUPPORTED}
    assert host_with(FakeGpu(1, changes=mute), FakeGpu(2, changes=mute)).link == "NVLink"
    assert host_with(FakeGpu(1, BLACKWELL, mute), FakeGpu(2, BLACKWELL, mute)).link == "PCIe-SYS"


def test_one_pair_without_nvlink_makes_the_link_pcie() -> None:
    def status(other: FakeGpu, index: int) -> int:
        missing = index == pynvml.NVML_P2P_CAPS_INDEX_NVLINK and other.place == 3
        return int(pynvml.NVML_P2P_STATUS_NOT_SUPPORTED if missing else pynvml.NVML_P2P_STATUS_OK)

    gpus = [FakeGpu(place, changes={"nvmlDeviceGetP2PStatus": status}) for place in (1, 2, 3)]
    assert host_with(*gpus).link == "PCIe-SYS"
    assert host_with(*gpus[:2]).link == "NVLink"


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("0,2", [0, 2]),
        ("2, 0", [2, 0]),
        ("GPU-2000aaaa", [1]),
        ("GPU-3000aaaa-0000-0000-0000-000000000000,0", [2, 0]),
        ("1,-1,0", [1]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
    ],
)
def test_visible_devices_are_honoured_in_their_order(setting: str, expected: list[int]) -> None:
    nvml = FakeNvml(FakeGpu(1), FakeGpu(2), FakeGpu(3))
    assert uuids(machine({"CUDA_VISIBLE_DEVICES": setting}, nvml).gpus) == expected


def test_indices_follow_the_pci_bus_whatever_nvml_enumerates_first() -> None:
    found = machine({}, FakeNvml(FakeGpu(7), FakeGpu(3))).gpus
    assert [gpu.bus_id for gpu in found] == ["00000000:03:00.0", "00000000:07:00.0"]
    assert uuids(found) == [0, 1]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("0,9", r"'9' names 0 GPUs; there are 0 = GPU-1000aaaa"),
        ("GPU-", r"'GPU-' names 2 GPUs"),
        ("GPU-ffff", r"'GPU-ffff' names 0 GPUs"),
        ("all", r"'all' names 0 GPUs"),
        ("²", r"'²' names 0 GPUs"),
        ("1,٣", r"'٣' names 0 GPUs"),
        ("1,1", "names a GPU twice"),
    ],
)
def test_a_gpu_that_is_not_there_is_refused_and_not_dropped(setting: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        machine({"CUDA_VISIBLE_DEVICES": setting}, FakeNvml(FakeGpu(1), FakeGpu(2)))


def test_a_mig_instance_is_one_gpu_with_its_own_name_and_memory() -> None:
    instance = FakeGpu(
        1,
        changes={
            "nvmlDeviceGetUUID": "MIG-77",
            "nvmlDeviceGetName": "NVIDIA H200 MIG 1g.18gb",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=18 * 2**30),
        },
    )
    places = [pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND), instance]
    parent = FakeGpu(
        1,
        changes={
            "nvmlDeviceGetMigMode": [1, 1],
            "nvmlDeviceGetMaxMigDeviceCount": 2,
            "nvmlDeviceGetMigDeviceHandleByIndex": lambda place: places[place],
        },
    )
    print_ = host_with(parent, environ={"CUDA_VISIBLE_DEVICES": "MIG-77"})
    assert print_.machine_class == "NVIDIA-H200-MIG-1g.18gb-x1"
    assert print_.gpus[0].machine["memory_gib"] == 18
    assert print_.gpus[0].machine["mig"] is True
    assert print_.gpus[0].uuid == "MIG-77"


def test_hidden_gpus_make_a_cpu_machine_that_says_why() -> None:
    print_ = host_with(FakeGpu(1), FakeGpu(2), environ={"CUDA_VISIBLE_DEVICES": ""})
    assert print_.no_gpu_reason == "CUDA_VISIBLE_DEVICES hides every GPU of this machine (2)"
    assert print_.machine_class.startswith("cpu-")


def test_no_gpu_at_all_says_so_whatever_is_visible() -> None:
    print_ = host_with(environ={"CUDA_VISIBLE_DEVICES": "0"})
    assert print_.no_gpu_reason == "NVML sees no GPU"


def silent(code: int) -> FakeNvml:
    return FakeNvml(init=pynvml.NVMLError(code))


GPU_ON_PCI = {
    "sys/bus/pci/devices/0000:18:00.0/vendor": "0x10de\n",
    "sys/bus/pci/devices/0000:18:00.0/class": "0x030200\n",
}
NO_GPU_ON_PCI = {
    "sys/bus/pci/devices/0000:18:00.1/vendor": "0x10de\n",  # the audio function of a card
    "sys/bus/pci/devices/0000:18:00.1/class": "0x040300\n",
    "sys/bus/pci/devices/0000:00:02.0/vendor": "0x8086\n",
    "sys/bus/pci/devices/0000:00:02.0/class": "0x030000\n",
}
HARDWARE: tuple[Mapping[str, str], ...] = (GPU_ON_PCI, {"proc/driver/nvidia/version": "NVRM version: 580"})


@pytest.mark.parametrize("files", HARDWARE, ids=["pci", "proc"])
@pytest.mark.parametrize(
    ("code", "said"),
    [
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "version mismatch*an upgrade left the kernel module"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "Insufficient Permissions*permissions of /dev/nvidia"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded*modprobe nvidia"),
        (pynvml.NVML_ERROR_GPU_IS_LOST, "GPU is lost*dmesg"),
        (pynvml.NVML_ERROR_UNKNOWN, "Unknown Error*nvidia-smi"),
    ],
)
def test_a_driver_that_does_not_answer_where_there_are_gpus_is_an_error(
    tmp_path: Path, files: Mapping[str, str], code: int, said: str
) -> None:
    write(tmp_path, {**NO_GPU_ON_PCI, **files})
    with pytest.raises(
        DecodegateError, match=f"^this host has .*{said.replace('*', '.*')}.*CUDA_VISIBLE_DEVICES"
    ) as told:
        machine({}, silent(code), tmp_path)

    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "code",
    [pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_GPU_IS_LOST, 999],
)
def test_an_answer_that_only_a_driver_gives_is_an_error_without_visible_hardware_too(tmp_path: Path, code: int) -> None:
    with pytest.raises(DecodegateError, match="this host has an NVIDIA driver"):
        machine({}, silent(code), write(tmp_path, NO_GPU_ON_PCI))


def test_no_driver_is_a_reason_and_no_error(tmp_path: Path) -> None:
    unloaded, absent = silent(pynvml.NVML_ERROR_DRIVER_NOT_LOADED), silent(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    write(tmp_path, NO_GPU_ON_PCI)
    assert machine({}, unloaded, tmp_path).no_gpu_reason == "no NVIDIA driver answers (NVML: Driver Not Loaded)"
    assert machine({}, absent, tmp_path).no_gpu_reason.endswith("NVML Shared Library Not Found)")
    assert open_sensor(absent) is None


def test_a_host_without_the_drivers_library_says_what_it_has(tmp_path: Path) -> None:
    """A container that was given no GPU sees those of its host all the same."""
    found = machine({}, silent(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND), write(tmp_path, GPU_ON_PCI))
    assert found.no_gpu_reason.endswith("although this host has 1 NVIDIA GPU on PCI (0000:18:00.0)")


@pytest.mark.parametrize("setting", ["", "-1", "NoDevFiles"])
def test_gpus_that_are_hidden_on_purpose_may_be_broken(tmp_path: Path, setting: str) -> None:
    mismatch = silent(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    found = machine({"CUDA_VISIBLE_DEVICES": setting}, mismatch, write(tmp_path, GPU_ON_PCI))
    assert re.match(r"CUDA_VISIBLE_DEVICES='.*' hides every GPU; no NVIDIA driver answers", found.no_gpu_reason)


def test_a_driver_that_sees_none_of_the_gpus_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DecodegateError, match=r"1 NVIDIA GPU on PCI \(0000:18:00.0\), but NVML sees no GPU"):
        machine({}, FakeNvml(), write(tmp_path, GPU_ON_PCI))


def test_a_missing_binding_is_a_reason_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert machine({}, root=tmp_path).no_gpu_reason == "the Python package nvidia-ml-py is not installed"
    with pytest.raises(DecodegateError, match="python -m pip install nvidia-ml-py"):
        machine({}, root=write(tmp_path, GPU_ON_PCI))


def test_hidden_gpus_are_counted() -> None:
    assert host_with(FakeGpu(1), FakeGpu(2), FakeGpu(3), environ={"CUDA_VISIBLE_DEVICES": "1"}).hidden == 2


class OldNvml(FakeNvml):
    """nvidia-ml-py3 7.352 and its like: text is bytes, and what came later is not there."""

    missing = ("NVLINK", "P2P", "DEPRECATED", "NvLink", "MigMode", "MigDevice", "P2PStatus", "Attributes")

    def __getattr__(self, name: str) -> Any:
        if any(part in name for part in self.missing):
            raise AttributeError(name)

        return super().__getattr__(name)

    def _ask(self, name: str, handle: FakeGpu, *arguments: Any) -> Any:
        answer = super()._ask(name, handle, *arguments)
        return answer.encode() if isinstance(answer, str) else answer

    def nvmlSystemGetDriverVersion(self) -> Any:  # noqa: N802
        return super().nvmlSystemGetDriverVersion().encode()


def test_a_binding_of_ten_years_ago_tells_the_same_machine() -> None:
    old, new = machine({}, OldNvml(FakeGpu(1, BLACKWELL))), host_with(FakeGpu(1, BLACKWELL))
    assert (old.machine_class, old.driver, old.problems) == (new.machine_class, new.driver, ())
    assert old.gpus[0].uuid == new.gpus[0].uuid
    assert {name for name, value in old.gpus[0].machine.items() if value != new.gpus[0].machine[name]} == {"mig"}
    json.dumps(provenance(old, {}, {}).to_json())


def mig_host(*instances: FakeGpu, enabled: bool = True) -> FakeNvml:
    """A GPU in MIG mode that is cut into `instances`, and a whole one."""

    def instance(place: int) -> Any:
        return instances[place] if place < len(instances) else pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    cut = {
        "nvmlDeviceGetMigMode": [int(enabled), 1],
        "nvmlDeviceGetMaxMigDeviceCount": 7,
        "nvmlDeviceGetMigDeviceHandleByIndex": instance,
    }
    return FakeNvml(FakeGpu(1, changes=cut), FakeGpu(2))


def mig_slice(uuid: str, gib: int, slices: int, name: str = "NVIDIA H200") -> FakeGpu:
    return FakeGpu(
        1,
        changes={
            "nvmlDeviceGetUUID": uuid,
            "nvmlDeviceGetName": name,
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=gib * 2**30),
            "nvmlDeviceGetAttributes_v2": SimpleNamespace(gpuInstanceSliceCount=slices),
        },
    )


SLICES = (mig_slice("MIG-77", 18, 1, "NVIDIA H200 MIG 1g.18gb"), mig_slice("MIG-88", 35, 2))


@pytest.mark.parametrize("setting", [None, "0", "0,1", "GPU-1000aaaa"])
def test_a_gpu_in_mig_mode_without_a_chosen_instance_is_refused(setting: str | None) -> None:
    listed = r"GPU 0 .* is in MIG mode.*MIG-77 \(NVIDIA H200 MIG 1g\.18gb on GPU 0\), MIG-88 \(NVIDIA H200 MIG 2g\.35gb"
    with pytest.raises(BadInput, match=listed):
        machine({} if setting is None else {"CUDA_VISIBLE_DEVICES": setting}, mig_host(*SLICES))


def test_a_gpu_in_mig_mode_that_nobody_has_cut_says_so() -> None:
    with pytest.raises(BadInput, match="it has none: `nvidia-smi mig -cgi` makes one"):
        machine({}, mig_host())


def test_gpus_beside_one_in_mig_mode_are_whole() -> None:
    assert machine({"CUDA_VISIBLE_DEVICES": "1"}, mig_host(*SLICES)).machine_class == "NVIDIA-H200-x1"
    assert machine({}, mig_host(*SLICES, enabled=False)).machine_class == "NVIDIA-H200-x2-NVLink"


def test_two_sizes_of_slice_are_two_classes_whatever_the_driver_calls_them() -> None:
    found = [machine({"CUDA_VISIBLE_DEVICES": uuid}, mig_host(*SLICES)).machine_class for uuid in ("MIG-77", "MIG-88")]
    assert found == ["NVIDIA-H200-MIG-1g.18gb-x1", "NVIDIA-H200-MIG-2g.35gb-x1"]


def test_a_wrong_instance_lists_those_that_there_are() -> None:
    with pytest.raises(
        BadInput, match=r"'MIG-99' names 0 GPUs; there are 0 = GPU-1.*, MIG-77 \(.*1g\.18gb.*\), MIG-88"
    ):
        machine({"CUDA_VISIBLE_DEVICES": "MIG-99"}, mig_host(*SLICES))


@pytest.mark.parametrize("setting", ["MIG-77,MIG-88", "MIG-77,1"])
def test_more_than_cuda_would_show_beside_an_instance_is_refused(setting: str) -> None:
    with pytest.raises(BadInput, match="CUDA shows a process one instance and nothing beside it"):
        machine({"CUDA_VISIBLE_DEVICES": setting}, mig_host(*SLICES))


UNIFIED = {"nvmlDeviceGetName": "NVIDIA GB10", "nvmlDeviceGetMemoryInfo": NOT_SUPPORTED}

LIBCUDA = """
#include <stdlib.h>
int cuInit(unsigned flags) { return flags; }
int cuDeviceGet(int *device, int number) { *device = 40 + number; return getenv("CUDA_VISIBLE_DEVICES") ? 0 : 100; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = 128446779392; return device == 40 ? BROKEN : 101; }
"""


@pytest.fixture
def libcuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[int], None]:
    """Builds a libcuda.so.1 whose cuDeviceTotalMem answers with a code, and lets processes find it."""
    compiler = shutil.which("cc") or shutil.which("gcc") or pytest.skip("no C compiler to build a libcuda.so.1 with")

    def build(code: int) -> None:
        command = [compiler, "-shared", "-fPIC", f"-DBROKEN={code}", "-o", "libcuda.so.1", "libcuda.c"]
        (tmp_path / "libcuda.c").write_text(LIBCUDA)
        subprocess.run(command, cwd=tmp_path, check=True)
        monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))

    return build


def test_memory_that_nvml_does_not_tell_is_asked_of_cuda(libcuda: Callable[[int], None]) -> None:
    libcuda(0)
    (gpu,) = host_with(FakeGpu(1, changes=UNIFIED)).gpus
    assert gpu.memory_gib == gpu.machine["memory_gib"] == 120


def test_memory_that_nobody_tells_is_unknown_and_not_zero(libcuda: Callable[[int], None]) -> None:
    libcuda(999)
    found = host_with(FakeGpu(1, changes=UNIFIED))
    assert found.problems == (
        "GPU 0: NVML does not tell its memory, and CUDA neither (cuDeviceTotalMem_v2 answers 999)",
    )
    assert found.gpus[0].machine["memory_gib"] is None
    with pytest.raises(BadInput, match="neither NVML nor CUDA tells how much memory"):
        assert found.gpus[0].memory_gib


def test_a_broken_gpu_host_does_not_pass_for_a_cpu_machine() -> None:
    lost = FakeGpu(1, changes={"nvmlDeviceGetName": pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)})
    with pytest.raises(DecodegateError, match="GPU is lost"):
        host_with(lost)


def test_what_is_pending_until_a_reboot_is_not_what_is() -> None:
    pending = {"nvmlDeviceGetEccMode": [1, 0], "nvmlDeviceGetMigMode": [0, 1]}
    (gpu,) = host_with(FakeGpu(1, changes=pending)).gpus
    assert (gpu.machine["ecc"], gpu.machine["mig"]) == (True, False)


@pytest.mark.parametrize(
    "code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_DEPRECATED]
)
def test_a_query_that_a_driver_lacks_or_dropped_is_unknown_and_no_problem(code: int) -> None:
    print_ = host_with(FakeGpu(1, changes={"nvmlDeviceGetApplicationsClock": pynvml.NVMLError(code)}))
    assert print_.gpus[0].machine["sm_clock_set_mhz"] is None
    assert print_.problems == ()


def test_errors_that_are_not_lack_of_support_are_reported() -> None:
    odd = {"nvmlDeviceGetEccMode": pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)}
    print_ = host_with(FakeGpu(1, changes=odd))
    assert print_.gpus[0].machine["ecc"] is None
    assert print_.problems == ("GPU 0: nvmlDeviceGetEccMode: Unknown Error",)


def told(*gpus: FakeGpu, driver: str = "580.159.03", environ: Mapping[str, str] | None = None) -> Provenance:
    stack: dict[str, Json] = {
        "nccl": "2.28.9",
        "nccl_path": ["somewhere"],
        "executable": "python",
        "flag:max-num-seqs": 8,
    }
    return provenance(machine({}, FakeNvml(*gpus, driver=driver)), stack, environ or {})


def test_provenance_sorts_facts_into_three_lists() -> None:
    found = told(FakeGpu(1), environ={"NCCL_PROTO": "LL", "VLLM_API_KEY": "k", "HOME": "h"})
    machine_gpus = found.machine["gpus"]
    assert isinstance(machine_gpus, list)
    assert isinstance(machine_gpus[0], dict)
    assert machine_gpus[0]["name"] == "H200"
    assert found.stack["driver"] == "580.159.03"
    assert found.stack["vbios"] == ["96.00.BC.00.01"]
    assert found.stack["env:NCCL_PROTO"] == "LL"
    assert found.stack["env:VLLM_API_KEY"] == "redacted"
    assert not {"nccl_path", "executable", "env:HOME"} & set(found.stack)
    assert found.telemetry["nccl_path"] == ["somewhere"]
    assert Provenance.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_another_card_of_the_same_kind_is_the_same_machine() -> None:
    assert differences(told(FakeGpu(1)), told(FakeGpu(2))) == ()


def test_a_power_limit_reset_by_the_reboot_of_a_driver_upgrade_stays_undeclared() -> None:
    capped = FakeGpu(2, changes={"nvmlDeviceGetEnforcedPowerLimit": 450_000})
    found = differences(told(FakeGpu(1), FakeGpu(2)), told(FakeGpu(1), capped, driver="590.10"))
    assert [str(one) for one in undeclared(found, parse_declared("driver"))] == ["gpus[1].power_limit_w: 700 -> 450"]


def test_a_machine_without_gpus_has_a_provenance_without_a_driver() -> None:
    found = told()
    assert found.machine["gpus"] == []
    assert "driver" not in found.stack
    assert found.telemetry["no_gpu_reason"] == "NVML sees no GPU"


def test_this_machine_has_a_class_that_is_a_folder_name() -> None:
    here = machine({"CUDA_VISIBLE_DEVICES": ""})
    assert re.fullmatch(r"cpu-[A-Za-z0-9._-]+-\d+c", here.machine_class)
    assert here.no_gpu_reason
    assert here.host.cores >= 1


def write(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)

    return root


def test_a_host_is_read_from_proc_and_sys(tmp_path: Path) -> None:
    cpu = (
        "processor : 0\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9654 96-Core Processor\nstepping : 1\n"
    )
    root = write(
        tmp_path,
        {
            "proc/cpuinfo": cpu + "\n" + cpu.replace("9654", "0000"),
            "proc/sys/kernel/osrelease": "6.8.0-60-generic\n",
            "proc/meminfo": "MemTotal:       1583908204 kB\nMemFree: 1 kB\n",
            "proc/1/cgroup": "0::/init.scope\n",
            "sys/fs/cgroup/cpu.max": "150000 100000\n",
            "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
            "sys/devices/system/node/node0/cpulist": "0\n",
            "sys/devices/system/node/node1/cpulist": "1\n",
        },
    )
    host = read_host(root, cores=192)
    assert host.kernel == "6.8.0-60-generic"
    assert host.machine == {
        "cpu": "AMD EPYC 9654 96-Core Processor",
        "cpu_family_model_stepping": "25/17/1",
        "cores": 192,
        "cpu_quota_cores": 1.5,
        "governor": "performance",
        "transparent_hugepages": "madvise",
        "numa_nodes": 2,
    }
    assert host.telemetry["memory_gb"] == 1622
    assert host.telemetry["container"] is False


def test_a_container_without_limits_is_told(tmp_path: Path) -> None:
    host = read_host(write(tmp_path, {"run/.containerenv": "", "sys/fs/cgroup/cpu.max": "max 100000\n"}), cores=1)
    assert host.telemetry["container"] is True
    assert host.machine["cpu_quota_cores"] is None
    assert host.machine["governor"] is None


@pytest.mark.parametrize(
    ("model", "short"),
    [
        ("Intel(R) Xeon(R) CPU E5-2690 v3 @ 2.60GHz", "Intel-Xeon-E5-2690-v3"),
        ("Intel(R) Xeon(R) Processor", "Intel-Xeon"),
        ("AMD EPYC 9654 96-Core Processor", "AMD-EPYC-9654"),
        ("INTEL(R) XEON(R) PLATINUM 8570", "INTEL-XEON-PLATINUM-8570"),
        ("aarch64", "aarch64"),
        ("", "unknown"),
    ],
)
def test_cpu_models_become_short_file_names(model: str, short: str) -> None:
    assert short_cpu(model) == short


def test_the_sensor_reads_in_units_and_names_reasons() -> None:
    gpu = FakeGpu(1)
    sensor = open_sensor(FakeNvml(gpu))
    assert sensor
    assert sensor.sample(gpu.uuid) == GpuReading(1755, 3200, 41, 118.5, frozenset({"sw_power_cap"}), PcieLink(1, 16))
    assert sensor.used_mib(gpu.uuid) == 143000
    assert sensor.processes(gpu.uuid) == ()
    assert sensor.problems == ()


def test_what_the_sensor_is_refused_again_and_again_is_kept_once() -> None:
    gpu = FakeGpu(1, changes={"nvmlDeviceGetPowerUsage": pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)})
    sensor = open_sensor(FakeNvml(gpu))
    assert sensor
    assert [sensor.sample(gpu.uuid).power_w for _ in range(3)] == [None] * 3
    assert sensor.problems == (f"{gpu.uuid}: nvmlDeviceGetPowerUsage: Insufficient Permissions",)


def test_a_driver_with_the_old_name_of_the_reasons_is_understood() -> None:
    old = {
        "nvmlDeviceGetCurrentClocksEventReasons": pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND),
        "nvmlDeviceGetCurrentClocksThrottleReasons": 0x48,
    }
    gpu = FakeGpu(1, changes=old)
    sensor = open_sensor(FakeNvml(gpu))
    assert sensor
    assert sensor.sample(gpu.uuid).reasons == {"hw_slowdown", "hw_thermal_slowdown"}


def test_processes_have_names_without_folders_and_memory_where_nvml_may_see_it() -> None:
    running = [SimpleNamespace(pid=2**22 + 5, usedGpuMemory=None), SimpleNamespace(pid=1, usedGpuMemory=3 * 2**20)]
    gpu = FakeGpu(1, changes={"nvmlDeviceGetComputeRunningProcesses": running})
    sensor = open_sensor(FakeNvml(gpu))
    assert sensor
    known, unknown = sensor.processes(gpu.uuid)
    assert known == GpuProcess(1, "python3", 3)
    assert str(known) == "pid 1 (python3, 3 MiB)"
    assert str(unknown) == f"pid {2**22 + 5} (unknown, an unknown amount of memory)"


def test_a_gpu_that_went_away_is_an_error_with_its_uuid() -> None:
    sensor = open_sensor(FakeNvml())
    assert sensor
    with pytest.raises(DecodegateError, match="GPU GPU-1 is not there"):
        sensor.used_mib("GPU-1")


def test_unsupported_sensors_read_as_nothing() -> None:
    silent: dict[str, Callable[..., Any] | Exception] = dict.fromkeys(
        (
            "nvmlDeviceGetClockInfo",
            "nvmlDeviceGetTemperature",
            "nvmlDeviceGetPowerUsage",
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetCurrentClocksThrottleReasons",
            "nvmlDeviceGetCurrPcieLinkGeneration",
            "nvmlDeviceGetMemoryInfo",
        ),
        NOT_SUPPORTED,
    )
    gpu = FakeGpu(1, changes=silent)
    sensor = open_sensor(FakeNvml(gpu))
    assert sensor
    assert sensor.sample(gpu.uuid) == GpuReading(None, None, None, None, frozenset())
    assert sensor.used_mib(gpu.uuid) == 0
