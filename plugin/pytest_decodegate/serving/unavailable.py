"""The server of a run whose GPUs do not work any more: there is none, and what is measured on it ends INVALID."""

from __future__ import annotations

from ..client.endpoint import Endpoint
from .server import ATTACHED_TOKEN_IDS, Server


def nowhere() -> Server:
    """Stands where a test takes its server. Each measurement looks at the GPUs before it asks the server anything."""
    # A name that no resolver knows (RFC 2606): whoever asks it all the same reaches nobody.
    return Server(Endpoint("http://wedged-gpus.invalid", "none"), ATTACHED_TOKEN_IDS)
