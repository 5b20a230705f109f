"""The error of a call that failed for good, from a look at its ranks before they are killed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..cause import Cause, cause_of_text, last_exception
from ..errors import GangError, RankDied, RankHung
from ..process import processes
from . import exit_reasons, logs
from .agents import Agents
from .collection import Collection
from .exit_reasons import RankNames
from .rank import Rank

SUMMARY_SECONDS = 3.0
"""How long torchrun may take to say how a rank ended."""

BRIEF_SUMMARY_SECONDS = 0.7
"""The same where the kernel has told us already."""


def diagnose(
    collection: Collection,
    ranks: Mapping[int, Rank],
    agents: Agents,
    names: RankNames,
    grace_seconds: float,
    oom_kills: int,
) -> GangError:
    """The error of a call that a rank did not answer.

    oom_kills: of this machine when the ranks started, to see whether it has killed since.
    """
    if collection.gone:
        return _died(collection, ranks, agents, names, oom_kills)

    silent = {name: ranks[name] for name in collection.silent}
    stacks = _stacks(silent)
    if collection.failures:
        waiting = exit_reasons.waiting(list(silent), grace_seconds, stacks, names)
        return exit_reasons.rank_raised(collection.what, collection.failures, names, f"\n\n{waiting}")

    if collection.given_up is not None:
        text = exit_reasons.dropped(names.gang, collection.what, grace_seconds, collection.given_up)
        return GangError(text, cause=collection.given_up.cause)

    heard = [rank.last_heard() for rank in silent.values()]
    text = exit_reasons.hung(collection.what, collection.seconds, list(silent), heard, stacks, names)
    return RankHung(text, about=collection.what)


def _stacks(silent: Mapping[int, Rank]) -> str:
    log_dirs = {name: rank.hello.log_dir for name, rank in silent.items()}
    since = logs.stack_marks(log_dirs)
    unable = {name: reason for name, rank in silent.items() if (reason := rank.stop_reason())}
    for rank in silent.values():
        rank.ask_for_stacks()

    able = {name: mark for name, mark in since.items() if name not in unable}
    return exit_reasons.stacks({**dict.fromkeys(unable, ""), **logs.stacks_since(log_dirs, able)}, unable)


def _died(
    collection: Collection, ranks: Mapping[int, Rank], agents: Agents, names: RankNames, oom_kills: int
) -> RankDied:
    # At once: an exit code can be read only until torchrun has reaped the rank.
    seen = {name: code for name, rank in ranks.items() if (code := rank.exit_code()) is not None}
    agents.wait(SUMMARY_SECONDS if set(collection.gone) - set(seen) else BRIEF_SUMMARY_SECONDS)
    codes = {**agents.exit_codes(), **seen}
    gone = {name: ranks[name] for name in sorted({*collection.gone, *seen})}
    died = {name: codes.get(name) for name in gone}
    kills = processes.oom_kills() - oom_kills
    ends = {name: logs.tail(Path(rank.hello.log_dir, "stderr.log")) for name, rank in gone.items()}
    summary = agents.summary()
    reports = [exit_reasons.raised(collection.what, collection.failures, names)] if collection.failures else []
    reports += [f"the connection of rank {name} was cut: {why}" for name, why in collection.distrusted.items()]
    reports += [rank.last_heard() for rank in gone.values() if rank.note]
    reports += [f"end of stderr of rank {name}:\n{text}" for name, text in ends.items() if text]
    reports += [f"torchrun reports:\n{summary}"] if summary else []
    written = "\n".join([*ends.values(), summary])
    why = last_exception(written)
    return RankDied(
        exit_reasons.died(collection.what, died, kills, reports, names),
        cause=_cause_of_death(collection, kills, written),
        about=why or exit_reasons.ends(died),
        why=why,
    )


def _cause_of_death(collection: Collection, oom_kills: int, written: str) -> Cause | None:
    """Memory that ran out, as the kernel, another rank or a log says; None for what is only known as a death."""
    if oom_kills:
        return Cause.OUT_OF_MEMORY
    if collection.failures and exit_reasons.cause(collection.failures) is Cause.OUT_OF_MEMORY:
        return Cause.OUT_OF_MEMORY

    return cause_of_text(written)
