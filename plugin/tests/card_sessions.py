"""Sessions of two kernels on cards that are named, and a run on some of them judged."""

from __future__ import annotations

from pathlib import Path

from pytest_decodegate.baseline.schema import Baseline, Session, StoredMetric
from pytest_decodegate.baseline.selection import Selection
from pytest_decodegate.gate.verdict import Judgement, judge
from pytest_decodegate.machine.cards import cards_of
from pytest_decodegate.machine.provenance import Provenance
from pytest_decodegate.metric import Json, Measurement, Metric, Replicate

GEMM, OTHER = (Metric(name, "s", "kernel", 0.02, {"mode": "graph"}) for name in ("gemm", "other"))
QUIET = (1.0, 1.0005, 0.9995, 1.0002, 0.9998)


def telemetry(*cards: str) -> dict[str, Json]:
    """What a session says of its cards."""
    return {"gpus": [{"bus_id": f"0000:0{place}:00.0", "uuid": card} for place, card in enumerate(cards)]}


def session(number: int, level: float, *cards: str, share: float | None = None) -> Session:
    """One session of a kernel at a time of so many 10 us; share: of the memory's ceiling, if it says it."""
    replicates = tuple(Replicate((1e-5 * level * factor,)) for factor in QUIET)
    when = f"2026-01-0{number}T00:00:00+00:00"
    known: dict[str, Json] = {} if share is None else {"medians": {"memory_share": share}}
    return Session(f"s{number}", when, "gang", replicates, telemetry={**telemetry(*cards), **known})


def baseline(*sessions: Session) -> Baseline:
    """A file in which both kernels have these sessions."""
    stored = {metric.name: StoredMetric(metric, sessions) for metric in (GEMM, OTHER)}
    return Baseline(Path("0001.json"), "here", "stack", Provenance({}, {}, {}), stored)


def measured(level: float) -> Measurement:
    """The first kernel at so many 10 us."""
    return Measurement(GEMM, tuple(Replicate((1e-5 * level * factor,)) for factor in QUIET), "gang")


def judged(base: Baseline, level: float, *cards: str, fixed_band: bool = False) -> Judgement:
    """The first kernel as it is judged at so many 10 us on `cards`; a host without any does not know its own."""
    selection = Selection(Path(), base, cards=cards_of(telemetry(*cards)))
    return judge(measured(level), selection, looks=2, fixed_band=fixed_band)
