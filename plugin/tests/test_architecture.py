"""Imports point one way, and what runs on the ranks needs nothing but the standard library."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pytest_decodegate

ROOT = Path(pytest_decodegate.__file__).parent
MODULES = sorted(path for path in ROOT.rglob("*.py") if path.name != "__init__.py")

RANK_SIDE = {
    *(ROOT / "workloads").glob("*.py"),
    *(ROOT / "gang" / name for name in ("worker.py", "protocol.py", "guard.py")),
    *(ROOT / name for name in ("metric.py", "errors.py")),
    ROOT / "machine" / "stack.py",
}

# Each room may use those named and itself; single files at the top are rooms of their own.
MAY_USE = {
    "errors": set(),
    "metric": {"errors"},
    "machine": {"metric", "errors"},
    "workloads": {"gang", "metric", "errors"},
    "gate": {"baseline", "machine", "metric", "errors"},
    "baseline": {"gate", "machine", "metric", "errors"},
    "importing": {"baseline", "machine", "metric", "errors"},
    "compare": {"gate", "baseline", "machine", "metric", "errors"},
    "gang": {"workloads", "machine", "report", "gate", "metric", "errors"},
    "serving": {"gang", "workloads", "machine", "report", "gate", "metric", "errors"},
}


def imports(path: Path, *, top_level: bool) -> Iterator[str]:
    """Dotted names that a module imports; relative ones made absolute. Those for type checkers only are left out."""
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level else list(_walk(tree))
    package = path.relative_to(ROOT.parent).with_suffix("").parts[:-1]
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or ""
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1]
            names = [node.module] if node.module else [alias.name for alias in node.names]
            yield from (".".join([*base, name]) for name in names)


def _walk(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue

        yield node
        yield from _walk(node)


def room(dotted: str) -> str:
    return dotted.split(".")[1] if "." in dotted else ""


@pytest.mark.parametrize("path", sorted(RANK_SIDE), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_ranks_side_imports_only_the_standard_library_at_the_top(path: Path) -> None:
    foreign = {name.split(".")[0] for name in imports(path, top_level=True)} - set(sys.stdlib_module_names)
    assert foreign <= {"pytest_decodegate", ""}


@pytest.mark.parametrize(
    "path",
    [path for path in MODULES if path.relative_to(ROOT).with_suffix("").parts[0] in MAY_USE],
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_a_room_uses_only_the_rooms_below_it(path: Path) -> None:
    own = path.relative_to(ROOT).with_suffix("").parts[0]
    used = {room(name) for name in imports(path, top_level=False) if name.startswith("pytest_decodegate.")}
    assert used - {own} <= MAY_USE[own]


@pytest.mark.parametrize("own", ["gate", "baseline", "compare", "importing"])
def test_the_pure_rooms_know_neither_pytest_nor_torch(own: str) -> None:
    names = {name.split(".")[0] for path in (ROOT / own).glob("*.py") for name in imports(path, top_level=False)}
    assert not names & {"pytest", "_pytest", "torch", "vllm", "pynvml"}
