"""How the two stacks of a run differ in what they loaded, and how that fits what was asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from ..errors import BadInput
from ..gate.pairs import Contrast
from ..gate.result import Stacks
from ..machine.provenance import ABSENT, Difference, differences, undeclared
from ..measure.paired_source import PairBench, SideName, blamed
from ..redaction import redact_value
from ..serving.flags import given_otherwise
from ..settings.stack import Stack, declared, describe
from .loaded import (
    Loaded,
    flags_of,
    probe_loaded,
    provenance_of,
    read_loaded,
    variable_differences,
    without_effect,
    words_of,
)

if TYPE_CHECKING:
    from ..measure.source import Progress
    from ..resources.hardware import Hardware
    from ..serving.server import Server
    from ..settings.settings import Settings
    from .attached import AttachedServers


class Contrasts:
    """Base and candidate of a run, and what is known of their difference: read once for each world size.

    loaded: what was read last of each side, if anything was.
    announce: takes what is compared, once.
    """

    def __init__(
        self,
        stacks: tuple[Stack, Stack],
        settings: Settings,
        hardware: Hardware,
        progress: Progress,
        announce: Callable[[object], None],
    ) -> None:
        self.stacks = stacks
        self.known: dict[int, Contrast] = {}
        self._ran: dict[SideName, dict[str, Any]] = {}
        self.loaded: dict[SideName, Loaded] = {}
        self._settings = settings
        self._hardware = hardware
        self._progress = progress
        self._announce = announce

    def __str__(self) -> str:
        return describe(self.stacks)

    @property
    def of_what_serves(self) -> Contrast:
        """What is known of the two stacks' servers: the first that was read, and what servers are told besides."""
        return self._with_what_is_told(next(iter(self.known.values())))

    def of_ranks(self, world_size: int, bench: PairBench) -> Contrast:
        """What the ranks of both sides really loaded, read from the gangs of `bench` unless it is known."""
        if world_size not in self.known:
            self._keep(world_size, self._read(bench))

        return self.known[world_size]

    def of_launched(self) -> Contrast:
        """What servers of ours would load on both sides; whatever was read first stands for it."""
        if not self.known:
            path = self._settings.import_path
            base, candidate = (partial(probe_loaded, stack, import_path=path) for stack in self.stacks)
            self._keep(1, self._contrast(base, candidate))

        return self.of_what_serves

    def of_servers(self, servers: AttachedServers) -> Contrast:
        """What two attached servers say of themselves, read unless it is known."""
        if not self.known:
            self._keep(1, servers.contrast(self._allowed))

        return self.of_what_serves

    def skip_ranks(self) -> None:
        """Skip a test that measures ranks of two stacks that differ in nothing that ranks know."""
        base, candidate = self.stacks
        if base != candidate and base.of_ranks == candidate.of_ranks:
            words = ", ".join(dict.fromkeys((*base.of_servers, *candidate.of_servers)))
            pytest.skip(f"the two stacks differ only in what servers are told ({words}), which ranks know nothing of")

    def read_back(self, side: SideName, server: Server) -> Server:
        """`server` of `side`, once it is seen that no flag in which the stacks differ is the same on both.

        Raises BadInput where one is: then there is no change to measure; ServerError where a server does not say. That
        each side runs what it was asked for was checked when it started.
        """
        from ..serving.read_back import runs

        names = sorted({name for name, _ in set(self.stacks[0].flags) ^ set(self.stacks[1].flags)})
        if side not in self._ran:
            self._ran[side] = {name: runs(server, name) for name in names}
        for name in names if len(self._ran) == 2 else ():
            value, other = (ran[name] for ran in self._ran.values())
            if value == other:
                found = "vLLM's default" if value is None else redact_value(name, str(value))
                raise BadInput(f"flag:--{name} changes nothing: it is {found} on the servers of both stacks")

        return server

    def announce_unknown(self) -> None:
        """Say which stacks a run had that came to its end before anything of them was read."""
        if not self.known:
            self._announce_stacks(Contrast())

    @property
    def _allowed(self) -> frozenset[str]:
        return declared(*self.stacks) | self._settings.change

    def _with_what_is_told(self, contrast: Contrast) -> Contrast:
        """The contrast of ranks with what servers alone are told: all of it is part of the change."""
        base, candidate = self.stacks
        # Compared as they are: two secrets that are both shown as "redacted" are two values all the same.
        names = given_otherwise(*(words_of(self._settings, stack) for stack in self.stacks))
        old, new = (flags_of(self._settings, stack) for stack in self.stacks)
        of_servers = [Difference(name, old.get(name, ABSENT), new.get(name, ABSENT), declarable=True) for name in names]
        if base.model != candidate.model:
            of_servers.append(Difference("model", base.model, candidate.model, declarable=True))

        return replace(contrast, differences=(*contrast.differences, *of_servers))

    def _keep(self, world_size: int, contrast: Contrast) -> None:
        if not self.known:
            whole = self._with_what_is_told(contrast)
            found = "; ".join(map(str, whole.differences)) or "nothing differs"
            self._progress.say(f"two stacks: {self}; {found}")
            self._announce_stacks(whole)

        self.known[world_size] = contrast

    def _announce_stacks(self, contrast: Contrast) -> None:
        base, candidate = map(str, self.stacks)
        self._announce(Stacks(base, candidate, self._hardware.fingerprint.machine_class, contrast))

    def _read(self, bench: PairBench) -> Contrast:
        read = partial(read_loaded, seconds=self._settings.start_seconds)
        return self._contrast(partial(read, bench.base), partial(read, bench.candidate))

    def _contrast(
        self, base: Callable[[Sequence[str]], Loaded], candidate: Callable[[Sequence[str]], Loaded]
    ) -> Contrast:
        names = sorted({name for stack in self.stacks for name, _ in stack.env})
        with blamed("base"):
            old = base(names)
        with blamed("candidate"):
            new = candidate(names)

        self.loaded = {"base": old, "candidate": new}
        fingerprint = self._hardware.fingerprint
        sides = zip(self.stacks, (old, new), strict=True)
        known = differences(*(provenance_of(fingerprint, stack, loaded) for stack, loaded in sides))
        fields = {difference.field for difference in known}
        others = (other for other in variable_differences(old, new) if other.field not in fields)
        found = (*known, *others)
        return Contrast(found, undeclared(found, self._allowed), without_effect(self.stacks, (old, new)))
