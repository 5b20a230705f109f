"""The server of a run whose GPUs do not work any more: none can be reached, and what is measured on it ends INVALID."""

from __future__ import annotations

from ..client.endpoint import Endpoint
from .server import ATTACHED_TOKEN_IDS, Server


def unreachable_server() -> Server:
    """A server that nobody reaches; each measurement looks at the GPUs before it asks the server anything."""
    # A name that no resolver knows (RFC 2606): whoever asks it all the same reaches nobody.
    return Server(Endpoint("http://wedged-gpus.invalid", "none"), ATTACHED_TOKEN_IDS)
