"""Stand-ins for modules of vLLM and for a GPU, so that adapters can be tested where neither is."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


def install(monkeypatch: pytest.MonkeyPatch, modules: dict[str, dict[str, Any]]) -> None:
    """Put modules with these attributes under these dotted names, and packages above them where none is loaded."""
    for name, attributes in modules.items():
        parts = name.split(".")
        for depth in range(1, len(parts)):
            _put(monkeypatch, ".".join(parts[:depth]), {"__path__": []})

        _put(monkeypatch, name, attributes)


def gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], multiprocessors: int = 132) -> None:
    """Have torch tell of a GPU of that compute capability."""
    import torch

    properties = SimpleNamespace(multi_processor_count=multiprocessors, L2_cache_size=50 << 20)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: properties)


def aligned(ids: Any, block: int) -> tuple[Any, Any, Any]:
    """What moe_align_block_size gives: slots sorted by expert and padded to whole blocks with the number of slots.

    ids int [tokens, top_k]; int32 slots, the expert of each block, and how many slots there are [1] come out.
    """
    import torch

    flat = ids.flatten().tolist()
    slots: list[int] = []
    experts: list[int] = []
    for expert in sorted(set(flat)):
        own = [slot for slot, routed in enumerate(flat) if routed == expert]
        blocks = -(-len(own) // block)
        slots += own + [len(flat)] * (blocks * block - len(own))
        experts += [expert] * blocks

    return tuple(torch.tensor(each, dtype=torch.int32) for each in (slots, experts, [len(slots)]))


def _put(monkeypatch: pytest.MonkeyPatch, name: str, attributes: dict[str, Any]) -> None:
    module = ModuleType(name)
    vars(module).update(attributes)
    monkeypatch.setitem(sys.modules, name, module)
    parent, _, child = name.rpartition(".")
    if parent:
        monkeypatch.setattr(sys.modules[parent], child, module, raising=False)
