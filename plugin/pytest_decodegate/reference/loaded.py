"""What a stack really loads, in ranks or in a process of its own, beside what was asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from ..cause import Cause, Finding
from ..machine.classes import gpus_of_server
from ..machine.fingerprint import provenance
from ..machine.provenance import ABSENT, Difference
from ..machine.stack import REPORTED, agree, probe, same_file, variables
from ..redaction import redact_value
from ..resources.probe import probe_environment, probe_python
from ..serving.flags import flag_words, stored_flags

if TYPE_CHECKING:
    from ..machine.fingerprint import Fingerprint
    from ..machine.provenance import Provenance
    from ..measure.bench import Bench
    from ..measure.source import Taken
    from ..metric import Json, Kind
    from ..resources.gangs import Gangs
    from ..resources.hardware import Hardware
    from ..serving.server import Server
    from ..settings.settings import Settings
    from ..settings.stack import Stack


PROBE_SECONDS = 120.0
"""For a Python to import torch: minutes on a network's disk."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a process of one stack really runs with. facts: from machine.stack.probe. env: the variables asked for."""

    facts: Mapping[str, Json]
    env: Mapping[str, str | None]


def read_loaded(bench: Bench, names: Sequence[str], seconds: float) -> Loaded:
    """What the first gang of `bench` loaded, and its variables `names`; `seconds` is the deadline of each question."""
    gang = bench.gangs(1)[0]
    facts = agree(gang.run(probe, deadline_seconds=seconds))
    env = gang.run(variables, names, deadline_seconds=seconds)[0] if names else {}
    return Loaded(facts, env)


def probe_loaded(
    stack: Stack, names: Sequence[str] = (), *, import_path: Sequence[str], python: str = sys.executable
) -> Loaded:
    """The same of any process of `stack` on this host, asked of one that does nothing else; no rank is started for it.

    import_path: what this Python imports from. python: of a stack that names none. Raises BadInput if that Python
    cannot run ranks.
    """
    environment = stack.environment()
    facts = probe_python(stack.python or python, environment, PROBE_SECONDS, import_path)
    seen = probe_environment(environment)
    return Loaded(facts, {name: seen.get(name) for name in names})


def of_engines(probed: Loaded, server: Mapping[str, Json]) -> Loaded:
    """What a launched server loaded: as a process of its stack, but the engines' own log has the last word on NCCL."""
    logged = server.get("nccl")
    if logged is None or logged == probed.facts.get("nccl"):
        return probed

    kept = {name: value for name, value in probed.facts.items() if name not in ("nccl_sha256", "nccl_path")}
    return replace(probed, facts={**kept, "nccl": logged})


def provenance_of(
    fingerprint: Fingerprint, stack: Stack, loaded: Loaded, flags: Mapping[str, Json] | None = None
) -> Provenance:
    """Machine and stack of what runs `stack` on the machine of `fingerprint`. flags: of a server, from `flags_of`."""
    return provenance(fingerprint, {**loaded.facts, **(flags or {})}, {**os.environ, **stack.environment()})


def flags_of(settings: Settings, stack: Stack) -> dict[str, Json]:
    """The flags of a server of ours that runs `stack`, for its provenance; those of the suite's own model are its own.

    Which ranks a server has is of the machine that it runs on; where the user says it, it is a flag as well.
    """
    return stored_flags(words_of(settings, stack))


def words_of(settings: Settings, stack: Stack) -> list[str]:
    """The words of the user's command line for a server of ours that runs `stack`; they may hold secrets."""
    return [*(settings.launched(stack) or ()), *flag_words(dict(stack.flags))]


class ProvenanceReader:
    """Machine and stack of whatever is measured in a session, each read when it is first wanted.

    The machine is the part of this host that a metric runs on, so that a host with more GPUs finds the same baselines.
    """

    def __init__(self, settings: Settings, hardware: Hardware, gangs: Gangs) -> None:
        self._settings = settings
        self._hardware = hardware
        self._gangs = gangs

    def of_ranks(self, kind: Kind, world_size: int | None = None) -> Provenance:
        """What ranks of the stack under test really loaded, on what `world_size` of them use for a metric of `kind`.

        Without a world size the whole host is meant. Starts a gang of one rank if none is alive.
        """
        return provenance_of(self._part(kind, world_size), self._settings.stack, self._of_ranks)

    def expected(self, world_size: int | None = None) -> Provenance:
        """What any process of the stack under test loads, on what `world_size` ranks use; starts no rank.

        Without a world size it is a server of ours that is meant, before or after its start.
        """
        stack = self._settings.stack
        if world_size is None:
            return provenance_of(self._of_launched, stack, self._probed, flags_of(self._settings, stack))

        return provenance_of(self._part(None, world_size), stack, self._probed)

    def of(self, server: Server) -> Provenance:
        """Of a server, on the GPUs that it uses: this Python's if it was launched, its own word if it was attached."""
        facts = server.facts()
        part = self._hardware.fingerprint.part(gpus_of_server(facts) or self._all_gpus)
        if server.attached:
            return provenance(part, server.stack(), {})

        stack = self._settings.stack
        return provenance_of(part, stack, of_engines(self._probed, facts), flags_of(self._settings, stack))

    @cached_property
    def _of_ranks(self) -> Loaded:
        return read_loaded(self._gangs.bench_alive(), (), self._settings.start_seconds)

    @cached_property
    def _probed(self) -> Loaded:
        return probe_loaded(self._settings.stack, import_path=self._settings.import_path)

    @property
    def _all_gpus(self) -> int:
        return len(self._hardware.fingerprint.gpus)

    @property
    def _of_launched(self) -> Fingerprint:
        """What a server of ours will run on: the user's says so, the suite's own takes all GPUs."""
        settings = self._settings
        return self._hardware.fingerprint.part(settings.gpus_of_server(settings.stack, self._all_gpus))

    def _part(self, kind: Kind | None, world_size: int | None) -> Fingerprint:
        """A GPU for each rank of this node; the CPU for a metric of the CPU."""
        if kind == "cpu":
            return self._hardware.fingerprint.part(0)

        ranks_here = self._all_gpus if world_size is None else world_size // self._gangs.nodes
        return self._hardware.fingerprint.part(ranks_here)


def without_effect(stacks: tuple[Stack, Stack], loaded: tuple[Loaded, Loaded]) -> tuple[str, ...]:
    """Why a difference that `stacks` (base, candidate) ask for did not come about in what their ranks loaded."""
    return tuple(_without_effect(*stacks, *loaded))


def as_declared(side: str, stack: Stack, taken: Taken) -> Taken:
    """`taken`, with a broken rule where another NCCL answered the communicator than the one that `stack` names."""
    answer = taken.facts.get("nccl_answered")
    if stack.nccl is None or not isinstance(answer, dict) or same_file(str(answer["file"]), stack.nccl):
        return taken

    text = f"the {side}'s {stack.nccl} was not used: NCCL {answer['version']} answered, from {answer['file']}"
    return replace(taken, broken=(*taken.broken, Finding(text, Cause.UNUSED_CHANGE, "nccl")))


def as_loaded(side: str, loaded: Mapping[str, Json], taken: Taken) -> Taken:
    """`taken`, with a broken rule where a server's engines log another NCCL than a process of their stack loads."""
    server, probed = taken.facts.get("server"), loaded.get("nccl")
    logged = server.get("nccl") if isinstance(server, dict) else None
    if logged is None or probed is None or logged == probed:
        return taken

    text = f"the {side}'s engines run NCCL {logged} by their own log, a process of the same stack loads {probed}"
    return replace(taken, broken=(*taken.broken, Finding(text, Cause.UNUSED_CHANGE, "nccl")))


def variable_differences(old: Loaded, new: Loaded) -> tuple[Difference, ...]:
    """Variables that the stacks were asked to set and that differ in their ranks, whatever their names."""
    sides = ((name, old.env[name], new.env.get(name)) for name in sorted(old.env))
    return tuple(
        Difference(
            f"env:{name}",
            ABSENT if before is None else redact_value(name, before),
            ABSENT if now is None else redact_value(name, now),
            declarable=True,
        )
        for name, before, now in sides
        if before != now
    )


def _without_effect(base: Stack, candidate: Stack, old: Loaded, new: Loaded) -> Iterator[str]:
    if base.nccl != candidate.nccl and old.facts.get("nccl_sha256") == new.facts.get("nccl_sha256"):
        yield f"the candidate NCCL was not used: {_both_nccl(old.facts, new.facts)}"
    elif base.nccl != candidate.nccl:
        yield from _other_nccl("base", base, old.facts)
        yield from _other_nccl("candidate", candidate, new.facts)
    if base.python != candidate.python and _compared(old.facts) == _compared(new.facts):
        versions = ", ".join(
            f"{name} {new.facts[name]}" for name in ("python", "torch", "nccl", "vllm") if name in new.facts
        )
        yield (
            f"the two Pythons run the same stack: both sides loaded {versions}, from {old.facts.get('executable')} and "
            f"{new.facts.get('executable')}"
        )
    for name in sorted({name for name, _ in set(base.env) ^ set(candidate.env)}):
        if (value := old.env.get(name)) == new.env.get(name):
            yield f"env:{name} is {value if value is None else redact_value(name, value)!r} in the ranks of both sides"


def _other_nccl(side: str, stack: Stack, facts: Mapping[str, Json]) -> Iterator[str]:
    """That another copy than the one that `stack` names answers; several mean that nobody could tell which one does."""
    answering = facts.get("nccl_path")
    paths = list(map(str, answering)) if isinstance(answering, list) else []
    if stack.nccl is not None and not any(same_file(path, stack.nccl) for path in paths):
        yield f"the {side} NCCL was not used: {facts.get('nccl')} answers, from {', '.join(paths) or 'inside torch'}"


def _both_nccl(old: Mapping[str, Json], new: Mapping[str, Json]) -> str:
    if "nccl" not in new:
        return "neither side loaded a libnccl (is torch a build without CUDA?)"

    paths = [path for side in (old, new) if isinstance(copies := side.get("nccl_path"), list) for path in copies]
    return f"both sides loaded {new['nccl']} from {', '.join(dict.fromkeys(map(str, paths))) or 'inside torch'}"


def _compared(facts: Mapping[str, Json]) -> dict[str, Json]:
    return {name: value for name, value in facts.items() if name not in REPORTED}
