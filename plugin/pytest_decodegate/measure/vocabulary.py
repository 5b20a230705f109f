"""Which token ids a server takes: asked of the server itself, once it has refused one that its model does not have.

No page of vLLM says how large the vocabulary is, and the tokenizer's size is not the model's. The edge is not looked
for: vLLM 0.26 takes the first id beyond the vocabulary, too, and ends with an assert on the device (seen on H200s).
"""

from __future__ import annotations

import re

import uvloop

from ..client.client import Client
from ..client.endpoint import Endpoint
from ..errors import ServerError
from ..serving.server import ordinary_ids

_STALL_SECONDS = 120.0
_REFUSAL = re.compile(r"\bvocab", re.IGNORECASE)


def is_refusal(error: ServerError) -> bool:
    """Whether the server says that a token id is not in its model's vocabulary."""
    return _REFUSAL.search(str(error)) is not None


def accepted_ids(endpoint: Endpoint, wanted: range, refusal: ServerError) -> range:
    """Ids out of `wanted`, whose last one was refused, that the server takes: more than half of all; from 0 on where
    these are few.

    One short request per halving. Raises `refusal` if there are none, ServerError for what is no refusal of an id.
    """
    taken = uvloop.run(_first_taken(endpoint, wanted[-1]))
    if taken is None:
        raise refusal

    return range(min(wanted.start, ordinary_ids(taken + 1).start), taken + 1)


async def _first_taken(endpoint: Endpoint, refused: int) -> int | None:
    """The first id that is taken of a half of `refused`, a half of that, and so on to 0; None if none is."""
    async with Client(endpoint, stall_seconds=_STALL_SECONDS) as client:
        while refused:
            refused //= 2
            if await _takes(client, refused):
                return refused

    return None


async def _takes(client: Client, token: int) -> bool:
    try:
        await client.post("/v1/completions", {"prompt": [token], "max_tokens": 1, "temperature": 0})
    except ServerError as error:
        if is_refusal(error):
            return False
        raise

    return True
