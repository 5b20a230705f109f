"""The text of what went wrong with the ranks: what, to whom, why probably, what to do. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from . import logs, processes
from .protocol import Failure


def ranks_text(ranks: Sequence[int]) -> str:
    """'rank 1' or 'ranks 0, 2'."""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def raised(what: str, failures: Mapping[int, Failure]) -> str:
    """Ranks raised: the earliest is the cause, the others are listed."""
    first = min(failures, key=lambda rank: failures[rank].at)
    cause = failures[first]
    lines = [f"rank {first} raised {cause.type} in {what}: {cause.message}"]
    lines += [
        f"rank {rank} raised too, {failure.at - cause.at:.3f} s later: {failure.type}: {failure.message}"
        for rank, failure in sorted(failures.items())
        if rank != first
    ]
    if cause.traceback:
        lines += ["", f"rank {first}:", cause.traceback.rstrip()]

    return "\n".join(lines)


def waiting(silent: Sequence[int], grace_seconds: float, stacks: str) -> str:
    """Ranks that were still busy when others had raised."""
    return (
        f"{ranks_text(silent)} did not answer within {grace_seconds:g} s of that, probably waiting for it in a "
        f"collective, and had to be killed; the next use needs new ranks\n{stacks}"
    )


def hung(what: str, seconds: float, silent: Mapping[int, int], last_heard: Sequence[str], stacks: str) -> str:
    """Ranks (rank: pid) stayed silent past the deadline."""
    who = ", ".join(f"rank {rank} (pid {pid})" for rank, pid in sorted(silent.items()))
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


def died(what: str, gone: Mapping[int, tuple[int, int | None]], oom_kills: int, reports: Sequence[str]) -> str:
    """Ranks (rank: pid, exit code) ended without an answer; `reports` are what torchrun and their stderr say."""
    who = "; ".join(
        f"rank {rank} (pid {pid}) died ({'cause unknown' if code is None else processes.describe_exit(code)})"
        for rank, (pid, code) in sorted(gone.items())
    )
    hint = ""
    if oom_kills:
        hint = f"; the out-of-memory killer struck {oom_kills} times on this machine since the ranks started"
    elif any(code == -9 for _, code in gone.values()):
        hint = "; the out-of-memory killer does that: look into `dmesg`"

    return "\n".join([f"{who} in {what}{hint}", *reports])


def disagreed(what: str, skips: Mapping[int, str], others: Sequence[int]) -> str:
    """Some ranks skipped and some did not."""
    reasons = ", ".join(f"rank {rank} ({reason!r})" for rank, reason in sorted(skips.items()))
    return (
        f"{reasons} skipped {what} but {ranks_text(others)} did not: ranks must agree; decide in a fixture, before any "
        "rank runs"
    )
