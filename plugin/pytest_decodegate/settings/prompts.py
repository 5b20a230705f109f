"""The prompts of --perf-quality-prompts: JSON lines, each with one prompt."""

from __future__ import annotations

import json
from pathlib import Path

from ..errors import BadInput


def read_prompts(path: Path) -> tuple[str, ...]:
    """Prompts from a file of JSON lines {"prompt": "..."}; raises BadInput naming the line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--perf-quality-prompts: {str(path)!r} cannot be read: {error}") from error

    prompts = tuple(_prompt(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip())
    if not prompts:
        raise BadInput(f"--perf-quality-prompts: {str(path)!r} holds no prompt")

    return prompts


def _prompt(line: str, where: str) -> str:
    try:
        entry = json.loads(line)
    except ValueError:
        entry = None

    prompt = entry.get("prompt") if isinstance(entry, dict) else None
    if not (isinstance(prompt, str) and prompt):
        raise BadInput(f'--perf-quality-prompts: {where}: {line[:80]!r} is not of the form {{"prompt": "..."}}')

    return prompt
