"""The fields of a streamed chunk that are counted, timed or reported; all others are skipped unread."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec


class Usage(msgspec.Struct, gc=False):
    """Tokens so far, by the server's own count."""

    completion_tokens: int | None = None
    prompt_tokens: int | None = None


class Delta(msgspec.Struct, gc=False):
    """What a chunk of a chat adds."""

    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None


class Choice(msgspec.Struct, gc=False):
    """What a chunk adds to one answer."""

    text: Any = None
    delta: Delta | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None

    @property
    def has_text(self) -> bool:
        """Whether it adds text, be it thought or answer."""
        if self.text or self.delta is None:
            return bool(self.text)

        return bool(self.delta.content or self.delta.reasoning_content or self.delta.reasoning)


class Chunk(msgspec.Struct, gc=False):
    """One chunk; error is what the server says of a failure after the status line."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(Chunk)
_ALL_DECODER = msgspec.json.Decoder(list[Chunk])


def read_chunk(text: str) -> Chunk | None:
    """The chunk in `text`, None if that is no JSON object; raises ValueError if it is not of the OpenAI format."""
    try:
        chunk = _DECODER.decode(text)
    except msgspec.DecodeError:
        return _by_parts(text)

    return _by_parts(text) if chunk.choices is None else chunk


def read_chunks(texts: Sequence[bytes]) -> list[Chunk] | None:
    """The chunks in all of `texts`, in a third of the time; None if there is anything to say about one of them."""
    try:
        # With a newline, which no string of JSON may hold: two halves of one do not pass for a chunk.
        chunks = _ALL_DECODER.decode(b"[" + b",\n".join(texts) + b"]")
    except msgspec.DecodeError:
        return None

    # Without choices it may be an error that only its other fields tell of.
    odd = len(chunks) != len(texts) or any(chunk.error or chunk.choices is None for chunk in chunks)
    return None if odd else chunks


def _by_parts(text: str) -> Chunk | None:
    """The same for what is not plainly a chunk: NaN, an error in one of its forms, or no chunk at all."""
    try:
        value = json.loads(text)
    except ValueError:
        return None

    if not isinstance(value, dict):
        return None

    if value.get("error") or value.get("object") == "error":
        return Chunk(error=value)

    return msgspec.convert(value, Chunk, strict=False)
