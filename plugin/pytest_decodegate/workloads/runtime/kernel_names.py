"""What tells one kernel from another: demangled names without return type and arguments, in one spelling. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_OPEN, _CLOSE = "<({[", ">)}]"
_UNNAMED = "(anonymous namespace)"

_SPELLINGS = (
    # One compiler's words for what another calls (anonymous namespace).
    (re.compile(r"<unnamed>|\{anonymous\}|_GLOBAL__N__\w+"), _UNNAMED),
    # nvcc writes the type of a literal before it, (bool)1, (int)256, (unsigned long)8; others true, 256, 8ul.
    (re.compile(r"\(bool\)1\b"), "true"),
    (re.compile(r"\(bool\)0\b"), "false"),
    (re.compile(r"\((?:unsigned )?(?:char|short|int|long|long long)\)(?=-?\d)"), ""),
    (re.compile(r"\b(\d+)(?:u|l|ul|ll|ull)\b", re.IGNORECASE), r"\1"),
    (re.compile(r"\bconst ((?:\w|::)+)(?= ?[*&])"), r"\1 const"),
    # (8)>(0) and ((8) > (0)): a number needs no parentheses, nor an operator spaces.
    (re.compile(r"(?<!\w)\((\d+)\)"), r"\1"),
    (re.compile(r"\s+(?=[<>*&,)\]}])|(?<=[<(,>])\s+(?!const)"), ""),
    (re.compile(r",(?=\S)"), ", "),
)
"""Spellings of the same, and the one that stays; in this order."""


def short_name(name: str) -> str:
    """What tells the kernel `name` from every other: its qualified name with all template arguments, which pick it.

    Of a demangled C++ function the return type, the arguments and what follows them go; comparisons inside template
    arguments (`enable_if<(((8)>(0)) && ...>`) do not end these. Names that are no C++, as Triton's, cuBLAS' and
    "Memcpy DtoD (Device -> Device)", stay, but for a remark in parentheses at their end.
    """
    name = name.strip()
    arguments = _arguments(name)
    if arguments is None:
        return name
    if arguments.after_space:
        return name[: arguments.start].strip()

    return _one_spelling(name[_start_of_name(name, arguments.start) : arguments.start])


@dataclass(frozen=True, slots=True)
class _Group:
    """Parentheses outside all brackets, from `start` to `stop`."""

    start: int
    stop: int
    after_space: bool


def _arguments(name: str) -> _Group | None:
    """The last outer parentheses that no `::` follows; those before belong to functions that hold the kernel."""
    for group in reversed(list(_outer_parentheses(name))):
        if name.startswith("::", group.stop):
            break  # whatever stands before is part of the name
        if name[group.start : group.stop] != _UNNAMED and not name[: group.start].endswith("operator"):
            return group

    return None


def _outer_parentheses(name: str) -> Iterator[_Group]:
    start = 0
    for index, depth in _depths(name):
        if name[index] == "(" and depth == 1:
            start = index
        elif name[index] == ")" and depth == 0:
            yield _Group(start, index + 1, name[start - 1 : start] == " ")


def _start_of_name(name: str, stop: int) -> int:
    """Where the name begins that ends at `stop`: after the return type, which a space outside all brackets ends."""
    start, inside = 0, dict(_depths(name[:stop]))
    depth = 0
    for index, letter in enumerate(name[:stop]):
        depth = inside.get(index, depth)
        # "f() const::{lambda}": the qualifier of a function that holds the kernel.
        if letter == " " and depth == 0 and not name.startswith(("const::", "volatile::"), index + 1):
            start = index + 1

    return start


def _depths(name: str) -> Iterator[tuple[int, int]]:
    """Index of each bracket and how many are open after it. `<` and `>` that compare, and those of `->`, are none."""
    opened: list[str] = []
    for index, letter in enumerate(name):
        if letter in _OPEN and (letter != "<" or _opens_template(name, index)):
            opened.append(letter)
        elif letter in ")}]" or (letter == ">" and opened and opened[-1] == "<" and name[index - 1] != "-"):
            _close(opened, _OPEN[_CLOSE.index(letter)])
        else:
            continue

        yield index, len(opened)


def _opens_template(name: str, index: int) -> bool:
    """Template arguments follow a name; what follows a number, a bracket or `operator` compares."""
    start = index
    while start and (name[start - 1].isalnum() or name[start - 1] == "_"):
        start -= 1

    word = name[start:index].lstrip("0123456789")
    return (bool(word) and word != "operator") or name.startswith("<unnamed>", index)


def _close(opened: list[str], bracket: str) -> None:
    """Close `bracket`; what was taken for a template inside it was a comparison."""
    while opened and opened.pop() != bracket:
        pass


def _one_spelling(name: str) -> str:
    for pattern, spelling in _SPELLINGS:
        name = pattern.sub(spelling, name)

    return name
