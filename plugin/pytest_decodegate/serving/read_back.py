"""What was asked of a launched server beside what it says that it runs: a flag without effect must not be measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import ServerError
from .flags import NOT_LOGGED, FlagValue, effective, logged_arguments, not_taken, shown_flag
from .server import Server


def read_back(server: Server, flags: Mapping[str, FlagValue], vllm: str | None = None) -> Server:
    """`server`, if it runs as asked; else it is stopped, and ServerError raised.

    flags: as of flags.parse_flag. vllm: the version that it must say it is; its local part need not be named.
    """
    if (not flags and vllm is None) or not (problem := "; ".join(_problems(server, flags, vllm))):
        return server

    assert server.process
    server.stop()
    raise ServerError(f"the server does not run as asked: {problem}; {server.process.tail()}")


def runs(server: Server, name: str) -> Any:
    """What a launched server runs of the flag `name`; None where it says that it is vLLM's default.

    Raises ServerError where the server does not say.
    """
    try:
        return effective(name, server.facts(), _arguments(server))
    except KeyError:
        raise ServerError(f"what the server runs of --{name} cannot be seen: {NOT_LOGGED}") from None


def _problems(server: Server, flags: Mapping[str, FlagValue], vllm: str | None) -> Iterator[str]:
    facts, arguments = server.facts(), _arguments(server)
    version = facts.get("vllm")
    if vllm is not None and vllm not in (version, str(version).partition("+")[0]):
        yield f"vllm={vllm} was asked for, and it says {version or 'no version'}"
    for name, asked in flags.items():
        if why := not_taken(name, asked, facts, arguments):
            yield f"{shown_flag(name, asked)} did not take effect: {why}"


def _arguments(server: Server) -> Mapping[str, Any] | None:
    return logged_arguments(server.process.log()) if server.process else None
