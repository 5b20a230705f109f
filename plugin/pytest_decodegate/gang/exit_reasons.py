"""Texts of what went wrong with ranks: what, to whom, why probably, what to do. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..cause import Cause, Finding, without_numbers
from ..errors import DecodegateError, RankRaised
from ..process import processes
from . import logs
from .protocol import Failure, Hello


@dataclass(frozen=True, slots=True)
class RankNames:
    """Names of the ranks of gang `gang` in messages: with the gang's, for several gangs have a rank 1."""

    gang: str
    hellos: Mapping[int, Hello]

    def rank(self, rank: int) -> str:
        """'rank 1 of w2-3', or 'rank 1 of w2-3 (host n2)' where ranks run on more than one host."""
        return self._named(rank, self._host(rank))

    def process(self, rank: int) -> str:
        """The same with the pid, for a process that has ended or is about to: 'rank 1 of w2-3 (host n2, pid 4711)'."""
        return self._named(rank, [*self._host(rank), f"pid {self.hellos[rank].pid}"])

    def _host(self, rank: int) -> list[str]:
        hosts = {hello.host for hello in self.hellos.values()}
        return [f"host {self.hellos[rank].host}"] if len(hosts) > 1 else []

    def _named(self, rank: int, details: Sequence[str]) -> str:
        name = f"rank {rank} of {self.gang}"
        return f"{name} ({', '.join(details)})" if details else name


def ranks_text(ranks: Sequence[int]) -> str:
    """'rank 1' or 'ranks 0, 2'."""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def earliest(failures: Mapping[int, Failure]) -> str:
    """'rank 1 raised ValueError: bad shape': the earliest failure, which is the cause of the others."""
    first = _earliest(failures)
    return f"rank {first} raised {failures[first].type}: {failures[first].message}"


def _earliest(failures: Mapping[int, Failure]) -> int:
    return min(failures, key=lambda rank: failures[rank].at)


def after(text: str, cause: str) -> str:
    """`text` of an error that had a cause, with the cause in its first line."""
    first, newline, rest = text.partition("\n")
    return f"{first}; before that: {cause}{newline}{rest}"


def in_brief(error: BaseException) -> Finding:
    """'RankRaised: rank 1 of w2-3 raised ValueError: bad shape': kind and first line, with the cause."""
    cause = error.cause if isinstance(error, DecodegateError) else Cause.EXCEPTION
    return Finding(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}", cause)


def dropped(gang: str, what: str, grace_seconds: float, why: str) -> str:
    """A gang that had nothing to do with a failure was still busy after it."""
    return after(f"gang {gang!r} was still busy with {what} {grace_seconds:g} s after it was given up, and ended", why)


def cause(failures: Mapping[int, Failure]) -> Cause:
    """What is behind several failures: memory that one rank has not makes others fail in other ways; else the first."""
    known = {failure.cause for failure in failures.values()}
    return Cause.OUT_OF_MEMORY if Cause.OUT_OF_MEMORY in known else failures[_earliest(failures)].cause


def rank_raised(what: str, failures: Mapping[int, Failure], names: RankNames, more: str = "") -> RankRaised:
    """The error of ranks that raised, the earliest first; `more` follows its text."""
    first = failures[_earliest(failures)]
    about = f"{first.type}: {without_numbers(first.message)}"
    return RankRaised(f"{raised(what, failures, names)}{more}", cause=cause(failures), about=about)


def raised(what: str, failures: Mapping[int, Failure], names: RankNames) -> str:
    """Ranks raised: the earliest is the cause, the others are listed."""
    first = _earliest(failures)
    cause = failures[first]
    lines = [f"{names.rank(first)} raised {cause.type} in {what}: {cause.message}"]
    lines += [
        f"rank {rank} raised too, {failure.at - cause.at:.3f} s later: {failure.type}: {failure.message}"
        for rank, failure in sorted(failures.items())
        if rank != first
    ]
    if cause.traceback:
        lines += ["", f"rank {first}:", cause.traceback.rstrip()]

    return "\n".join(lines)


def waiting(silent: Sequence[int], grace_seconds: float, stacks: str, names: RankNames) -> str:
    """Ranks that were still busy when others had raised."""
    who = ", ".join(map(names.process, silent))
    return (
        f"{who} did not answer within {grace_seconds:g} s of that, probably waiting for it in a collective, and had to "
        f"be killed; the next use needs new ranks\n{stacks}"
    )


def hung(
    what: str, seconds: float, silent: Sequence[int], last_heard: Sequence[str], stacks: str, names: RankNames
) -> str:
    """Ranks stayed silent past the deadline."""
    who = ", ".join(map(names.process, silent))
    what_to_do = "give a longer deadline if the work is that long"
    first = f"{who} did not answer {what} within {seconds:g} s and had to be killed; {what_to_do}"
    return "\n".join([first, *last_heard, stacks])


def stacks(dumps: Mapping[int, str], unable: Mapping[int, str]) -> str:
    """Stacks of ranks, equal ones together; `unable` says why a rank could not write its own."""
    lines = []
    for ranks, stack in logs.group_stacks(dumps):
        if stack:
            lines.append(f"--- stack of {ranks_text(ranks)} ---\n{stack}")
            continue

        lines += [f"--- no stack of rank {rank}: {unable.get(rank, 'it did not react')} ---" for rank in ranks]

    return "\n".join(lines)


def ends(gone: Mapping[int, int | None]) -> str:
    """How ranks (rank: exit code) ended, without saying which: 'SIGKILL' or 'exit code 3, SIGKILL'."""
    known = {"cause unknown" if code is None else processes.describe_exit(code) for code in gone.values()}
    return ", ".join(sorted(known))


def died(what: str, gone: Mapping[int, int | None], oom_kills: int, reports: Sequence[str], names: RankNames) -> str:
    """Ranks (rank: exit code) ended without an answer; `reports` are what torchrun and their stderr say."""
    who = "; ".join(
        f"{names.process(rank)} died ({'cause unknown' if code is None else processes.describe_exit(code)})"
        for rank, code in sorted(gone.items())
    )
    hint = ""
    if oom_kills:
        hint = f"; the out-of-memory killer struck {oom_kills} times on this machine since the ranks started"
    elif any(code == -9 for code in gone.values()):
        hint = "; the out-of-memory killer does that: look into `dmesg`"

    return "\n".join([f"{who} in {what}{hint}", *reports])


def disagreed(what: str, skips: Mapping[int, str], others: Sequence[int], names: RankNames) -> str:
    """Some ranks skipped and some did not."""
    reasons = ", ".join(f"{names.rank(rank)} ({reason!r})" for rank, reason in sorted(skips.items()))
    return (
        f"{reasons} skipped {what} but {ranks_text(others)} did not: ranks must agree; decide in a fixture, before any "
        "rank runs"
    )


def strangers(refused: int) -> list[str]:
    """A line on peers without the key that connected while ranks were waited for; [] if there were none."""
    if not refused:
        return []

    who = "1 stranger was" if refused == 1 else f"{refused} strangers were"
    return [f"{who} refused: a peer that connected without the key of this gang, perhaps a rank that cannot read it"]
