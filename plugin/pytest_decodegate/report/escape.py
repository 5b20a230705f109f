"""Foreign text in Markdown: shown as it is, and nothing in it is live."""

from __future__ import annotations

import html
import re
from typing import Final

from ..printable import printable

_SPECIAL: Final = re.compile(r"([\\`*_\[\]|~#])")
_UNSEEN_GAP: Final = "\u200b"
"""Between a sign and the word behind it: GitHub finds mentions and references in the finished page, where a backslash
or an entity is gone."""

_MENTION: Final = re.compile(r"([@#])(?=\w)")
_LINK: Final = re.compile(r"(?i)\b(https?|ftp|mailto|xmpp):|\b(www)\.")
"""What GitHub makes a link of without being asked."""


def escaped(text: str) -> str:
    """`text` as Markdown that shows it as it is: no markup, no mention of a person or an issue, no link."""
    shown = _SPECIAL.sub(r"\\\1", html.escape(printable(text), quote=False))
    shown = _MENTION.sub(rf"\1{_UNSEEN_GAP}", shown)
    return _LINK.sub(lambda match: rf"{match[1]}\:" if match[1] else rf"{match[2]}\.", shown)
