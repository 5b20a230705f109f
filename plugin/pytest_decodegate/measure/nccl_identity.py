"""Which algorithm, protocol and channels NCCL uses for a workload, read from its own log: a gang beside the measured
ones runs each workload's check once with NCCL_DEBUG.

NCCL_DEBUG would slow the timed ranks, so another gang of the same stack and size has it. It starts with the first
metric that asks and idles between them: idle gangs disturb nobody, and a start for each metric would take its seconds
again and again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..cause import Cause, Finding
from ..errors import DecodegateError
from ..gang.controller import Gang, GangOptions
from ..gang.protocol import Function
from ..machine.nccl_log import SUBSYSTEMS, NcclLog, contract, read_nccl_log
from ..metric import Json
from ..workloads.runtime import rank


@dataclass(frozen=True, slots=True)
class Identity:
    """How NCCL issues a workload's collective.

    contract: nccl_algorithm, nccl_protocol, nccl_channels, as far as it named them.
    facts: transports, ranks, versions; "unnamed" says why there is no algorithm.
    """

    contract: dict[str, Json] = field(default_factory=dict)
    facts: dict[str, Json] = field(default_factory=dict)


class NcclProbe:
    """Asks NCCL which algorithm it uses, by a gang of `world_size` ranks with NCCL_DEBUG=INFO; there is one a bench.

    folder: where the logs of its ranks lie, one for each process, also after its end.
    """

    def __init__(self, world_size: int, options: GangOptions) -> None:
        self.folder = options.log_root / f"nccl-w{world_size}"
        self._world_size = world_size
        # The number before the first gang's: its agents meet at a port that no measured gang has.
        nodes = options.nodes and options.nodes.for_gang(0)
        self._options = replace(options, env={**options.env, **self._debug()}, nodes=nodes)
        self._gang: Gang | None = None
        self._failure: DecodegateError | None = None
        self._known: dict[str, Identity] = {}

    def _debug(self) -> dict[str, str]:
        return {
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": SUBSYSTEMS,
            "NCCL_DEBUG_FILE": str(self.folder / "%h.%p.log"),
        }

    def identity(self, key: str, workload: Function, params: dict[str, Any], deadline_seconds: float) -> Identity:
        """Run the check of `workload(**params)` on the gang, once for each `key`, and read what NCCL wrote meanwhile.

        A gang that fails names nothing, and is not started again: what it failed with is the reason in `facts`.
        """
        if key not in self._known and self._failure is None:
            try:
                self._known[key] = self._ask(key, workload, params, deadline_seconds)
            except DecodegateError as error:
                self._failure = error
                self.close()

        return self._known.get(key) or Identity(facts={"unnamed": f"the gang that asks NCCL failed: {self._failure}"})

    def _ask(self, key: str, workload: Function, params: dict[str, Any], deadline_seconds: float) -> Identity:
        gang = self._started()
        begin = self._sizes()
        gang.run(rank.open_workload, key, workload, params, deadline_seconds=deadline_seconds)
        during = self._text(begin)
        gang.run(rank.close_workload, key, deadline_seconds=deadline_seconds)
        return identity_from(read_nccl_log(self._text({})), read_nccl_log(during))

    def _started(self) -> Gang:
        if self._gang is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._gang = Gang(self._world_size, self._options, name=f"nccl-w{self._world_size}")
            self._gang.ready()

        return self._gang

    def _sizes(self) -> dict[Path, int]:
        return {path: path.stat().st_size for path in self.folder.glob("*.log")}

    def _text(self, begin: Mapping[Path, int]) -> str:
        return "".join(_tail(path, begin.get(path, 0)) for path in sorted(self.folder.glob("*.log")))

    def dismiss(self) -> None:
        """Tell the ranks to leave; close() waits for their end."""
        if self._gang is not None:
            self._gang.dismiss()

    def close(self) -> None:
        """End the gang; the logs stay."""
        if self._gang is not None:
            gang, self._gang = self._gang, None
            gang.close()


def identity_from(whole: NcclLog, during: NcclLog) -> Identity:
    """The identity from the log of the process so far and from what was written while the workload was checked.

    Communicators that were there before have said how they are connected before.
    """
    fields = contract(during.issued)
    facts: dict[str, Json] = {
        "versions": list(whole.versions),
        "nranks": list(whole.nranks),
        "transports": list(whole.transports),
        "channels": whole.channels,
        "functions": [*sorted({call.function for call in during.issued})],
    }
    if not whole.versions and not during.issued:
        return Identity(facts={"unnamed": "NCCL wrote nothing: no rank used it"})
    if not fields:
        facts["unnamed"] = (
            "NCCL named no algorithm: sends and receives, which all-to-all is made of, have none, and one rank alone "
            "issues nothing"
        )

    return Identity(fields, facts)


def answered_apart(facts: Sequence[Mapping[str, Json]], logged: Sequence[str]) -> Iterator[Finding]:
    """Whether one NCCL answers in all ranks, and is the one that its own log names.

    facts: of the workload, rank by rank. logged: versions that the log of a gang of the same stack names, () of none.
    """
    answers = [answer for each in facts if isinstance(answer := each.get("nccl_answered"), dict)]
    for index, answer in enumerate(answers):
        if answer != answers[0]:
            text = f"rank {index} is answered by NCCL {_shown(answer)}, the first by {_shown(answers[0])}"
            yield Finding(text, Cause.UNSTEADY, "nccl")
            break

    if answers and logged and answers[0]["version"] not in logged:
        text = f"NCCL {_shown(answers[0])} answers, and NCCL's own log names {' and '.join(logged)}"
        yield Finding(text, Cause.UNSTEADY, "nccl")


def _shown(answer: Mapping[str, Json]) -> str:
    return f"{answer['version']} ({answer['file'] or 'inside torch'})"


def _tail(path: Path, start: int) -> str:
    content = path.read_bytes()
    # A second copy of NCCL in one process opens the file anew, which empties it.
    return content[start if start <= len(content) else 0 :].decode(errors="replace")
