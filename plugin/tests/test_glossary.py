"""The glossary and the code: every class that it names exists, and the code uses no second word and no banned one."""

from __future__ import annotations

import ast
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import import_graph
import pytest
from import_graph import Module

from pytest_decodegate.gate.verdict import Verdict

GLOSSARY = Path(__file__).parents[2] / "docs" / "glossary.md"
MODULES = import_graph.modules()

WORDS = (
    *("stack", "machine class", "workload", "rank", "gang", "bench", "replicate", "sample", "process value", "session"),
    *("metric", "verdict", "baseline", "band", "contract", "provenance"),
)

ROOMS = sorted({module.room for module in MODULES.values()})

BANNED = {
    "accounts",
    "halves",
    "sandwich",
    "whereabouts",
    "muster",
    "roster",
    "naming",
    "nowhere",
    "tenancy",
    "one",
    "told",
}

SHARED_NAMES = {
    # Each is private to its module: argparse's parser with our errors.
    "_Parser": {"cli", "serving.command"},
}


def terms() -> list[str]:
    """Names of classes in the glossary, in its order."""
    return re.findall(r"^- `(\w+)`: \S", GLOSSARY.read_text(encoding="utf-8"), re.MULTILINE)


def classes(module: Module) -> list[str]:
    """Names of the classes at the top of a module."""
    return [node.name for node in module.tree.body if isinstance(node, ast.ClassDef)]


def functions(module: Module) -> set[str]:
    """Names of the functions and methods of a module."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(module.tree) if isinstance(node, kinds)}


def banned_in(module: Module) -> Iterator[str]:
    """Banned identifiers of a module with their lines; comments and strings may use any word."""
    if BANNED.intersection(module.name.split(".")):
        yield f"the name of {module.name}"

    with module.path.open("rb") as source:
        for token in tokenize.tokenize(source.readline):
            if token.type == tokenize.NAME and token.string.strip("_").lower() in BANNED:
                yield f"{module.name}:{token.start[0]}: {token.string}"


def test_every_class_in_the_glossary_exists() -> None:
    known = {name for module in MODULES.values() for name in classes(module)}
    assert set(terms()) - known == set()


def test_a_word_has_one_entry() -> None:
    words = re.findall(r"^- (\*.*?\*|`\w+`)[:,]", GLOSSARY.read_text(encoding="utf-8"), re.MULTILINE)
    assert [word for word, count in Counter(words).items() if count > 1] == []
    assert len(words) > len(terms()) > 0


@pytest.mark.parametrize("word", WORDS)
def test_every_word_of_the_design_is_explained(word: str) -> None:
    assert re.search(rf"^- \*{word}\*[:,]", GLOSSARY.read_text(encoding="utf-8"), re.MULTILINE)


def test_the_verdicts_are_those_of_the_code() -> None:
    (line,) = re.findall(r"^- \*verdict\*: (.*);", GLOSSARY.read_text(encoding="utf-8"), re.MULTILINE)
    assert line.split(", ") == [verdict.name for verdict in Verdict]


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_class_is_in_the_glossary(room: str) -> None:
    modules = [module for module in MODULES.values() if module.room == room]
    public = {name for module in modules for name in classes(module) if not name.startswith("_")}
    assert public - set(terms()) == set()


def test_no_two_classes_share_a_name() -> None:
    homes: dict[str, set[str]] = {}
    for module in MODULES.values():
        for name in classes(module):
            homes.setdefault(name, set()).add(module.name)

    shared = {name: where for name, where in homes.items() if len(where) > 1}
    assert shared == SHARED_NAMES


@pytest.mark.parametrize("name", sorted(MODULES))
def test_no_identifier_is_a_banned_word(name: str) -> None:
    assert list(banned_in(MODULES[name])) == []


def test_a_banned_word_is_seen_as_variable_parameter_and_class(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        'def f(one):\n    """One is fine here."""\n    _told = one  # told\n\n\nclass Sandwich:\n    pass\n'
    )
    found = list(banned_in(Module(path, "gang.tenancy")))
    assert found == [
        *("the name of gang.tenancy", "gang.tenancy:1: one"),
        *("gang.tenancy:3: _told", "gang.tenancy:3: one", "gang.tenancy:6: Sandwich"),
    ]
