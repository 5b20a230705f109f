"""Where a rank works, from doubles of torch's device and of sysfs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_decodegate.workloads.runtime.location import location

torch = pytest.importorskip("torch", reason="torch knows the device")

CARD = {"uuid": "aa-bb", "pci_domain_id": 0, "pci_bus_id": 0xB1, "pci_device_id": 0}


def gpu(monkeypatch: pytest.MonkeyPatch, card: dict[str, Any], clock: object = 1965) -> None:
    def clock_rate(_index: int) -> object:
        if isinstance(clock, Exception):
            raise clock

        return clock

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: SimpleNamespace(**card))
    monkeypatch.setattr(torch.cuda, "clock_rate", clock_rate)


def test_a_card_has_address_link_and_clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "sys/bus/pci/devices/0000:b1:00.0"
    folder.mkdir(parents=True)
    (folder / "current_link_speed").write_text("32.0 GT/s PCIe\n")
    (folder / "current_link_width").write_text("16\n")
    gpu(monkeypatch, CARD)
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setattr("socket.gethostname", lambda: "node-b")
    assert location(cuda=True, root=tmp_path) == {
        "host": "node-b",
        "local_rank": 2,
        "gpu": "GPU 2 (GPU-aa-bb)",
        "bus_id": "0000:b1:00.0",
        "pcie": "32.0 GT/s x16",
        "sm_clock_mhz": {"median": 1965},
    }


@pytest.mark.parametrize("card", [CARD, {}])
def test_what_the_node_does_not_tell_is_unknown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, card: dict[str, Any]
) -> None:
    gpu(monkeypatch, card, ModuleNotFoundError("pynvml"))
    found = location(cuda=True, root=tmp_path)
    assert (found["pcie"], found["sm_clock_mhz"]) == (None, None)
    assert found["bus_id"] == ("0000:b1:00.0" if card else None)


def test_a_rank_without_a_gpu_has_only_its_host() -> None:
    assert location(cuda=False).keys() == {"host", "local_rank"}
