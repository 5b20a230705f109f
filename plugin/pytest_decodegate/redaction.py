"""One redaction for everything that is stored or shown: by the name of a setting, and by the shape of a value.

The promise: a value under a name that speaks of a secret, and a text that looks like one (a URL with a user, a signed
query, a bearer token, a JWT, a key of a known issuer), is replaced by REDACTED before it reaches a file, a report or an
error. It errs on the side of hiding; what it cannot know is a secret under a harmless name that looks like nothing.

Every pattern is matched in linear time: the text may be the log of somebody else's server.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

REDACTED: Final = "redacted"

_WORD = re.compile(r"[a-z]+|[A-Z]+(?![a-z])|[A-Z][a-z]*|[0-9]+")
_RUN = re.compile(r"[A-Za-z]+")
_SECRET_WORD = re.compile(
    # Ends of words, because APIKEY and HFTOKEN are written together; MONKEY is the price.
    r".*(KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|COOKIE|SIGNATURE)S?|CREDS?|PASS|PWD|PATS?|JWTS?|DSNS?|SIG|BEARER"
    r"|O?AUTH(ENTICATION|ORIZATION|N|Z|KEY|TOKEN)?"
)
_COUNTED = frozenset(
    {"TOKENS"}
    | {
        "MAX",
        "MIN",
        "NUM",
        "THRESHOLD",
        "LIMIT",
        "BUDGET",
        "PER",
        "COUNT",
        "SIZE",
        "LEN",
        "LENGTH",
        "BATCHED",
        "ID",
        "IDS",
    }
)
"""Words of names such as VLLM_MAX_TOKENS_PER_EXPERT: the number behind them moves a measurement, and is no secret."""

_OF_VLLM = re.compile(r"(?<!\w)(?<!\w-)(?:pass[_-]config|speculative[_-]token[_-]tree)(?![\w-])")
"""Settings of vLLM that speak of compiler passes and of drafted tokens: as secrets they would never be compared."""

_OF_A_PLACE = frozenset({"ENV", "FILE", "PATH", "DIR", "NAME", "TYPE", "MODE"})
"""Last words of names that say where a secret is, and not the secret."""

_OF_PYTHON = re.compile(r"(?:Error|Exception|Warning)\W*$")
"""Ends of names of exceptions: a KeyError is no key."""

_NUMBERS = re.compile(r"[\[(]{0,2}[0-9][0-9\s.,()\[\]+-]{0,40}")
_NOTHING = frozenset({"", "none", "null", "true", "false"})

_USER = re.compile(r"(?<=://)[^\s/?#\"'<>]*@")
_QUERY = re.compile(r"(?<=[?&;])([\w.~%-]{1,60})=([^\s&;#\"'<>]*)")
_ASSIGNED = re.compile(
    # Bounded, or text that opens quotes and brackets without end would be read once for each.
    r"""(?<![\w-])(-{0,2}[A-Za-z_][\w.-]{0,80}["']?(?:\s?=\s?|:\s?(?=["'\[])))"""
    r"""("[^"\n]{0,400}"|'[^'\n]{0,400}'|\[[^\]\n]{0,400}\]|["'\[]*[^\s,;&"'\])}]+)"""
)
_OPTION = re.compile(
    r"""(?<![\w-])(--?[A-Za-z][\w.-]{0,80}[ \t]{1,8})("[^"\n]{0,400}"|'[^'\n]{0,400}'|["']?[^\s"'-]\S*)"""
)
_HEADER = re.compile(r"(?i)\b((?:proxy-)?authorization|(?:set-)?cookie|x-api-key)(\"|')?\s{0,3}:\s{0,3}[^\r\n]*")
_BEARER = re.compile(r"(?i)\bBearer\s{1,3}[^\s\"',;]+")
_SHAPES = re.compile(
    r"(?<![A-Za-z0-9_-])(?:"
    r"eyJ[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*){0,3}"  # JWT and JWE
    r"|(?:hf|api_org|gh[pousr]|github_pat|glpat|xox[abeprs]|sk|pk|rk|nvapi|dckr_pat|npm|pypi|ntn|gsk|xai)[_-][A-Za-z0-9_-]{16,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{30,}"
    r")"
)
_PEM = re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[^-]*(?:-----END [A-Z ]{0,40}-----)?")


def is_secret_name(name: str, value: str = "?") -> bool:
    """Whether a setting called `name` (HF_TOKEN, --api_key, sslKeyfilePassword) holds a secret.

    value: None and the like hold nothing, and a number under the name of a count (VLLM_MAX_TOKENS_PER_EXPERT) is no
    secret.
    """
    if _OF_PYTHON.search(name):
        return False

    name = _OF_VLLM.sub("", name)
    words = [word.upper() for word in (*_WORD.findall(name), *_RUN.findall(name))]
    if not any(map(_SECRET_WORD.fullmatch, words)) or words[-1] in _OF_A_PLACE or value.strip().lower() in _NOTHING:
        return False

    return not (_NUMBERS.fullmatch(value) and _COUNTED & set(words))


def redact_value(name: str, value: str) -> str:
    """`value` of the setting `name`, or REDACTED if the name or the shape of the value speaks of a secret."""
    return REDACTED if is_secret_name(name, value) or redact_text(value) != value else value


def redact_text(text: str) -> str:
    """`text` with what looks like a secret replaced: whatever a program, a server or a user wrote."""
    if "PRIVATE KEY" in text:
        text = _PEM.sub(REDACTED, text)
    if "://" in text:
        text = _USER.sub(f"{REDACTED}@", text)

    text = _HEADER.sub(lambda match: f"{match[1]}{match[2] or ''}: {REDACTED}", text)
    text = _BEARER.sub(f"Bearer {REDACTED}", text)
    text = _QUERY.sub(_setting, text)
    text = _ASSIGNED.sub(_assignment, text)
    text = _OPTION.sub(_assignment, text)
    return _SHAPES.sub(REDACTED, text)


def redact_arguments(words: Iterable[str]) -> list[str]:
    """Words of a command line with the values of options that hold secrets replaced, all of them of each."""
    found: list[str] = []
    option = ""  # whose values may follow; how many it takes is not known here
    for word in words:
        name, equals, value = word.partition("=")
        if not word.startswith("-") or _NUMBERS.fullmatch(word[1:]):
            found.append(REDACTED if is_secret_name(option, word) else redact_text(word))
        elif equals:
            option = ""
            found.append(f"{name}={REDACTED if is_secret_name(name, value) else redact_text(value)}")
        else:
            option = name
            found.append(redact_text(word))

    return found


def _setting(match: re.Match[str]) -> str:
    name, value = match[1], match[2]
    return f"{name}={REDACTED}" if value and is_secret_name(name, value) else match[0]


def _assignment(match: re.Match[str]) -> str:
    name, value = match[1], match[2]
    return f"{name}{REDACTED}" if is_secret_name(name, value.strip("\"'")) else match[0]
