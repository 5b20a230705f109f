"""`dumps` writes a baseline as a file that pytest-benchmark and the readers of its JSON understand.

The promise: each recording of a metric is a benchmark of its own, on one line. Its `stats` are in seconds per unit, so
that a slowdown is a slowdown for every reader, and all of pytest-benchmark's own fields, by its own class. What
the gate reads lies in `extra_info` (process values in native units) and in the object `decodegate`: a metric's identity
and what was the same for a whole session stand there once. So a new session adds one line a metric.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from ..errors import BadInput
from ..metric import Json, Metric
from .condensed import condensed
from .schema import RECORDER_FIELDS, SCHEMA, Baseline, Session, StoredMetric
from .seal import seal

UNKNOWN_COMMIT: Final[Mapping[str, Json]] = {
    "id": "unversioned",
    "time": None,
    "author_time": None,
    "dirty": False,
    "project": "unknown",
    "branch": "(unknown)",
}
"""What pytest-benchmark says where there is no repository."""

_EPOCH = "1970-01-01T00:00:00+00:00"


def dumps(baseline: Baseline) -> bytes:
    """The file of `baseline`, strict JSON in UTF-8; raises BadInput where a fact or setting is no JSON value."""
    kept = replace(baseline, metrics={name: condensed(stored) for name, stored in baseline.metrics.items()})
    try:
        return seal(_document(kept))
    except (TypeError, ValueError) as error:
        raise BadInput(f"{baseline.path}: something to record is no JSON value: {error}") from error


def _document(baseline: Baseline) -> dict[str, Any]:
    import pytest_benchmark

    newest = baseline.newest
    sessions = _sessions(baseline)
    return {
        "version": pytest_benchmark.__version__,
        "datetime": (newest.recorded if newest else "") or _EPOCH,
        "commit_info": dict((newest.commit if newest else {}) or UNKNOWN_COMMIT),
        "machine_info": _machine_info(baseline),
        "decodegate": {
            "schema": SCHEMA,
            "digest": "",
            "machine_class": baseline.machine_class,
            "label": baseline.label,
            **({"published": baseline.published} if baseline.published else {}),
            "provenance": baseline.provenance.to_json(),
            "metrics": {name: _metric(stored) for name, stored in baseline.metrics.items()},
            "sessions": sessions,
            "log": [asdict(entry) for entry in baseline.log],
        },
        "benchmarks": [
            _benchmark(stored.metric, session, sessions[session.id])
            for stored in baseline.metrics.values()
            for session in stored.sessions
        ],
    }


def _machine_info(baseline: Baseline) -> Mapping[str, Json]:
    """What stays the same from run to run: readers compare all of it, and warn at every difference."""
    machine, stack = baseline.provenance.machine, baseline.provenance.stack
    here: Mapping[str, Json] = {name: getattr(platform, name)() for name in RECORDER_FIELDS}
    measured = {"python_version": stack["python"]} if "python" in stack else {}
    return {
        "node": baseline.machine_class,
        **here,
        # The ranks may run under another Python than pytest, and a file may be edited under a third one.
        **measured,
        **baseline.recorder,
        "cpu": {"brand_raw": machine.get("cpu", "unknown")},
        "gpus": machine.get("gpus", []),
    }


def _metric(stored: StoredMetric) -> dict[str, Json]:
    """The identity of a metric, its band, and from which session on a new level was accepted."""
    metric = stored.metric
    return {
        "unit": metric.unit,
        "better": metric.better,
        "kind": metric.kind,
        "tolerance": metric.tolerance,
        **({} if stored.accepted is None else {"accepted": stored.accepted}),
        "contract": dict(metric.contract),
    }


def _sessions(baseline: Baseline) -> dict[str, dict[str, Json]]:
    """By session what is the same for all its metrics: the commit, and each field of the telemetry that all have."""
    by_id: dict[str, list[Session]] = {}
    for stored in baseline.metrics.values():
        for session in stored.sessions:
            by_id.setdefault(session.id, []).append(session)

    return {name: _shared(sessions) for name, sessions in by_id.items()}


def _shared(sessions: Sequence[Session]) -> dict[str, Json]:
    first, *others = sessions
    telemetry = {
        name: value
        for name, value in first.telemetry.items()
        if all(name in other.telemetry and other.telemetry[name] == value for other in others)
    }
    same = all(other.commit == first.commit for other in others)
    return {"commit": dict(first.commit) if same else {}, "telemetry": telemetry}


def benchmark(metric: Metric) -> dict[str, Any]:
    """A metric as pytest-benchmark has it, without what was measured."""
    return {
        "group": metric.kind,
        "name": metric.name,
        # Readers join files by fullname: a node id would change with every rename of a test.
        "fullname": metric.name,
        "params": None,
        "param": None,
    }


def _benchmark(metric: Metric, session: Session, shared: Mapping[str, Any]) -> dict[str, Any]:
    own = {name: value for name, value in session.telemetry.items() if name not in shared["telemetry"]}
    facts = [dict(replicate.facts) for replicate in session.replicates]
    return {
        **benchmark(metric),
        "extra_info": {
            "session": session.id,
            "recorded": session.recorded,
            "level": session.level,
            # A published figure stands alone: nothing may look as if replicates were behind it.
            **({"point": session.point} if session.point is not None else {"values": list(session.values)}),
            **({"facts": facts} if any(facts) else {}),
            **({"telemetry": own} if own else {}),
            **({"commit": dict(session.commit)} if session.commit != shared["commit"] else {}),
        },
        "stats": dict(session.stats),
    }
