"""The bands of the shipped baselines: as their tests have them, and no wider than the recorded noise asks for."""

from __future__ import annotations

from pathlib import Path

from perf_tests.test_allreduce import BANDS
from perf_tests.test_decode_kernels import BATCHES, CONTEXTS, PROJECTIONS, SMALL, attention_band, band

from pytest_decodegate.baseline.reader import load
from pytest_decodegate.baseline.schema import StoredMetric
from pytest_decodegate.metric import DEFAULT_TOLERANCE

SHIPPED = Path(__file__).parents[2] / "baselines"

WIDEST = 0.05
"""Of what is replayed from a graph."""

RESTLESS = {"moe_align[m=8]": 0.08, "silu_mul_shared[m=1]": 0.08, "argmax[m=1]": 0.08, "argmax[m=8]": 0.08}
"""Whose fresh gangs scatter by 1 to 3 %, or which one card of four runs in 5 % less: `decodegate baselines` says what
they can keep."""


def recorded() -> list[StoredMetric]:
    """Every metric of the shipped files that was recorded here."""
    files = [load(path) for path in sorted(SHIPPED.glob("*/*.json"))]
    return [stored for file in files if not file.published for stored in file.metrics.values()]


def bands_of_tests() -> dict[str, float]:
    """The bands of the suite's kernels and AllReduces, by name."""
    kernels = {f"{op}[m={tokens}]": band(op, tokens) for op in (*PROJECTIONS, *SMALL) for tokens in BATCHES}
    attention = {
        f"mla_decode[m={tokens},context={context}]": attention_band(tokens, context)
        for tokens in BATCHES
        for context in CONTEXTS
    }
    known = {
        name: DEFAULT_TOLERANCE["kernel"] if one is None else one for name, one in {**kernels, **attention}.items()
    }
    collectives = {f"allreduce_{path}[world={size}]": one for path, one in BANDS.items() for size in (2, 4, 8)}
    return {**known, **collectives}


def test_a_stored_band_is_that_of_its_test() -> None:
    bands = bands_of_tests()
    stored = [one.metric for one in recorded() if one.metric.name in bands]
    assert len(stored) > 60
    assert {one.name: one.tolerance for one in stored} == {one.name: bands[one.name] for one in stored}


def test_nothing_that_a_graph_replays_has_a_wider_band_than_noise_asks_for() -> None:
    graphs = [one.metric for one in recorded() if one.metric.contract.get("mode") == "graph"]
    assert {one.kind for one in graphs} == {"kernel", "collective"}
    assert {one.name: one.tolerance for one in graphs if one.tolerance > WIDEST} == RESTLESS
