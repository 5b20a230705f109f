"""Which token ids a server takes: asked of the server itself, once it has refused one that its model does not have.

No page of vLLM says how large the vocabulary is, and the tokenizer's size is not the model's; the refusal is exact.
"""

from __future__ import annotations

import re

import uvloop

from ..client.client import Client
from ..client.endpoint import Endpoint
from ..errors import ServerError

LEAST_ORDINARY = 1000
"""Below are bytes and control tokens; a vocabulary of twice as many is large enough to leave them out."""

_STALL_SECONDS = 120.0
_REFUSAL = re.compile(r"\bvocab", re.IGNORECASE)


def is_refusal(error: ServerError) -> bool:
    """Whether the server says that a token id is not in its model's vocabulary."""
    return _REFUSAL.search(str(error)) is not None


def accepted_ids(endpoint: Endpoint, wanted: range, refusal: ServerError) -> range:
    """The ids out of `wanted`, whose last one was refused, that the server takes; from 0 on where these are few.

    One short request per halving. Raises `refusal` if there are none, ServerError for what is no refusal of an id.
    """
    vocabulary = uvloop.run(_vocabulary(endpoint, wanted[-1]))
    if not vocabulary:
        raise refusal

    return range(wanted.start if vocabulary >= 2 * LEAST_ORDINARY else 0, vocabulary)


async def _vocabulary(endpoint: Endpoint, refused: int) -> int:
    """How many ids from 0 on are taken; `refused` is known not to be."""
    taken = -1
    async with Client(endpoint, stall_seconds=_STALL_SECONDS) as client:
        while refused - taken > 1:
            middle = (taken + refused) // 2
            if await _takes(client, middle):
                taken = middle
            else:
                refused = middle

    return refused


async def _takes(client: Client, token: int) -> bool:
    try:
        await client.post("/v1/completions", {"prompt": [token], "max_tokens": 1, "temperature": 0})
    except ServerError as error:
        if is_refusal(error):
            return False
        raise

    return True
