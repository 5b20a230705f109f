"""The line through two depths, with an interval that covers as often as it says."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scripted import ScriptedServer, answer, streaming
from scripted_host import without_ranks

from pytest_decodegate.errors import BadInput
from pytest_decodegate.gate.evidence.depth import Depth, extrapolate
from pytest_decodegate.resources.server import ServerUnderTest
from pytest_decodegate.serving.server import attach

layers = st.integers(2, 60)
seconds = st.floats(1e-4, 1e-2)


@given(seconds, seconds, layers, layers, st.integers(61, 100))
def test_a_line_is_followed(fixed: float, slope: float, one: int, other: int, target: int) -> None:
    assume(one != other)

    def at(depth: int) -> Depth:
        return Depth(depth, [fixed + slope * depth] * 3)

    found = extrapolate(at(one), at(other), target)
    assert found.value == pytest.approx(fixed + slope * target)
    assert found.lo == pytest.approx(found.value)
    assert found.hi == pytest.approx(found.value)


@given(st.lists(seconds, min_size=2, max_size=5), st.lists(seconds, min_size=2, max_size=5))
def test_the_order_of_the_depths_makes_no_difference(shallow: list[float], deep: list[float]) -> None:
    one, other = Depth(8, shallow), Depth(24, deep)
    there, back = extrapolate(one, other, 61), extrapolate(other, one, 61)
    assert (there.value, there.lo, there.hi) == pytest.approx((back.value, back.lo, back.hi))
    assert there.lo <= there.value <= there.hi


@given(st.lists(seconds, min_size=2, max_size=5, unique=True))
def test_further_is_less_certain(values: list[float]) -> None:
    widths = [
        found.hi - found.lo
        for found in (extrapolate(Depth(8, values), Depth(24, values), depth) for depth in (24, 40, 61))
    ]
    assert widths == sorted(widths)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    draw = random.Random(1)
    covered = 0
    for _ in range(400):
        sides = (Depth(n, [draw.gauss(1e-3 + 2e-4 * n, 2e-5) for _ in range(5)]) for n in (8, 24))
        found = extrapolate(next(sides), next(sides), 61)
        covered += found.lo <= 1e-3 + 2e-4 * 61 <= found.hi

    assert 0.92 <= covered / 400 <= 0.98


EIGHT = Depth(8, [1.9452e-3, 2.4338e-3, 2.06e-3, 1.8142e-3, 2.1408e-3])
TWENTY_FOUR = Depth(24, [2.7601e-3, 2.7577e-3, 2.7752e-3, 2.7585e-3, 2.76e-3])
ALL = Depth(61, [6.7729e-3, 6.7736e-3, 6.7769e-3, 6.7753e-3, 6.7771e-3])


def test_depths_whose_pace_the_host_sets_are_refused() -> None:
    """TPOT of one stream on one H200, vLLM 0.26.0; the three from separate server starts."""
    host_bound = extrapolate(EIGHT, TWENTY_FOUR, 61)
    assert host_bound.hi < min(ALL.values)
    assert host_bound.doubt is not None
    assert host_bound.doubt.startswith("not extrapolated to 61 layers: of a step of 8 layers, 83.6 % would be none")
    assert extrapolate(TWENTY_FOUR, ALL, 61).doubt is None


def test_it_says_what_it_is() -> None:
    found = extrapolate(Depth(8, [2e-3, 2e-3]), Depth(24, [4e-3, 4e-3]), 61)
    assert str(found) == "8.62 ms [8.62 ms, 8.62 ms] at 61 layers, extrapolated from 8 and 24, not measured"


@pytest.mark.parametrize(
    ("one", "other"), [(Depth(8, [1.0, 1.0]), Depth(8, [1.0, 1.0])), (Depth(8, [1.0]), Depth(24, [1.0, 2.0]))]
)
def test_what_cannot_be_extrapolated_is_refused(one: Depth, other: Depth) -> None:
    with pytest.raises(BadInput, match="extrapolation to 61 layers: needs two depths with two values each"):
        extrapolate(one, other, 61)


@pytest.fixture
def scripted() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    server.completion = streaming(answer(), pause_s=0.02)
    yield server
    server.close()


def test_two_depths_are_served_in_turn_and_extrapolated(
    pytester: pytest.Pytester, scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int | None] = []

    def open_server(server: ServerUnderTest) -> object:
        opened.append(server._layers)
        scripted.completion = streaming(answer(), pause_s=0.0015 * (server._layers or 1))
        return attach(scripted.url)

    monkeypatch.setattr(ServerUnderTest, "_open", open_server)
    without_ranks(monkeypatch)
    pytester.makeini("[pytest]\n")
    pytester.makepyfile("""
        import pytest
        from pytest_decodegate.metric import Metric
        from pytest_decodegate.measure.window import Load

        @pytest.mark.perf
        def test_tpot(perf, monkeypatch):
            monkeypatch.setattr(perf, "needs_gpu", lambda what: None)
            measured = {
                layers: perf.measure_tpot(
                    Metric.of(f"tpot[layers={layers}]", "serving"), perf.slice_server(layers), Load(1, 8, 4, 5)
                )
                for layers in (8, 24)
            }
            found = perf.extrapolate("tpot_61_layers_extrapolated", measured, 61)
            assert found.lo <= found.value <= found.hi
            with pytest.raises(pytest.fail.Exception, match="^no_line: not extrapolated to 61 layers"):
                perf.extrapolate("no_line", {8: measured[8], 24: measured[8]}, 61)

        def test_afterwards(server):
            pass
    """)
    result = pytester.runpytest_inprocess("--perf", "--perf-record", "--perf-replicates=2", "--junitxml=junit.xml")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        ["tpot_61_layers_extrapolated: * at 61 layers, extrapolated from 8 and 24, not measured"]
    )
    assert 'name="perf.tpot_61_layers_extrapolated.hi"' in (pytester.path / "junit.xml").read_text()
    assert opened == [8, 24, None]


def test_a_served_model_has_no_depth_to_choose(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\n")
    pytester.makepyfile("""
        import pytest

        @pytest.mark.perf
        def test_tpot(perf, monkeypatch):
            monkeypatch.setattr(perf, "needs_gpu", lambda what: None)
            perf.slice_server(8)
    """)
    result = pytester.runpytest_inprocess("--perf", "-rs", "--perf-launch=some/model")
    result.stdout.fnmatch_lines(["SKIPPED*only the suite's own rank-slice has a depth to choose"])
