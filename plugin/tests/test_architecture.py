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
    *("gang.worker", "gang.protocol", "process.guard", "machine.stack", "metric", "errors", "cause"),
]

# Each room may use those named and itself; single modules at the top are rooms of their own. Type-only imports count.
MAY_USE = {
    "cause": set(),
    "errors": {"cause"},
    "metric": {"errors"},
    "process": set(),
    "machine": {"metric", "errors", "cause"},
    "gang": {"process", "errors", "cause"},
    "workloads": {"gang", "metric", "errors"},
    "baseline": {"machine", "metric", "errors"},
    "importing": {"baseline", "machine", "metric", "errors"},
    "gate": {"baseline", "machine", "metric", "errors", "cause"},
    "report": {"compare", "gate", "baseline", "machine", "metric", "errors", "cause"},
    "compare": {"gate", "baseline", "machine", "metric", "errors", "cause"},
    "client": {"metric", "errors", "cause"},
    "serving": {"client", "process", "workloads", "metric", "errors", "cause"},
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


def test_a_verdict_is_judged_without_the_words_that_are_made_of_it() -> None:
    words = {"gate.text.advice", "gate.text.explain"}
    users = {name for name, used in import_graph.graph(MODULES).items() if used & words}
    assert not {name for name in users if name.startswith(("gate.", "reference.", "measure.", "compare."))} - words


CATCH_ALLS = {"one", "told", "_told"}
"""Names that say nothing of what they name."""


@pytest.mark.parametrize("room", ["gate", "report", "compare"])
def test_names_say_what_they_name(room: str) -> None:
    for module in (module for module in MODULES.values() if module.room == room):
        nodes = list(ast.walk(module.tree))
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        names |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        names |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        assert not names & CATCH_ALLS, module.name
