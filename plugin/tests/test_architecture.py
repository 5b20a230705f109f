"""Imports point one way, and what runs on the ranks needs nothing but the standard library."""

from __future__ import annotations

import ast
import sys

import import_graph
import pytest
from import_graph import PACKAGE, ROOT, Module

MODULES = import_graph.modules()

RANK_SIDE = [
    *(name for name in MODULES if name.startswith("workloads.")),
    *("gang.worker", "gang.protocol", "gang.connection", "process.guard", "machine.stack", "metric", "errors"),
    *("printable", "redaction"),
]

BELOW_ALL = {"printable", "redaction"}
"""Pure functions on texts that every room may use; they use none."""

# Each room may use those named and itself; single modules at the top are rooms of their own. Type-only imports count.
MAY_USE = {
    "errors": set(),
    "metric": {"errors"},
    "process": set(),
    "machine": {"metric", "errors"},
    "gang": {"process", "errors"},
    "workloads": {"gang", "metric", "errors"},
    "baseline": {"machine", "metric", "errors"},
    "importing": {"baseline", "machine", "metric", "errors"},
    "gate": {"baseline", "machine", "metric", "errors"},
    "compare": {"gate", "baseline", "machine", "metric", "errors"},
    "client": {"metric", "errors"},
    "serving": {"client", "process", "workloads", "metric", "errors"},
}


def test_the_parser_sees_every_kind_of_import() -> None:
    source = (
        "import os.path\nfrom . import a\nfrom ..gate import b\nfrom .c import D\n"
        "if TYPE_CHECKING:\n    from ..x.y import Z\ndef f():\n    from pytest_decodegate.metric import Metric\n"
    )
    module = Module(ROOT / "room" / "here.py", "room.here")
    module.__dict__["tree"] = ast.parse(source)
    found = {name.removeprefix(f"{PACKAGE}.") for name in module.imports()}
    assert found == {"os.path", "room.a", "gate.b", "room.c.D", "x.y.Z", "metric.Metric"}


@pytest.mark.parametrize("name", sorted(RANK_SIDE))
def test_the_ranks_side_imports_only_the_standard_library_at_the_top(name: str) -> None:
    foreign = {dotted.split(".")[0] for dotted in MODULES[name].imports(top_level=True)} - set(sys.stdlib_module_names)
    assert foreign <= {PACKAGE, ""}


@pytest.mark.parametrize("room", sorted(MAY_USE))
def test_a_room_uses_only_the_rooms_below_it(room: str) -> None:
    assert import_graph.rooms(import_graph.graph(MODULES))[room] - BELOW_ALL <= MAY_USE[room]


@pytest.mark.parametrize("room", sorted(BELOW_ALL))
def test_what_every_room_may_use_uses_none(room: str) -> None:
    assert not import_graph.rooms(import_graph.graph(MODULES))[room]


@pytest.mark.parametrize("room", ["gate", "baseline", "compare", "importing"])
def test_the_pure_rooms_know_neither_pytest_nor_torch(room: str) -> None:
    names = {dotted.split(".")[0] for one in MODULES.values() if one.room == room for dotted in one.imports()}
    assert not names & {"pytest", "_pytest", "torch", "vllm", "pynvml"}
