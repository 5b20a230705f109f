"""Two attached servers as the two stacks of a session: they run already, are left running, and are asked in turn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ..cause import Finding
from ..client.endpoint import base_url
from ..errors import BadInput
from ..gate.pairs import Contrast
from ..machine.provenance import Difference, Provenance, differences, undeclared
from ..measure.paired_source import SideName, blamed

if TYPE_CHECKING:
    from ..serving.server import Server

NOT_RESTARTED = Finding(
    "both servers ran before and were not restarted: the interval covers windows on one start of each, and a restart "
    "may change more than that"
)


class AttachedServers:
    """The servers at two URLs, attached when they are first wanted. attach: gives the server at a URL."""

    def __init__(self, attach: Callable[[str], Server], base: str, candidate: str) -> None:
        self._attach = attach
        self._urls: dict[SideName, str] = {"base": base, "candidate": candidate}
        self._servers: dict[SideName, Server] = {}

    def server(self, side: SideName) -> Server:
        """One of them; raises StackFailed if it cannot be attached."""
        if side not in self._servers:
            with blamed(side):
                self._servers[side] = self._attach(self._urls[side])

        return self._servers[side]

    def skip_ranks(self) -> None:
        """Skip a test that measures ranks."""
        pytest.skip("both stacks are attached servers, of which only TPOT is measured: ranks started here are neither")

    def contrast(self, declared: Collection[str]) -> Contrast:
        """What the two say of themselves, as far as both say it; `declared` as of machine.provenance.undeclared."""
        names = tuple(self._one_model(declared))
        found = (*differences(*(self._said(side) for side in ("base", "candidate"))), *names)
        return Contrast(found, undeclared(found, declared))

    def _said(self, side: SideName) -> Provenance:
        """The machine is left out: it is this host, of which a server that says its ranks uses another part."""
        return Provenance({}, self.server(side).stack(), {})

    def _one_model(self, declared: Collection[str]) -> Iterator[Difference]:
        """The two names of one model, where that is declared; raises BadInput for two models, which nobody compares."""
        names = self.server("base").endpoint.model, self.server("candidate").endpoint.model
        if names[0] == names[1]:
            return
        if "model" not in declared:
            raise BadInput(
                f"the base serves {names[0]!r}, the candidate {names[1]!r}: two models are not compared; if these are "
                "two names of one model, say so with --perf-change model (`decodegate upgrade --allow model`)"
            )

        for side, server in self._servers.items():
            self._servers[side] = replace(server, given_facts={**server.given_facts, "model": " = ".join(names)})

        yield Difference("model", *names, declarable=True)

    def notes(self, contrast: Contrast) -> tuple[Finding, ...]:
        """What a reader must know of a verdict on them."""
        return (NOT_RESTARTED, *(() if contrast.differences else (Finding(self._nothing_differs()),)))

    def _nothing_differs(self) -> str:
        if base_url(self._urls["base"]) == base_url(self._urls["candidate"]):
            return "one server was measured against itself"

        stack = self.server("base").stack()
        said = ", ".join(f"{name} {value}" for name, value in stack.items() if value is not None)
        return (
            f"both servers say the same of themselves ({said}), so that the change under test is really there was not "
            "seen: a flag, NCCL or a driver does not show on their pages"
        )
