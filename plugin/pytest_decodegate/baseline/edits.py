"""The edits of a baseline that people would do by hand: pure functions that return the new file and what was done."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from ..errors import BadInput
from ..machine.reach import apart
from ..metric import Json, literal_brackets
from .schema import Baseline, Session, StoredMetric

_SET_BAND = re.compile(r"band of \d+ metric\(s\) \((?P<patterns>.*)\): .* -> (?P<band>\S+)")
"""What `set_band` leaves in the log."""


@dataclass(frozen=True, slots=True)
class Pruning:
    """The sessions to drop: all conditions that are given must hold. metric: a pattern. before: an instant."""

    metric: str = "*"
    sessions: tuple[str, ...] = ()
    before: datetime | None = None

    def takes(self, session: Session) -> bool:
        """Whether this session of a matching metric goes."""
        named = not self.sessions or session.id in self.sessions
        return named and (self.before is None or (bool(session.recorded) and session.instant < self.before))


def prune(baseline: Baseline, pruning: Pruning) -> tuple[Baseline, str]:
    """Drop sessions, and metrics that are left without any; raises BadInput when nothing matches or nothing is left."""
    kept = {name: _pruned(baseline, stored, pruning) for name, stored in baseline.metrics.items()}
    gone = {name: len(stored.sessions) - len(_sessions(kept[name])) for name, stored in baseline.metrics.items()}
    if not any(gone.values()):
        raise BadInput(f"{baseline.path}: no session matches, so nothing was pruned; {_inventory(baseline)}")

    metrics = {name: stored for name, stored in kept.items() if stored is not None}
    if not metrics:
        raise BadInput(f"{baseline.path}: nothing would be left; delete the file instead, with a commit that says why")

    dropped = ", ".join(f"{count} session(s) of {name}" for name, count in gone.items() if count)
    return replace(baseline, metrics=metrics), f"pruned {dropped}"


def accept(baseline: Baseline, metric: str, since: str | None) -> tuple[Baseline, str]:
    """Accept the level of the newest session, or of the session `since`, for metrics that match the pattern `metric`.

    Earlier sessions stay in the file as history and no longer gate. Raises BadInput when nothing matches.
    """
    chosen = {
        name: replace(stored, accepted=_session_id(stored, since))
        for name, stored in matching(baseline, metric).items()
        if since is None or any(session.id == since for session in stored.sessions)
    }
    if not chosen:
        asked = f"{metric!r}" if since is None else f"{metric!r} with a session {since!r}"
        raise BadInput(f"{baseline.path}: no metric {asked}; {_inventory(baseline)}")

    accepted = ", ".join(f"{name} since {stored.accepted}" for name, stored in chosen.items())
    return replace(baseline, metrics={**baseline.metrics, **chosen}), f"accepted the level of {accepted}"


def merge(target: Baseline, source: Baseline) -> tuple[Baseline, str]:
    """Add the sessions and the log of `source`, a file of the same class and stack, to `target`.

    Raises BadInput when the stacks differ in what can touch a metric of `source`, when a metric measures something
    else, or when one session id has two contents. Sessions that both sides have are kept once, so that a merge can be
    repeated.
    """
    if source.machine_class != target.machine_class:
        raise BadInput(f"{source.path}: recorded on {source.machine_class}; baselines never cross machine classes")
    kept = target.provenance, source.provenance
    if found := dict.fromkeys(str(each) for stored in source.metrics.values() for each in apart(*kept, stored.metric)):
        shown = "; ".join(list(found)[:3])
        raise BadInput(
            f"{source.path}: another stack than {target.path.name} ({shown}); only one stack goes into a file"
        )

    merged = joined(target, source)
    count = _count(merged) - _count(target)
    return merged, f"merged {count} session(s) from {source.path.name}"


def _count(baseline: Baseline) -> int:
    """Sessions of all its metrics together."""
    return sum(len(stored.sessions) for stored in baseline.metrics.values())


def joined(target: Baseline, source: Baseline) -> Baseline:
    """`target` with the sessions and the log of `source`; raises BadInput as `merge` does for what measures otherwise.

    The caller answers for their stacks.
    """
    metrics = dict(target.metrics)
    for name, stored in source.metrics.items():
        metrics[name] = _merged(metrics[name], stored, source) if name in metrics else stored

    log = tuple(sorted({*target.log, *source.log}, key=lambda entry: datetime.fromisoformat(entry.when)))
    return replace(target, metrics=metrics, log=log)


def set_band(baseline: Baseline, patterns: Sequence[str], tolerance: float) -> tuple[Baseline, str]:
    """Set the band of metrics that match any of `patterns`; raises BadInput when none matches or none changes."""
    chosen = _chosen(baseline, patterns)
    old = sorted({stored.metric.tolerance for stored in chosen.values()} - {tolerance})
    if not old:
        raise BadInput(f"{baseline.path}: the band of {', '.join(patterns)} is {tolerance:.3%} already")

    changed = {
        name: replace(stored, metric=replace(stored.metric, tolerance=tolerance)) for name, stored in chosen.items()
    }
    before = " and ".join(f"{band:.3%}" for band in old)
    said = f"band of {len(changed)} metric(s) ({', '.join(patterns)}): {before} -> {tolerance:.3%}"
    return replace(baseline, metrics={**baseline.metrics, **changed}), said


def band_is_set(baseline: Baseline, metric: str) -> bool:
    """Whether the band of a stored metric is one that `set_band` gave it, as the log of its file tells."""
    band = f"{baseline.metrics[metric].metric.tolerance:.3%}"
    edits = filter(None, (_SET_BAND.fullmatch(entry.what) for entry in baseline.log))
    # A recording under another band takes the metric out of the user's hands: then the band is no more the same.
    patterns = (pattern for edit in edits if edit["band"] == band for pattern in edit["patterns"].split(", "))
    return any(metric in matching(baseline, pattern) for pattern in patterns)


def set_contract(baseline: Baseline, patterns: Sequence[str], fields: Mapping[str, Json]) -> tuple[Baseline, str]:
    """Add `fields` to the contracts of metrics that match any of `patterns`: what was true of them, and is not told.

    Raises BadInput when none matches, or when a contract says something else already: that is another measurement.
    """
    chosen = _chosen(baseline, patterns)
    for name, stored in chosen.items():
        for key, value in fields.items():
            if stored.metric.contract.get(key, value) != value:
                raise BadInput(
                    f"{baseline.path}: {name!r} was recorded with contract.{key} {stored.metric.contract[key]!r}, and "
                    f"no edit can make that {value!r}; record it again, or choose other metrics"
                )

    changed = {
        name: replace(stored, metric=replace(stored.metric, contract={**stored.metric.contract, **fields}))
        for name, stored in chosen.items()
    }
    added = ", ".join(f"{key} = {value!r}" for key, value in fields.items())
    said = f"contract of {len(changed)} metric(s) ({', '.join(patterns)}): {added}"
    return replace(baseline, metrics={**baseline.metrics, **changed}), said


def new_band(stored: StoredMetric | None, tolerance: float) -> str | None:
    """The change of a stored metric's band by a recording with `tolerance`, in words; None if there is none."""
    if stored is None or stored.metric.tolerance == tolerance:
        return None

    return f"band of {stored.metric.name}: {stored.metric.tolerance:.3%} -> {tolerance:.3%}"


def _pruned(baseline: Baseline, stored: StoredMetric, pruning: Pruning) -> StoredMetric | None:
    if not fnmatch.fnmatchcase(stored.metric.name, literal_brackets(pruning.metric)):
        return stored

    kept = tuple(session for session in stored.sessions if not pruning.takes(session))
    current = [session.id for session in stored.current if session in kept]
    if not kept:
        return None
    if not current:
        raise BadInput(
            f"{baseline.path}: {stored.metric.name!r} would fall back to sessions from before its accepted level; "
            "prune those as well, or accept an earlier session first"
        )

    return replace(stored, sessions=kept, accepted=current[0] if stored.accepted else None)


def is_one_measurement(stored: StoredMetric, new: StoredMetric) -> bool:
    """Whether the two measure the same, so that their sessions may stand in one row."""
    return (stored.metric.identity, stored.level) == (new.metric.identity, new.level)


def _merged(target: StoredMetric, source: StoredMetric, file: Baseline) -> StoredMetric:
    name = target.metric.name
    if not is_one_measurement(target, source):
        raise BadInput(f"{file.path}: {name!r} measures something else there (unit, kind, contract or level)")

    sessions = {session.id: session for session in target.sessions}
    for session in source.sessions:
        if sessions.setdefault(session.id, session) != session:
            raise BadInput(
                f"{file.path}: session {session.id!r} of {name!r} has other numbers there; prune one of them"
            )

    in_order = tuple(sorted(sessions.values(), key=lambda session: session.instant))
    return replace(target, sessions=in_order, accepted=_later_acceptance(target, source, in_order))


def _later_acceptance(target: StoredMetric, source: StoredMetric, sessions: Sequence[Session]) -> str | None:
    marks = {target.accepted, source.accepted}
    return next((session.id for session in reversed(sessions) if session.id in marks), None)


def _session_id(stored: StoredMetric, since: str | None) -> str:
    newest = max(stored.sessions, key=lambda session: session.instant)
    return since if since is not None else newest.id


def _chosen(baseline: Baseline, patterns: Sequence[str]) -> Mapping[str, StoredMetric]:
    """The metrics that match any of the patterns; raises BadInput for a pattern that none matches."""
    chosen: dict[str, StoredMetric] = {}
    for pattern in patterns:
        found = matching(baseline, pattern)
        if not found:
            raise BadInput(f"{baseline.path}: no metric {pattern!r}; {_inventory(baseline)}")

        chosen |= found

    return chosen


def matching(baseline: Baseline, metric: str) -> Mapping[str, StoredMetric]:
    """The metrics of `baseline` that the pattern `metric` matches, by name."""
    names = fnmatch.filter(baseline.metrics, literal_brackets(metric))
    return {name: baseline.metrics[name] for name in names}


def _sessions(stored: StoredMetric | None) -> Sequence[Session]:
    return stored.sessions if stored is not None else ()


def _inventory(baseline: Baseline) -> str:
    ids = sorted({session.id for stored in baseline.metrics.values() for session in stored.sessions})
    return f"it holds the metrics {', '.join(baseline.metrics)} and the sessions {', '.join(ids)}"
