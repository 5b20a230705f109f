"""Imports point one way, and what runs on the ranks needs nothing but the standard library."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import import_graph
import pytest
from import_graph import PACKAGE, ROOT, Module

MODULES = import_graph.modules()

RANK_SIDE = [
    *(name for name in MODULES if name.startswith("workloads.")),
    *("gang.worker", "gang.protocol", "process.guard", "machine.stack", "metric", "errors"),
]

# Each room may use those named and itself; single modules at the top are rooms of their own. Type-only imports count.
MAY_USE = {
    "errors": set(),
    "metric": {"errors"},
    "process": set(),
    "machine": {"process", "metric", "errors"},
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
    assert import_graph.rooms(import_graph.graph(MODULES))[room] <= MAY_USE[room]


@pytest.mark.parametrize("room", ["gate", "baseline", "compare", "importing"])
def test_the_pure_rooms_know_neither_pytest_nor_torch(room: str) -> None:
    names = {dotted.split(".")[0] for one in MODULES.values() if one.room == room for dotted in one.imports()}
    assert not names & {"pytest", "_pytest", "torch", "vllm", "pynvml"}


def test_no_test_file_imports_from_another() -> None:
    """Builders live in support modules: a test file that others need runs their tests' set-up in its own name."""
    tests = sorted(Path(__file__).parent.glob("test_*.py"))
    assert [name for path in tests for name in _test_modules_named(path.read_text(encoding="utf-8"))] == []


def _test_modules_named(source: str) -> list[str]:
    """Imports of test modules, those in the scripts of subprocesses included."""
    return re.findall(r"^\s*(?:from|import) +(test_\w+)", source, re.MULTILINE)
