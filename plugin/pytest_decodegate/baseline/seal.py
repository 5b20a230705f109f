"""The digest that a baseline file holds of its own content, so that an edit by hand shows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def digest(document: Mapping[str, Any]) -> str:
    """SHA-256 of a file's parsed JSON, in hexadecimal, without the digest that it holds.

    Order of keys, white space and how a number is spelled do not count: tools that only lay a file out anew break
    nothing.
    """
    fields = {name: value for name, value in document["decodegate"].items() if name != "digest"}
    content = json.dumps({**document, "decodegate": fields}, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()
