"""How GPUs are connected, from a double of NVML whose links are written down pair by pair."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from fake_nvml import BLACKWELL, H200, NOT_SUPPORTED, FakeGpu, FakeNvml

from pytest_decodegate.machine.fingerprint import machine, provenance
from pytest_decodegate.machine.provenance import Provenance, differences, parse_declared, undeclared
from pytest_decodegate.machine.topology import Topology
from pytest_decodegate.metric import Json

NOWHERE = Path("/nonexistent")


def topology(*cards: FakeGpu, root: Path = NOWHERE) -> Topology:
    return machine({}, FakeNvml(*cards), root).topology


def gpus(found: Topology) -> list[dict[str, Any]]:
    part = found.facts["gpus"]
    assert isinstance(part, list)
    return [entry for entry in part if isinstance(entry, dict)]


def test_gpus_on_a_switch_have_as_many_links_as_both_have_to_it() -> None:
    fewer = {"nvmlDeviceGetNvLinkState": lambda link: 1 if link < 9 else NOT_SUPPORTED}
    found = topology(FakeGpu(1), FakeGpu(2), FakeGpu(3, changes=fewer))
    assert found.p2p == "ok"
    assert found.facts["pairs"] == {
        "SYS, read ok, write ok, 18 NVLinks": "0-1",
        "SYS, read ok, write ok, 9 NVLinks": "0-2 1-2",
    }
    assert gpus(found)[2] == {
        "gpu": 2,
        "numa_node": None,
        "cpus": None,
        "nvlinks": 9,
        "nvlinks_to_switch": 9,
        "nvlink_versions": [4],
    }


@pytest.mark.parametrize("as_bytes", [True, False])
def test_direct_links_are_counted_where_they_end(as_bytes: bool) -> None:
    def far_end(link: int) -> SimpleNamespace:
        bus_id = "00000000:02:00.0" if link < 12 else "00000000:03:00.0"
        return SimpleNamespace(busId=bus_id.encode() if as_bytes else bus_id)

    direct = {
        "nvmlDeviceGetNvLinkRemoteDeviceType": lambda link: pynvml.NVML_NVLINK_DEVICE_TYPE_GPU,
        "nvmlDeviceGetNvLinkRemotePciInfo": far_end,
    }
    found = topology(*(FakeGpu(place, changes=direct) for place in (1, 2, 3)))
    assert found.facts["pairs"] == {
        "SYS, read ok, write ok, 12 NVLinks": "0-1",
        "SYS, read ok, write ok, 6 NVLinks": "0-2 1-2",
    }


def test_links_that_are_down_do_not_count() -> None:
    flapping = {"nvmlDeviceGetNvLinkState": lambda link: link % 2 if link < 18 else NOT_SUPPORTED}
    assert gpus(topology(FakeGpu(1, changes=flapping)))[0]["nvlinks"] == 9


def test_pcie_cards_have_no_links_and_a_reason_why_they_cannot_read_each_other() -> None:
    found = topology(FakeGpu(1, BLACKWELL), FakeGpu(2, BLACKWELL))
    assert found.p2p == "not supported"
    assert found.facts["pairs"] == {"SYS, read not supported, write not supported, 0 NVLinks": "all"}
    assert gpus(found)[0]["nvlink_versions"] == []


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (pynvml.NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED, "chipset not supported"),
        (pynvml.NVML_P2P_STATUS_DISABLED_BY_REGKEY, "disabled by registry key"),
        (99, "unknown"),
    ],
)
def test_one_pair_that_cannot_is_said(code: int, words: str) -> None:
    def status(other: FakeGpu, index: int) -> int:
        return code if other.place == 3 else int(pynvml.NVML_P2P_STATUS_OK)

    found = topology(*(FakeGpu(place, changes={"nvmlDeviceGetP2PStatus": status}) for place in (1, 2, 3)))
    assert found.p2p is not None
    assert set(found.p2p.split("; ")) == {"ok", words}


MUTE: Mapping[str, Any] = {
    **H200,
    "nvmlDeviceGetP2PStatus": NOT_SUPPORTED,
    "nvmlDeviceGetTopologyCommonAncestor": NOT_SUPPORTED,
    "nvmlDeviceGetNvLinkVersion": NOT_SUPPORTED,
    "nvmlDeviceGetNvLinkRemoteDeviceType": NOT_SUPPORTED,
    "nvmlDeviceGetNvLinkRemotePciInfo": NOT_SUPPORTED,
}


def test_eight_pcie_cards_on_two_sockets_are_told_by_socket(tmp_path: Path) -> None:
    """The reference host: pairs of a socket meet at its host bridge, others cross to the other socket."""

    def ancestor(place: int) -> Callable[[FakeGpu], int]:
        same, other = pynvml.NVML_TOPOLOGY_NODE, pynvml.NVML_TOPOLOGY_SYSTEM
        return lambda peer: int(same if (place > 4) == (peer.place > 4) else other)

    for place in range(1, 9):
        folder = tmp_path / f"sys/bus/pci/devices/0000:{place:02x}:00.0"
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{int(place > 4)}\n")
        (folder / "local_cpulist").write_text("64-127\n" if place > 4 else "0-63\n")

    cards = [
        FakeGpu(place, BLACKWELL, {"nvmlDeviceGetTopologyCommonAncestor": ancestor(place)}) for place in range(1, 9)
    ]
    found = topology(*cards, root=tmp_path)
    pairs = found.facts["pairs"]
    assert isinstance(pairs, dict)
    told = {text.partition(",")[0]: str(names).split() for text, names in pairs.items()}
    assert {way: len(names) for way, names in told.items()} == {"NODE": 12, "SYS": 16}
    assert [name for name in told["NODE"] if (int(name[0]) > 3) != (int(name[2]) > 3)] == []
    assert {text.partition(", ")[2] for text in pairs} == {"read not supported, write not supported, 0 NVLinks"}
    assert [gpu["numa_node"] for gpu in gpus(found)] == ["0"] * 4 + ["1"] * 4
    assert found.p2p == "not supported"


def test_what_is_not_supported_is_unknown_and_no_problem() -> None:
    print_ = machine({}, FakeNvml(FakeGpu(1, MUTE), FakeGpu(2, MUTE)), NOWHERE)
    found = print_.topology
    assert print_.problems == ()
    assert found.p2p is None
    assert found.facts["pairs"] == {"unknown, read unknown, write unknown, 0 NVLinks": "all"}
    assert gpus(found)[0]["nvlinks"] == 18


def test_the_cpus_near_a_gpu_are_read_from_sysfs(tmp_path: Path) -> None:
    folder = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text("1\n")
    (folder / "local_cpulist").write_text("48-95,144-191\n")
    near = gpus(topology(FakeGpu(1), root=tmp_path))[0]
    assert (near["numa_node"], near["cpus"]) == ("1", "48-95,144-191")


def test_a_machine_without_gpus_has_no_topology() -> None:
    assert topology() == Topology()
    assert (Topology().link, Topology().p2p, Topology().facts) == (None, None, {"gpus": [], "pairs": {}})


def told(*cards: FakeGpu, driver: str = "580") -> Provenance:
    return provenance(machine({}, FakeNvml(*cards, driver=driver), NOWHERE), {}, {})


def test_peer_access_that_a_driver_upgrade_switched_off_belongs_to_the_driver() -> None:
    off = {"nvmlDeviceGetP2PStatus": lambda other, index: 0 if index == 2 else 4}
    old = told(FakeGpu(1), FakeGpu(2))
    new = told(FakeGpu(1, changes=off), FakeGpu(2, changes=off), driver="590")
    found = differences(old, new)
    assert [str(one) for one in found] == ["driver: 580 -> 590", "driver_p2p: ok -> disabled by registry key"]
    assert undeclared(found, parse_declared("driver")) == ()
    assert undeclared(found, parse_declared("nccl")) == found


def test_a_file_that_does_not_know_peer_access_yet_is_comparable() -> None:
    new = told(FakeGpu(1), FakeGpu(2))
    stack = {name: value for name, value in new.stack.items() if name != "driver_p2p"}
    old = Provenance(new.machine, stack, {})
    assert differences(old, new) == differences(new, old) == ()


def test_files_of_nccl_are_unknown_only_to_who_did_not_look_for_them() -> None:
    looked = told(FakeGpu(1), FakeGpu(2))
    found: dict[str, Json] = {"nccl_conf_sha256": "ab", "nccl_plugins": {"libnccl-net.so": "cd"}}
    new = Provenance(looked.machine, {**looked.stack, **found}, {})
    older = Provenance(looked.machine, {name: looked.stack[name] for name in ("kernel", "driver", "vbios")}, {})
    assert differences(older, new) == differences(new, older) == ()
    fields = ["nccl_conf_sha256", "nccl_plugins.libnccl-net.so"]
    assert [one.field for one in differences(looked, new)] == fields
    assert [one.field for one in differences(new, looked)] == fields
