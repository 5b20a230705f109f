"""The package's import graph, type-only imports included: `python plugin/tests/import_graph.py` prints its figures.

Exits with 1 if modules or rooms import each other in a circle. A room is a folder of the package, or a single module at
its top.
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PACKAGE = "pytest_decodegate"
ROOT = Path(__file__).parents[1] / PACKAGE

Graph = Mapping[str, frozenset[str]]


@dataclass(frozen=True)
class Module:
    """One file of the package. name: dotted, without the package: "gate.stats.rules"."""

    path: Path
    name: str

    @property
    def room(self) -> str:
        return self.name.split(".", 1)[0]

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text(encoding="utf-8"))

    def imports(self, *, top_level: bool = False) -> Iterator[str]:
        """Dotted names as written, relative ones made absolute; of the module's own body alone, or all of them."""
        nodes: Iterator[ast.AST] = iter(self.tree.body) if top_level else ast.walk(self.tree)
        parents = [PACKAGE, *self.name.split(".")[:-1]]
        for node in nodes:
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = parents[: len(parents) - node.level + 1] if node.level else []
                start = ".".join([*base, *([node.module] if node.module else [])])
                yield from (f"{start}.{alias.name}" for alias in node.names)


def modules() -> dict[str, Module]:
    """All modules of the package by dotted name, those that only hold a package's docstring left out."""
    paths = (path for path in sorted(ROOT.rglob("*.py")) if path.name != "__init__.py")
    found = (Module(path, ".".join(path.relative_to(ROOT).with_suffix("").parts)) for path in paths)
    return {module.name: module for module in found}


def rank_side(known: Mapping[str, Module]) -> list[str]:
    """Modules that run on the ranks, under another Python environment than pytest's."""
    return [
        *(name for name in known if name.startswith("workloads.")),
        *("gang.worker", "gang.protocol", "gang.connection", "process.guard", "machine.stack", "machine.nccl_library"),
        *("metric", "errors", "cause", "printable", "redaction"),
    ]


def graph(known: Mapping[str, Module]) -> dict[str, frozenset[str]]:
    """Which modules each module imports, anywhere in its text."""
    return {name: frozenset(_targets(module, known)) - {name} for name, module in known.items()}


def _targets(module: Module, known: Mapping[str, Module]) -> Iterator[str]:
    for dotted in module.imports():
        parts = dotted.removeprefix(f"{PACKAGE}.").split(".")
        if dotted.startswith(f"{PACKAGE}."):
            # A name in a module, or the module itself.
            yield from ([name for name in (".".join(parts), ".".join(parts[:-1])) if name in known][:1])


def rooms(edges: Graph) -> dict[str, frozenset[str]]:
    """The same between rooms."""
    names = {name.split(".", 1)[0] for name in edges}
    return {
        room: frozenset(
            target.split(".", 1)[0] for name, used in edges.items() if name.split(".", 1)[0] == room for target in used
        )
        - {room}
        for room in names
    }


def circles(edges: Graph) -> list[list[str]]:
    """Groups of two and more that reach each other (Tarjan's strongly connected components), sorted."""
    reach = {name: _reached(edges, name) for name in edges}
    groups = {frozenset(other for other in reach[name] if name in reach[other]) | {name} for name in edges}
    return sorted(sorted(group) for group in groups if len(group) > 1)


def _reached(edges: Graph, start: str) -> set[str]:
    seen: set[str] = set()
    todo = [start]
    while todo:
        for target in edges[todo.pop()] - seen:
            seen.add(target)
            todo.append(target)

    return seen


def longest_chain(edges: Graph, start: str) -> list[str]:
    """The longest way down from `start` in a graph without circles."""
    below = [longest_chain(edges, target) for target in sorted(edges[start])]
    return [start, *max(below, key=len, default=[])]


def function_lines(known: Mapping[str, Module]) -> list[int]:
    """Lines of every function, its signature and docstring included."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = (node for module in known.values() for node in ast.walk(module.tree) if isinstance(node, kinds))
    return sorted((node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes)


def main() -> int:
    known = modules()
    edges = graph(known)
    between = rooms(edges)
    lines = sum(len(module.path.read_text(encoding="utf-8").splitlines()) for module in known.values())
    sizes = function_lines(known)
    print(f"{len(known)} modules, {lines} lines, {sum('.' not in name for name in known)} modules at the top")
    print(f"functions: {len(sizes)}, median {statistics.median(sizes):g}, p90 {sizes[len(sizes) * 9 // 10]} lines")
    for what, found in (("modules", circles(edges)), ("rooms", circles(between))):
        print(f"circles between {what}: {'none' if not found else ''}")
        for group in found:
            print(f"  {' '.join(group)}")
            for name in group:
                print(f"    {name} -> {', '.join(sorted(edges[name] if what == 'modules' else between[name]))}")
    if circles(between):
        return 1

    *_, longest = sorted((longest_chain(between, room) for room in between), key=len)
    print(f"longest chain of rooms: {' > '.join(longest)}")
    return int(bool(circles(edges)))


if __name__ == "__main__":
    sys.exit(main())
