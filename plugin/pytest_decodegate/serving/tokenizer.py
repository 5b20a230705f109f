"""A tokenizer for local models: as many tokens as the model has ids, each of which is readable text."""

from __future__ import annotations

from collections.abc import Iterator

from ..metric import Json


def byte_level_tokenizer(vocabulary: int) -> dict[str, Json]:
    """Byte-level BPE without merges, in the file format of `tokenizers`, with exactly `vocabulary` entries.

    Every id decodes to whole characters: a token that is half a character gives a chunk without text.
    """
    byte_level: dict[str, Json] = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    model: dict[str, Json] = {
        "type": "BPE",
        "vocab": {token: index for index, token in enumerate(_tokens(vocabulary))},
        "merges": [],
        "unk_token": None,
        "byte_fallback": False,
        "fuse_unk": False,
        "ignore_merges": False,
        "dropout": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": model,
    }


def _tokens(count: int) -> Iterator[str]:
    printable = [chr(code) for code in range(ord("!"), ord("~") + 1)]
    yield from printable
    for number in range(count - len(printable)):
        yield f"Ġw{number}"  # "Ġ" is how byte-level BPE writes a space
