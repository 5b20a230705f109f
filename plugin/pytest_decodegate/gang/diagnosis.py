"""Why a call failed for good: looks at the ranks before they are killed, and says it as an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import GangError, RankDied, RankHung, RankRaised
from ..process import processes
from . import exit_reasons, logs
from .collection import Collection
from .exit_reasons import Roster
from .launch import Launch
from .rank import Rank

SUMMARY_SECONDS = 3.0
"""How long torchrun may take to say how a rank ended."""

BRIEF_SUMMARY_SECONDS = 0.7
"""The same where the kernel has told us already."""


def diagnose(
    collection: Collection,
    ranks: Mapping[int, Rank],
    launch: Launch,
    roster: Roster,
    grace_seconds: float,
    oom_kills: int,
) -> GangError:
    """The error of a call that a rank did not answer.

    oom_kills: of this machine when the ranks started, to see whether it has killed since.
    """
    if collection.gone:
        return RankDied(_died(collection, ranks, launch, roster, oom_kills))

    silent = {name: ranks[name] for name in collection.silent}
    stacks = _stacks(silent)
    if collection.failures:
        account = exit_reasons.raised(collection.what, collection.failures, roster)
        return RankRaised(f"{account}\n\n{exit_reasons.waiting(list(silent), grace_seconds, stacks, roster)}")

    if collection.given_up is not None:
        return GangError(exit_reasons.dropped(roster.gang, collection.what, grace_seconds, collection.given_up))

    heard = [rank.last_heard() for rank in silent.values()]
    return RankHung(exit_reasons.hung(collection.what, collection.seconds, list(silent), heard, stacks, roster))


def _stacks(silent: Mapping[int, Rank]) -> str:
    log_dirs = {name: rank.hello.log_dir for name, rank in silent.items()}
    since = logs.stack_marks(log_dirs)
    unable = {name: reason for name, rank in silent.items() if (reason := rank.stop_reason())}
    for rank in silent.values():
        rank.ask_for_stacks()

    able = {name: mark for name, mark in since.items() if name not in unable}
    return exit_reasons.stacks({**dict.fromkeys(unable, ""), **logs.stacks_since(log_dirs, able)}, unable)


def _died(collection: Collection, ranks: Mapping[int, Rank], launch: Launch, roster: Roster, oom_kills: int) -> str:
    # At once: an exit code can be read only until torchrun has reaped the rank.
    seen = {name: code for name, rank in ranks.items() if (code := rank.exit_code()) is not None}
    launch.wait(SUMMARY_SECONDS if set(collection.gone) - set(seen) else BRIEF_SUMMARY_SECONDS)
    codes = {**launch.exit_codes(), **seen}
    gone = {name: ranks[name] for name in sorted({*collection.gone, *seen})}
    return exit_reasons.died(
        collection.what,
        {name: codes.get(name) for name in gone},
        processes.oom_kills() - oom_kills,
        _reports(collection, gone, launch, roster),
        roster,
    )


def _reports(collection: Collection, gone: Mapping[int, Rank], launch: Launch, roster: Roster) -> Sequence[str]:
    reports = [exit_reasons.raised(collection.what, collection.failures, roster)] if collection.failures else []
    reports += [f"the connection of rank {name} was cut: {why}" for name, why in collection.distrusted.items()]
    reports += [rank.last_heard() for rank in gone.values() if rank.note]
    ends = {name: logs.tail(Path(rank.hello.log_dir, "stderr.log")) for name, rank in gone.items()}
    reports += [f"end of stderr of rank {name}:\n{text}" for name, text in ends.items() if text]
    if summary := launch.summary():
        reports.append(f"torchrun reports:\n{summary}")

    return reports
