"""Categories of GPU kernels by name, from rules that are data: categories.toml, or the user's own file of that form."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..errors import BadInput


class Category(StrEnum):
    """What a kernel of the decode step does; the values are the keys in files. REST is what no rule knows."""

    ALLREDUCE = "allreduce"
    COLLECTIVES = "collectives"
    ATTENTION = "attention"
    MOE_GEMM = "moe_gemm"
    GEMM = "gemm"
    ROUTING = "routing"
    CAST = "cast"
    NORM = "norm"
    SAMPLING = "sampling"
    MEMORY = "memory"
    REST = "rest"

    @property
    def label(self) -> str:
        """The name that people read."""
        return _TITLES[self]

    @property
    def is_collective(self) -> bool:
        """Whether all ranks take part, so that a rank's time holds its wait for the others."""
        return self in (Category.ALLREDUCE, Category.COLLECTIVES)


_TITLES: Final[Mapping[Category, str]] = {
    Category.ALLREDUCE: "AllReduce",
    Category.COLLECTIVES: "other collectives",
    Category.ATTENTION: "attention",
    Category.MOE_GEMM: "MoE GEMM",
    Category.GEMM: "other GEMM",
    Category.ROUTING: "routing",
    Category.CAST: "dtype cast",
    Category.NORM: "norm/activation",
    Category.SAMPLING: "sampling",
    Category.MEMORY: "memory",
    Category.REST: "rest",
}


class KernelClass(NamedTuple):
    """Category and kind of a kernel: (MOE_GEMM, "Marlin"). kind: what launches of a category are told apart by."""

    category: Category
    kind: str


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the table: names in which `pattern` is found are of `category` and `kind`."""

    category: Category
    kind: str
    pattern: re.Pattern[str]


class Rules:
    """The table in its order: the first rule that matches decides. Each name is looked at once."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = tuple(rules)
        self._known: dict[str, KernelClass] = {}

    def classify(self, name: str) -> KernelClass:
        """Category and kind of the kernel `name`; REST where no rule knows it."""
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = self._first(name)

        return found

    def _first(self, name: str) -> KernelClass:
        for rule in self._rules:
            if rule.pattern.search(name):
                return KernelClass(rule.category, rule.kind)

        return KernelClass(Category.REST, Category.REST.label)


@cache
def built_in() -> Rules:
    """The rules that come with decodegate."""
    text = files(__package__).joinpath("categories.toml").read_text(encoding="utf-8")
    return parse(text, "categories.toml")


def read(path: Path) -> Rules:
    """The user's own rules, asked before the built-in ones; raises BadInput for a file that cannot be used."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise BadInput(f"{path}: cannot be read: {error}; check the path and that it is UTF-8") from error

    return Rules([*parse(text, str(path))._rules, *built_in()._rules])


def parse(text: str, name: str) -> Rules:
    """The rules of a TOML text; raises BadInput that names file, rule and field."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{name}: is no TOML: {error}") from error

    entries = table.get("rule")
    if set(table) != {"rule"} or not isinstance(entries, list):
        raise BadInput(f"{name}: holds {', '.join(sorted(table)) or 'nothing'}; write [[rule]] tables and nothing else")

    return Rules([_rule(entry, f"{name}: rule {number}") for number, entry in enumerate(entries, 1)])


def _rule(entry: Any, where: str) -> Rule:
    if not isinstance(entry, dict) or not {"category", "pattern"} <= set(entry) <= {"category", "pattern", "kind"}:
        raise BadInput(f"{where}: needs category and pattern, and may have kind; has {', '.join(sorted(entry))}")
    if wrong := [key for key, value in entry.items() if not isinstance(value, str) or not value]:
        raise BadInput(f"{where}: {wrong[0]} = {entry[wrong[0]]!r} is no text")
    if entry["category"] not in list(Category):
        known = ", ".join(Category)
        raise BadInput(f"{where}: category {entry['category']!r} is not known; write one of {known}")

    category = Category(entry["category"])
    try:
        return Rule(category, entry.get("kind", category.label), re.compile(entry["pattern"]))
    except re.error as error:
        raise BadInput(f"{where}: pattern {entry['pattern']!r} is no regular expression: {error}") from error
