"""What to do next about a verdict: words made last, from what the judgement holds and what was compared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from ...cause import Cause
from ...machine.clocks import FIELD as CLOCK
from ...machine.provenance import COMPONENTS, Difference, undeclared
from ..evidence.apart import STORED
from ..pairs import MOST_FORESEEN
from ..published import without_numbers
from ..stats.rules import MOST_REPLICATES, MOST_SESSIONS, Settlement
from ..verdict import Basis, Judgement, Verdict
from .quantity import format_band, format_percent, rounded_up_band

WIDEST_BAND = 0.5
"""That is worth naming: who accepts more gates nothing."""

_RECORD_ALL = "`pytest -m perf --perf-record=all`"
_SUSPICION = "be suspicious first: is the same work still done (result checks, cache hits, skipped layers, clocks)?"


def advice(judgement: Judgement) -> tuple[str, ...]:
    """Sentences for the user, by verdict and by what the metric was compared with; () where nothing is to be done."""
    match judgement.verdict:
        case Verdict.WRONG_RESULT:
            return _wrong(judgement)
        case Verdict.INVALID:
            return _invalid(judgement)
        case Verdict.NO_BASELINE:
            return (
                "if this host is as it should be, record it: `pytest -m perf --perf-record=missing`",
                "or compare with a file of your choice: `pytest -m perf --perf-baseline PATH`",
            )
        case Verdict.CONFOUNDED:
            return tuple(_CONFOUNDED[judgement.basis.reference](judgement))
        case _ if judgement.basis.unpublished is not None:
            return _beside_published(judgement)
        case Verdict.REGRESSED:
            return _regressed(judgement)
        case Verdict.IMPROVED:
            return _improved(judgement)
        case Verdict.INCONCLUSIVE if _has(judgement, Cause.PROCESS_APART):
            return tuple(_apart(judgement))
        case _ if judgement.settlement is not None:
            return tuple(_open(judgement, judgement.settlement))
        case _:
            return ()


def _invalid(judgement: Judgement) -> tuple[str, ...]:
    if _has(judgement, Cause.SICK_GPU):  # which says itself what to do about it
        return ()
    if judgement.basis.reference == "baseline" and _has(judgement, Cause.UNUSED_CHANGE):
        return (
            "if the change is not in yet, make it, and see in the provenance of a run that it is loaded",
            "if it is, nothing was recorded before it: go back, record with `pytest -m perf --perf-record`, and change",
            "to gate this stack as it is, leave out --perf-change",
        )

    return ("remove the cause and run again; more replicates of a broken measurement do not mend it",)


def _wrong(judgement: Judgement) -> tuple[str, ...]:
    """Numbers that are wrong are to be mended; a server that answers otherwise may be right."""
    if not _has(judgement, Cause.WRONG_ANSWERS):
        return ("mend the result first: a faster wrong answer is no improvement",)

    return (
        "find out which answers are right before its speed is looked at: a kernel, a format or the weights changed",
        f"to accept the new answers of a new stack, record it without --perf-change: {_RECORD_ALL}",
    )


def _beside_baseline(judgement: Judgement) -> Iterator[str]:
    """Declare what may be declared, set back or record again what may not."""
    if _has(judgement, Cause.CLOCK_SHIFT):
        yield "let this host cool down, or hold the clock where it was (`nvidia-smi -lgc`), and run again"
        yield f"if this is the clock from now on, record the host as it is: {_RECORD_ALL}"
    if any(each.declarable for each in judgement.undeclared):
        # The command replaces the one that was typed, so it repeats what was declared already.
        names = ",".join(declarations(judgement.differences))
        yield f"if that is the change under test, declare it: `pytest -m perf --perf-change {names}`"
    if fixed := [each.field for each in judgement.undeclared if not each.declarable]:
        yield f"{', '.join(fixed)} cannot be declared: set it back, or record this host as it is: {_RECORD_ALL}"
    if starts := _as_recorded(judgement.another):
        yield f"measure it as it was recorded, {starts} --perf-server-restarts; or record it anew: {_RECORD_ALL}"
    elif judgement.another:
        yield f"the name now stands for another measurement: record it again with {_RECORD_ALL}, or rename it"


def _as_recorded(another: Sequence[Difference]) -> str:
    """Whether starts of a server are to be asked for, where that is all that differs; "" where more does."""
    match another:
        case [Difference(field="level", base="server", new="window")]:
            return "with"
        case [Difference(field="level", base="window", new="server")]:
            return "without"
        case _:
            return ""


def _beside_stack(judgement: Judgement) -> Iterator[str]:
    """Make the stacks differ in what was declared; what libraries chose by themselves is no difference to declare."""
    if _has(judgement, Cause.UNCAUSED):
        yield (
            "a library chose anew in each process: find what the choice depends on (free memory, tuning, a cache), or "
            "pin it"
        )
    else:
        yield (
            "make the two stacks differ in one thing only, or say what else is part of the change under test with "
            "--perf-change"
        )


def _beside_file(judgement: Judgement) -> Iterator[str]:
    """Say on the command line what differs on purpose, or that it does not matter."""
    if judgement.another:
        yield _other_measurement(judgement.another)
    if names := declarations(judgement.undeclared):
        yield f"if that is the change under test, declare it: --change {','.join(names)}"
    if fixed := dict.fromkeys(without_numbers(each.field) for each in judgement.undeclared if not each.declarable):
        yield f"this cannot be the change; to compare all the same: {_allow(fixed)}"
    if _has(judgement, Cause.CLOCK_SHIFT):
        yield f"record again with the clocks held where they were (`nvidia-smi -lgc`), or say {_allow([CLOCK])}"


_CONFOUNDED = {"baseline": _beside_baseline, "stack": _beside_stack, "file": _beside_file}


def _other_measurement(another: Sequence[Difference]) -> str:
    if any(each.field == "unit" for each in another):
        return "values of different units are never compared: record the reference again"

    return f"compare like with like, or say that it does not matter: {_allow(each.field for each in another)}"


def _allow(fields: Iterable[str]) -> str:
    return " ".join(f"--allow {field}" for field in fields)


def _beside_published(judgement: Judgement) -> tuple[str, ...]:
    record = f"the figure was measured elsewhere: {_RECORD_ALL} makes a baseline of this host, with noise and stack"
    if judgement.verdict is Verdict.PASS:
        return (record,)

    return ("make sure that the same thing is measured before you act on a difference", record)


def _regressed(judgement: Judgement) -> tuple[str, ...]:
    if judgement.basis.reference == "stack":
        return ("undo the change, or a part of it at a time, to find what costs; do not roll out until then",)
    if judgement.basis.reference == "file":
        return ("undo the changes one at a time to find the one that costs; do not roll out until then",)
    if judgement.changed:
        return ("undo the declared changes one at a time to find the one that costs; do not roll out until then",)

    return (
        "nothing in the provenance differs, so run once more",
        "if it stays, look for a change in the code under test, the cooling or the load of this host",
    )


def _improved(judgement: Judgement) -> tuple[str, ...]:
    if judgement.basis.reference == "file":
        return ()
    if judgement.basis.reference == "stack":
        return (_SUSPICION,)
    if judgement.changed:
        return (_SUSPICION, f"if so, keep it as the baseline of this stack: {_RECORD_ALL} writes a new file")

    return (
        _SUSPICION,
        "no change was declared: a gain that nothing explains is a reason to look for the cause first",
        f"to re-baseline, add a session with {_RECORD_ALL}, and `decodegate baselines accept` makes it gate",
    )


def _apart(judgement: Judgement) -> Iterator[str]:
    """One process that is far from all the others is to be found out, not measured away."""
    yield "run again: a process that does not come back was chance, one that does is a slow mode, which no band hides"
    if any(reason.about == STORED for reason in judgement.reasons):
        yield "a stored session with such a process is a poor measure: drop it with `decodegate baselines prune`"
    if judgement.settlement is not None:
        yield from (f"even without it: {line}" for line in _open(judgement, judgement.settlement))


def _open(judgement: Judgement, settlement: Settlement) -> Iterator[str]:
    """What would have settled it, in what can be had more of; and the band that would have passed."""
    match judgement.basis.reference:
        case "stack":
            yield _more_pairs(settlement, judgement.basis.pair_noise)
        case "file":
            yield _more_on_both_sides(settlement)
        case "baseline":
            yield from _measuring_more(judgement.basis, settlement)
            if judgement.basis.foreign_cards:
                yield f"cards of one kind differ: the old stack recorded on these very cards says more: {_RECORD_ALL}"

    if settlement.tolerance is None:
        return
    if settlement.tolerance > WIDEST_BAND:
        yield "no band worth having would have passed: find what makes processes differ so much before measuring again"
    else:
        band = format_band(rounded_up_band(settlement.tolerance))
        yield f"a band of {band} would have passed, if you accept that loss"


def _more_pairs(settlement: Settlement, pair_noise: float | None) -> str:
    noise = "how much a pair scatters is not known"
    if pair_noise is not None:
        noise = f"one pair scatters by {format_percent(pair_noise, signed=False)}"

    pairs = settlement.replicates
    if pairs is not None and settlement.seconds is not None:
        return f"{noise}; {pairs} pairs would have settled it: --perf-budget {budget_for(settlement.seconds)}"
    if pairs is not None:
        return f"{noise}; {pairs} pairs would have settled it: --perf-max-replicates {pairs}"

    return f"{noise}; not even {MOST_FORESEEN} pairs would have settled it: the change lies too near the band's edge"


def budget_for(seconds: float) -> str:
    """A --perf-budget that is enough for what is foreseen to take so long, a tenth more: "14m"."""
    return f"{math.ceil(1.1 * seconds / 60)}m"


def _more_on_both_sides(settlement: Settlement) -> str:
    if settlement.sessions is None:
        return f"not even {MOST_SESSIONS} sessions on each side would have settled it"

    return f"{settlement.sessions} sessions on each side would have settled it: record more, hours apart"


def _measuring_more(basis: Basis, settlement: Settlement) -> Iterator[str]:
    """What more replicates or sessions would have done, where either would have done anything."""
    if settlement.replicates is not None:
        option = "--perf-server-restarts" if basis.level == "server" else "--perf-replicates"
        yield f"{settlement.replicates} replicates would have settled it: `{option} {settlement.replicates}`"
    if settlement.sessions is not None:
        more = settlement.sessions - basis.sessions
        yield f"{more} more baseline session(s) of the old stack would have settled it: {_RECORD_ALL}, hours apart"
    if settlement.replicates is None and settlement.sessions is None:
        yield (
            f"neither {MOST_REPLICATES} replicates nor {MOST_SESSIONS} baseline sessions would have settled it: "
            "processes differ too much, or the change lies too near the edge of the band"
        )


def declarations(differences: Iterable[Difference]) -> dict[str, None]:
    """What to type to declare the declarable ones, once each: nccl for nccl_sha256."""
    return dict.fromkeys(declaration(each) for each in differences if each.declarable)


def declaration(difference: Difference) -> str:
    """What to type after --perf-change to allow a declarable difference: nccl for nccl_sha256."""
    known = (name for name in COMPONENTS if not undeclared((difference,), {name}))
    return next(known, difference.field)


def _has(judgement: Judgement, cause: Cause) -> bool:
    return any(reason.cause is cause for reason in judgement.reasons)
