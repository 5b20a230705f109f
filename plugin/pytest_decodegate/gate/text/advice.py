"""What to do next, by verdict: each text depends on what was found and on what the user already declared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...machine.provenance import COMPONENTS, Difference, undeclared
from ..stats.rules import MOST_REPLICATES, MOST_SESSIONS, Comparison, Outcome, Settlement, settle
from .quantity import format_band, rounded_up_band

_RECORD_ALL = "`pytest -m perf --perf-record=all`"


def wrong_result() -> tuple[str, ...]:
    """The numbers are wrong: nothing to tune, something to mend."""
    return ("mend the result first: a faster wrong answer is no improvement",)


def other_answers() -> tuple[str, ...]:
    """The server answers otherwise than its baseline."""
    return (
        "find out which answers are right before its speed is looked at: a kernel, a format or the weights changed",
        f"to accept the new answers of a new stack, record it without --perf-change: {_RECORD_ALL}",
    )


def invalid() -> tuple[str, ...]:
    """The measurement broke a rule."""
    return ("remove the cause and run again; more replicates of a broken measurement do not mend it",)


def no_baseline() -> tuple[str, ...]:
    """Nothing to compare with."""
    return (
        "if this host is as it should be, record it: `pytest -m perf --perf-record=missing`",
        "or compare with a file of your choice: `pytest -m perf --perf-baseline PATH`",
    )


def confounded(
    differences: Sequence[Difference], confounders: Sequence[Difference], identity: Sequence[str]
) -> tuple[str, ...]:
    """Declare what may be declared, set back or record again what may not."""
    lines = []
    # The command replaces the one that was typed, so it repeats what was declared already.
    names = dict.fromkeys(declaration(one) for one in differences if one.declarable)
    if any(one.declarable for one in confounders):
        lines.append(f"if that is the change under test, declare it: `pytest -m perf --perf-change {','.join(names)}`")
    if fixed := [one.field for one in confounders if not one.declarable]:
        lines.append(f"{', '.join(fixed)} cannot be declared: set it back, or record this host as it is: {_RECORD_ALL}")
    if identity:
        lines.append(f"the name now stands for another measurement: record it again with {_RECORD_ALL}, or rename it")

    return tuple(lines)


def other_clocks() -> tuple[str, ...]:
    """The GPUs ran faster or slower than those of the baseline."""
    return (
        "let this host cool down, or hold the clock where it was (`nvidia-smi -lgc`), and run again",
        f"if this is the clock from now on, record the host as it is: {_RECORD_ALL}",
    )


def compared(outcome: Outcome, comparison: Comparison, tolerance: float, changed: Sequence[str]) -> tuple[str, ...]:
    """What to do about a comparison that stands."""
    if outcome == "REGRESSED":
        return _regressed(changed)
    if outcome == "IMPROVED":
        return _improved(changed)
    if outcome == "INCONCLUSIVE":
        return _inconclusive(comparison, settle(comparison, tolerance))

    return ()


def beside_published(outcome: Outcome) -> tuple[str, ...]:
    """What to do about a comparison with a published figure."""
    record = f"the figure was measured elsewhere: {_RECORD_ALL} makes a baseline of this host, with noise and stack"
    if outcome == "PASS":
        return (record,)

    return ("make sure that the same thing is measured before you act on a difference", record)


def _regressed(changed: Sequence[str]) -> tuple[str, ...]:
    if changed:
        return ("undo the declared changes one at a time to find the one that costs; do not roll out until then",)

    return (
        "nothing in the provenance differs, so run once more",
        "if it stays, look for a change in the code under test, the cooling or the load of this host",
    )


def _improved(changed: Sequence[str]) -> tuple[str, ...]:
    suspicion = "be suspicious first: is the same work still done (result checks, cache hits, skipped layers, clocks)?"
    if changed:
        return (suspicion, f"if so, keep it as the baseline of this stack: {_RECORD_ALL} writes a new file")

    return (
        suspicion,
        "no change was declared: a gain that nothing explains is a reason to look for the cause first",
        f"to re-baseline, add a session with {_RECORD_ALL}, and `decodegate baselines accept` makes it gate",
    )


def _inconclusive(comparison: Comparison, settlement: Settlement) -> tuple[str, ...]:
    return (
        *_measuring_more(len(comparison.base_counts), settlement),
        f"a band of {format_band(rounded_up_band(settlement.tolerance))} would have passed, if you accept that loss",
    )


def _measuring_more(sessions: int, settlement: Settlement) -> Iterator[str]:
    """What more replicates or sessions would have done, where either would have done anything."""
    if settlement.replicates is not None:
        yield f"{settlement.replicates} replicates would have settled it: `--perf-replicates {settlement.replicates}`"
    if settlement.sessions is not None:
        more = settlement.sessions - sessions
        yield f"{more} more baseline session(s) of the old stack would have settled it: {_RECORD_ALL}, hours apart"
    if settlement.replicates is None and settlement.sessions is None:
        yield (
            f"neither {MOST_REPLICATES} replicates nor {MOST_SESSIONS} baseline sessions would have settled it: "
            "processes differ too much, or the change lies too near the edge of the band"
        )


def declaration(difference: Difference) -> str:
    """What to type after --perf-change to allow a declarable difference: nccl for nccl_sha256."""
    known = (name for name in COMPONENTS if not undeclared((difference,), {name}))
    return next(known, difference.field)
