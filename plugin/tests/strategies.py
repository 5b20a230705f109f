"""Hypothesis strategies of baselines and of the JSON in them."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st

from pytest_decodegate.baseline.schema import Baseline, Session, StoredMetric
from pytest_decodegate.machine.provenance import Provenance
from pytest_decodegate.metric import DEFAULT_TOLERANCE, UNITS, Level, Metric, Replicate
from pytest_decodegate.printable import printable

RECORDED = "2026-01-01T12:00:00+00:00"


def texts(min_size: int = 0, max_size: int | None = None) -> st.SearchStrategy[str]:
    """Texts that can be shown; others do not come back as they were written."""
    seen = st.characters(exclude_categories=("Cc", "Cf", "Cs", "Zl", "Zp"))
    return st.text(seen, min_size=min_size, max_size=max_size).filter(lambda text: printable(text) == text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1e300, 1e300) | texts(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts(max_size=5), inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(texts(max_size=8), json_values, max_size=3)
replicates = st.builds(Replicate, st.lists(st.floats(1e-12, 1e12), min_size=1, max_size=5).map(tuple), objects)


@st.composite
def stored_metrics(draw: st.DrawFn, name: str) -> StoredMetric:
    metric = Metric(
        name,
        draw(st.sampled_from(sorted(UNITS))),
        draw(st.sampled_from(sorted(DEFAULT_TOLERANCE))),
        draw(st.floats(0.001, 0.9)),
        draw(objects),
    )
    levels: list[Level] = ["process", "gang", "window", "server"]
    level = draw(st.sampled_from(levels))
    names = draw(st.lists(texts(min_size=1, max_size=5), min_size=1, max_size=3, unique=True))
    some = st.lists(replicates, min_size=1, max_size=3).map(tuple)
    return StoredMetric(metric, tuple(Session(one, RECORDED, level, draw(some), draw(objects)) for one in names))


@st.composite
def baselines(draw: st.DrawFn) -> Baseline:
    names = draw(st.lists(st.from_regex(r"[a-z0-9][a-z0-9_.=]{0,6}", fullmatch=True), max_size=3, unique=True))
    metrics = {name: draw(stored_metrics(name)) for name in names}
    provenance = Provenance(draw(objects), draw(objects), {})
    return Baseline(Path("x"), draw(texts(min_size=1, max_size=9)), draw(texts(max_size=9)), provenance, metrics)
