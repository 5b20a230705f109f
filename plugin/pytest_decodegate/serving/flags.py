"""Flags of vLLM's command line: how they are written, which are given, and what a log says came of them."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from ..errors import BadInput
from ..metric import Json
from ..printable import printable
from ..redaction import redact_arguments, redact_text, redact_value
from .said import FLAGS

FlagValue: TypeAlias = "str | bool"
"""A text, or whether a flag without a value is given as --NAME or as --no-NAME."""

TENSOR_PARALLEL: Final = "tensor-parallel-size"
MODEL: Final = "model"
OPTIMIZATION: Final = "optimization-level"
PORT: Final = "port"

_SHORT: Final[Mapping[str, str]] = {
    "tp": TENSOR_PARALLEL,
    "pp": "pipeline-parallel-size",
    "dp": "data-parallel-size",
    "dcp": "decode-context-parallel-size",
    "pcp": "prefill-context-parallel-size",
    "ep": "enable-expert-parallel",
    "asc": "api-server-count",
    "q": "quantization",
    "sc": "speculative-config",
    "cc": "compilation-config",
    "ac": "attention-config",
    "O": OPTIMIZATION,
}
"""vllm/engine/arg_utils.py of 0.20 to 0.33, and -O3 of utils/argparse_utils.py."""

_OURS: Final = "decodegate chooses it, so that it measures its own server"
REFUSED: Final[Mapping[str, str]] = {
    "host": _OURS,
    "served-model-name": _OURS,
    "api-key": "the server gets one of its own, in a file: every user of the host can read arguments",
}
"""Flags that no user's command line may have."""

_REFUSED_OF_STACKS: Final[Mapping[str, str]] = {
    **REFUSED,
    PORT: _OURS,
    MODEL: "write model=PATH_OR_NAME",
    "enable-prefix-caching": "every server of ours runs without: a prompt that is found in the cache is no measurement",
}

NOT_LOGGED: Final = "its log has no line 'non-default args' that says so, which VLLM_LOGGING_LEVEL may hide"
"""Why nothing can be said of a flag."""

# One that begins with a digit or a dot is a negative number.
_FLAG: Final = re.compile(r"--?[A-Za-z][\w-]*(\.[\w.+-]+)?")
_DIGITS: Final = re.compile(r"-[\d.]")
_LEVEL: Final = re.compile(r"-O=?(\d+)")
_HUMAN: Final = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_ARGUMENTS: Final = re.compile(r"non-default args: (\{.{0,200000}\})\s*$", re.MULTILINE)
_SCALES: Final[Mapping[str, int]] = {
    **{letter: 10 ** (3 * power) for power, letter in enumerate("kmgt", 1)},
    **{letter: 2 ** (10 * power) for power, letter in enumerate("KMGT", 1)},
}


def parse_flag(text: str) -> tuple[str, FlagValue]:
    """Name and value of "--max-num-seqs=64", "--enforce-eager" or "--no-async-scheduling"; raises BadInput.

    The name is vLLM's long one, with dashes and without "no-". A part of a setting keeps its dot:
    "compilation-config.cudagraph_mode".
    """
    if level := _LEVEL.fullmatch(text):
        return OPTIMIZATION, level[1]

    word, equals, value = text.partition("=")
    if not _FLAG.fullmatch(word):
        raise BadInput(
            f"{redact_text(text)!r} is no flag of vLLM; write for example --max-num-seqs=64 or --enforce-eager"
        )

    name, is_set = _named(word)
    if why := _REFUSED_OF_STACKS.get(name):
        raise BadInput(f"--{name} cannot be part of a stack: {why}")
    if equals and not (value and is_set):
        raise BadInput(f"{word!r} {'has a value and says no' if value else 'names no value'}")

    return name, value if equals else is_set


def given_flags(words: Sequence[str]) -> dict[str, FlagValue]:
    """Every flag of a command line by its name, as of `parse_flag`; of one that is given twice the last, as vLLM does.

    Words that follow a flag are its value, since none but the model stands alone.
    """
    found: dict[str, FlagValue] = {}
    name = ""
    for word in words:
        if not word.startswith("-") or _DIGITS.match(word):
            if name:
                before = found[name]
                found[name] = f"{before} {word}" if isinstance(before, str) else word
        elif level := _LEVEL.fullmatch(word):
            found[OPTIMIZATION] = level[1]
            name = ""
        else:
            flag, equals, value = word.partition("=")
            name, is_set = _named(flag)
            found[name] = value if equals else is_set
            name = "" if equals else name

    return found


def stored_flags(words: Sequence[str]) -> dict[str, Json]:
    """The flags of a launched server as its provenance has them, "flag:NAME", without secrets, model and port."""
    return {
        name: printable(value) if isinstance(value, str) else value for name, value in _given(redact_arguments(words))
    }


def given_otherwise(base: Sequence[str], new: Sequence[str]) -> tuple[str, ...]:
    """The flags, as `stored_flags` names them, that two command lines give otherwise: as they are, secrets too."""
    old, young = dict(_given(base)), dict(_given(new))
    return tuple(name for name in sorted(old.keys() | young.keys()) if old.get(name) != young.get(name))


def flag_words(flags: Mapping[str, FlagValue]) -> tuple[str, ...]:
    """The words of a command line that give `flags`."""
    return tuple(_word(name, value) for name, value in flags.items())


def redacted_flag(name: str, value: FlagValue) -> FlagValue:
    """The value, or "redacted" for a secret."""
    return value if isinstance(value, bool) else redact_value(name, value)


def shown_flag(name: str, value: FlagValue) -> str:
    """A flag as it may be shown: a secret is not."""
    return _word(name, redacted_flag(name, value))


def clashes(flags: Mapping[str, FlagValue], words: Sequence[str]) -> tuple[str, ...]:
    """Names of `flags` that `words` give too, whole or in part: --compilation-config beside a part of it."""
    roots = {_root(name) for name in given_flags(words)}
    return tuple(name for name in flags if _root(name) in roots)


def logged_arguments(log: str) -> dict[str, Any] | None:
    """What vLLM's parser made of its command line, by the name of the field; what is as by default is left out.

    A value that is no Python literal is its text. None where the log does not say. Never to be stored: older vLLMs log
    secrets.
    """
    line = _ARGUMENTS.search(log)
    return dict(_fields(line[1][1:-1])) if line else None


def effective(name: str, facts: Mapping[str, Json], arguments: Mapping[str, Any] | None) -> Any:
    """What a server runs of the flag `name`, as its engine says or as its parser understood it; None for the default.

    facts: from its log and pages. Raises KeyError where neither says anything.
    """
    fact = next((fact for fact, flag in FLAGS.items() if flag == name), name.replace("-", "_"))
    if fact in facts:
        return facts[fact]
    if arguments is None:
        raise KeyError(name)

    return arguments.get(_root(name).replace("-", "_"))


def not_taken(name: str, asked: FlagValue, facts: Mapping[str, Json], arguments: Mapping[str, Any] | None) -> str:
    """Why the flag `name` did not take effect on a server, "" if it did as far as can be seen."""
    try:
        # A number below zero tells vLLM to choose: what its engine chose is another, which its parser alone can tell.
        runs = effective(name, {} if _is_negative(asked) else facts, arguments)
    except KeyError:
        return NOT_LOGGED

    parsed = (arguments or {}).get(_root(name).replace("-", "_"))
    for read in (parsed, runs):
        if "." not in name and _differs(asked, read):
            return f"the server runs {redact_value(name, str(read))!r}"

    return ""


def _named(word: str) -> tuple[str, bool]:
    root, dot, rest = word.partition(".")
    name = root.lstrip("-").replace("_", "-")
    if not root.startswith("--"):
        name = _SHORT.get(name, name)

    return f"{name.removeprefix('no-')}{dot}{rest}", not name.startswith("no-")


def _given(words: Sequence[str]) -> Iterator[tuple[str, FlagValue]]:
    """("flag:NAME", value) of every flag but model and port, by name, without accidents of writing."""
    for name, value in sorted(given_flags(words).items()):
        if name not in (MODEL, PORT):
            yield f"flag:{name}", _compact(value) if isinstance(value, str) else value


def _word(name: str, value: FlagValue) -> str:
    return f"--{name}={value}" if isinstance(value, str) else f"--{name}" if value else f"--no-{name}"


def _root(name: str) -> str:
    return name.partition(".")[0]


def _compact(value: str) -> str:
    """JSON without the blanks that two people write differently."""
    try:
        return json.dumps(json.loads(value), sort_keys=True) if value[:1] in "{[" else value
    except ValueError:
        return value


def _differs(asked: FlagValue, read: Any) -> bool:
    """Whether two values can be compared and are not the same; a text may be another word for the one that is read."""
    if isinstance(asked, bool):
        return isinstance(read, bool) and read is not asked
    if isinstance(read, bool) or not isinstance(read, int | float):
        return False

    number = _number(asked)
    return number is not None and number != read


def _is_negative(asked: FlagValue) -> bool:
    return isinstance(asked, str) and (_number(asked) or 0) < 0


def _number(text: str) -> float | None:
    """As vLLM reads it: 1k is 1000, 1K is 1024."""
    scaled = _HUMAN.fullmatch(text)
    try:
        return float(scaled[1]) * _SCALES[scaled[2]] if scaled else float(text)
    except ValueError:
        return None


def _fields(text: str) -> Iterator[tuple[str, Any]]:
    for piece in _split(text):
        name, colon, value = piece.partition(":")
        if colon:
            yield name.strip(" '\""), _literal(value.strip())


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _split(text: str) -> Iterator[str]:
    """The parts between commas that stand in no bracket and in no quotes."""
    depth, quote, start, escaped = 0, "", 0, False
    for index, letter in enumerate(text):
        if quote:
            quote = quote if escaped or letter != quote else ""
            escaped = letter == "\\" and not escaped
        elif letter in "'\"":
            quote = letter
        elif letter in "([{<":
            depth += 1
        elif letter in ")]}>":
            depth -= 1
        elif letter == "," and not depth:
            yield text[start:index]
            start = index + 1

    yield text[start:]
