"""The map of the rooms: every module has one, imports point one way, and the ranks' side is standard library only."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import import_graph
import pytest
from import_graph import PACKAGE, ROOT, Module

MODULES = import_graph.modules()

RANK_SIDE = import_graph.rank_side(MODULES)

BELOW_ALL = {"printable", "redaction"}
"""Pure functions on texts that every room may use; they use none."""

# Each room may use those named and itself; single modules at the top are rooms of their own. Type-only imports count.
MAY_USE: dict[str, set[str]] = {
    "cause": set(),
    "printable": set(),
    "redaction": set(),
    "errors": {"cause"},
    "metric": {"errors"},
    "process": set(),
    "machine": {"process", "metric", "errors", "cause"},
    "fitness": {"process", "machine", "metric", "errors", "cause"},
    "gang": {"process", "errors", "cause"},
    "workloads": {"gang", "machine", "metric", "errors"},
    "profile": {"gate", "baseline", "workloads", "metric", "errors", "cause"},
    "baseline": {"machine", "metric", "errors"},
    "importing": {"baseline", "machine", "metric", "errors"},
    "gate": {"baseline", "machine", "metric", "errors", "cause"},
    "compare": {"profile", "gate", "baseline", "machine", "metric", "errors", "cause"},
    "report": {"profile", "compare", "gate", "baseline", "fitness", "machine", "metric", "errors", "cause"},
    "client": {"metric", "errors", "cause"},
    "serving": {"client", "process", "workloads", "metric", "errors", "cause"},
    "settings": {"serving", "client", "workloads", "gang", "process", "machine", "metric", "errors"},
    "measure": {
        *("report", "gate", "serving", "client", "workloads", "gang"),
        *("machine", "metric", "errors", "cause"),
    },
    "resources": {
        *("measure", "settings", "serving", "gang", "process"),
        *("fitness", "machine", "metric", "errors", "cause"),
    },
    "reference": {
        *("resources", "measure", "settings", "report", "gate", "baseline", "serving", "client", "workloads"),
        *("machine", "metric", "errors", "cause"),
    },
    "session": {
        *("reference", "resources", "measure", "settings", "report", "gate", "baseline", "serving", "gang"),
        *("profile", "workloads", "process", "fitness", "machine", "metric", "errors", "cause"),
    },
    "commands": {
        *("session", "resources", "settings", "report", "importing", "compare", "gate", "baseline", "serving"),
        *("profile", "measure", "client", "workloads", "fitness", "machine", "process", "metric", "errors", "cause"),
    },
    "fixtures": {"session", "resources", "serving", "machine"},
    "plugin": {"fixtures", "session", "settings", "report", "process", "errors"},
    "cli": {"commands", "errors"},
    "__main__": {"cli"},
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


def without_a_rule(modules: Iterable[Module]) -> list[str]:
    """Modules whose room has no rule in MAY_USE."""
    return sorted(module.name for module in modules if module.room not in MAY_USE)


def test_every_module_has_a_rule() -> None:
    assert without_a_rule(MODULES.values()) == []
    assert set(MAY_USE) == {module.room for module in MODULES.values()}


@pytest.mark.parametrize("room", sorted(MAY_USE))
def test_contributing_says_what_the_room_is_for(room: str) -> None:
    text = (ROOT.parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert any(f"`{written}`" in text for written in (room, f"{room}/", f"{room}.py"))


@pytest.mark.parametrize("name", ["attic.chest", "helpers"])
def test_a_module_in_a_new_room_is_noticed(name: str) -> None:
    assert without_a_rule([*MODULES.values(), Module(ROOT / "new.py", name)]) == [name]


@pytest.mark.parametrize("room", sorted(MAY_USE))
def test_a_room_uses_only_the_rooms_below_it(room: str) -> None:
    assert import_graph.rooms(import_graph.graph(MODULES))[room] - BELOW_ALL <= MAY_USE[room]


@pytest.mark.parametrize("room", sorted(BELOW_ALL))
def test_what_every_room_may_use_uses_none(room: str) -> None:
    assert not import_graph.rooms(import_graph.graph(MODULES))[room]


def test_circles_are_found_however_long() -> None:
    edges = {"a": frozenset("b"), "b": frozenset("c"), "c": frozenset("a"), "d": frozenset("ae"), "e": frozenset()}
    assert import_graph.circles(edges) == [["a", "b", "c"]]


def test_no_rooms_may_use_each_other() -> None:
    allowed = {room: frozenset(used) for room, used in MAY_USE.items()}
    assert import_graph.circles(allowed) == []


def test_no_modules_import_each_other() -> None:
    assert import_graph.circles(import_graph.graph(MODULES)) == []


@pytest.mark.parametrize("name", sorted(RANK_SIDE))
def test_what_the_ranks_side_imports_is_on_the_ranks_side(name: str) -> None:
    """Without type-only imports, which no rank runs: the standard library alone must be enough all the way down."""
    imported = [dotted.removeprefix(f"{PACKAGE}.") for dotted in MODULES[name].imports(top_level=True)]
    own = {found for dotted in imported for found in (dotted, dotted.rpartition(".")[0]) if found in MODULES}
    assert own - set(RANK_SIDE) == set()


@pytest.mark.parametrize("room", ["gate", "baseline", "compare", "importing", "profile"])
def test_the_pure_rooms_know_neither_pytest_nor_torch(room: str) -> None:
    names = {name.split(".")[0] for module in MODULES.values() if module.room == room for name in module.imports()}
    assert not names & {"pytest", "_pytest", "torch", "vllm", "pynvml"}


def test_a_verdict_is_judged_without_the_words_that_are_made_of_it() -> None:
    words = {"gate.text.advice", "gate.text.explain"}
    users = {name for name, used in import_graph.graph(MODULES).items() if used & words}
    assert not {name for name in users if name.startswith(("gate.", "reference.", "measure.", "compare."))} - words


def test_no_test_file_imports_from_another() -> None:
    """Builders live in support modules: a test file that others need runs their tests' set-up in its own name."""
    tests = sorted(Path(__file__).parent.glob("test_*.py"))
    assert [name for path in tests for name in _test_modules_named(path.read_text(encoding="utf-8"))] == []


def _test_modules_named(source: str) -> list[str]:
    """Imports of test modules, those in the scripts of subprocesses included."""
    return re.findall(r"^\s*(?:from|import) +(test_\w+)", source, re.MULTILINE)


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
