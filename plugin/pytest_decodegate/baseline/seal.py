"""The layout of a baseline file, and the digest of it that the file holds, so that an edit by hand shows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from ..printable import as_on_disk

_EXPANDED: Final = {"decodegate": 2, "benchmarks": 1}
"""By field of the file: how many levels of it are laid out over lines; the rest of each is one line."""


def seal(document: Mapping[str, Any]) -> bytes:
    """The file of `document`, its digest filled in; raises TypeError or ValueError for what is no JSON."""
    empty = as_on_disk(_laid_out_file(document))
    # Quotes inside strings are escaped, and what stands before has no space after its colons: this is the field.
    return empty.replace('"digest": ""', f'"digest": "{_digest(empty)}"', 1).encode()


def digest(content: bytes, held: str) -> str:
    """The digest that the file `content`, which holds the digest `held`, should hold.

    White space and how a number or a character is spelled do not count: tools that only lay a file out anew break
    nothing. As we wrote it, it need not even be parsed.
    """
    as_written = hashlib.sha256(content.replace(f'"{held}"'.encode(), b'""', 1)).hexdigest()
    return held if as_written == held else _digest(_laid_out_file(json.loads(content.decode())))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _laid_out_file(document: Mapping[str, Any]) -> str:
    """With the digest empty."""
    filled = {**document, "decodegate": {**document["decodegate"], "digest": ""}}
    fields = (f" {json.dumps(name)}: {_laid_out(value, _EXPANDED.get(name, 0), 1)}" for name, value in filled.items())
    return "{\n" + ",\n".join(fields) + "\n}\n"


def _laid_out(value: Any, levels: int, depth: int) -> str:
    """`value` as JSON: containers of the first `levels` levels over lines, indented by `depth`, the rest on one."""
    if not levels or not value or not isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))

    indent, inner = " " * (depth + 1), (levels - 1, depth + 1)
    if isinstance(value, dict):
        named = ((json.dumps(name, ensure_ascii=False), _laid_out(item, *inner)) for name, item in value.items())
        lines = [f"{indent}{name}: {item}" for name, item in named]
    else:
        lines = [f"{indent}{_laid_out(item, *inner)}" for item in value]

    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n" + ",\n".join(lines) + f"\n{' ' * depth}{closing}"
