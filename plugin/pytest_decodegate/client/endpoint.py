"""Where an OpenAI-compatible server is and what it serves."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from ..errors import BadInput
from ..printable import printable


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go: base URL without a path such as /v1, and the name that the server gives to the model.

    key: sent as a bearer token, and never shown or stored.
    """

    url: str
    model: str
    key: str = field(default="", repr=False)

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries besides its own headers."""
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}


def base_url(text: str) -> str:
    """`text` without a trailing slash or /v1; raises BadInput unless it is an http or https URL of a host.

    A user or password in it is refused and not quoted: addresses stand in reports.
    """
    parts = urlsplit(text.strip())
    if "@" in parts.netloc:
        raise BadInput(
            "the server URL holds a user or a password; leave them out, and name the environment variable that holds "
            "the server's key with --perf-server-key-env"
        )

    try:
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is not a number
        usable = False

    if not usable or parts.query or parts.fragment:
        raise BadInput(f"server URL {text!r} is not usable; write for example 'http://127.0.0.1:8000'")

    return parts.geturl().rstrip("/").removesuffix("/v1").rstrip("/")


def served_models(body: str) -> tuple[str, ...]:
    """Model names in an answer of /v1/models, in its order; empty if it is not such an answer.

    As the server writes them, since they must be sent back so: `repr` or an error shows them.
    """
    return tuple(str(entry["id"]) for entry in _entries(body) if "id" in entry)


def model_length(body: str, model: str) -> int | None:
    """The max_model_len that /v1/models gives for `model`, in tokens, if it gives one."""
    lengths = [entry.get("max_model_len") for entry in _entries(body) if entry.get("id") == model]
    return lengths[0] if lengths and isinstance(lengths[0], int) and 0 < lengths[0] < 10**15 else None


def owner(body: str) -> str | None:
    """Who an answer of /v1/models says that it is: "vllm", "sglang", "llamacpp"; None if it does not."""
    return next((printable(str(entry["owned_by"])) for entry in _entries(body) if entry.get("owned_by")), None)


def _entries(body: str) -> list[dict[str, object]]:
    try:
        answer = json.loads(body)
    except ValueError:
        return []

    entries = answer.get("data") if isinstance(answer, dict) else None
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
