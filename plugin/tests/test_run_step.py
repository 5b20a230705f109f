"""The decode step in a run, as a user runs it: every part by a made-up source, real hooks, store and gate."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from kept_baselines import recorded_once

TESTS = """
    import json, os

    import pytest
    from pytest_decodegate.machine.fingerprint import machine, provenance
    from pytest_decodegate.measure.source import Taken
    from pytest_decodegate.metric import Metric, Replicate
    from pytest_decodegate.profile.ledger import parts

    NAMES = list(dict.fromkeys(part.metric for part in parts(1, 1)))
    QUIET, NOISY = (1.0, 1.001, 0.999, 1.0005, 0.9995), (1.0, 1.2, 0.85, 1.15, 0.9)
    FACTORS, NOISES = (json.loads(os.environ.get(name, "{}")) for name in ("FACTORS", "NOISES"))
    SECONDS = {"marlin_moe[m=1]": 90e-6, "argmax[m=1]": 1e-6}


    class Source:
        level = "gang"

        def __init__(self, name):
            self.name = name
            self.taken = 0

        def take(self, count):
            self.taken += count
            noise = NOISY if self.name in NOISES else QUIET
            factor = FACTORS.get(self.name, FACTORS.get("*", 1.0))
            each = [SECONDS.get(self.name, 9e-6) * factor * noise[n % 5] for n in range(self.taken)]
            return Taken("gang", tuple(Replicate((v, v * 1.0001, v * 0.9999)) for v in each), {"clock": "made up"})


    def here():
        return provenance(machine().part(1), {"torch": "2.11.0"}, {})


    @pytest.mark.perf(metric="{name}")
    @pytest.mark.parametrize("name", NAMES)
    def test_part(perf, name):
        perf.gate(Metric.of(name, "kernel", tolerance=0.05), Source(name), here)
"""

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, kept: Path) -> Run:
    """Runs the parts with factors by metric, "*" for all others, and noise for some; three sessions are recorded."""
    pytester.makepyfile(test_it=TESTS)

    def measured(
        *arguments: str, factors: dict[str, float] | None = None, noisy: tuple[str, ...] = ()
    ) -> pytest.RunResult:
        monkeypatch.setenv("FACTORS", json.dumps(factors or {}))
        monkeypatch.setenv("NOISES", json.dumps(noisy))
        return pytester.runpytest_inprocess("-m", "perf", *arguments)

    def record() -> None:
        for _ in range(3):
            assert measured("--perf-record=all").ret == pytest.ExitCode.OK

    recorded_once(pytester, kept, record)
    return measured


def test_noise_that_cannot_matter_passes_and_says_what_it_could_cost(run: Run) -> None:
    """argmax runs once, a microsecond of two milliseconds; topk sixty times."""
    found = run("-v", noisy=("argmax[m=1]",))
    found.stdout.fnmatch_lines(
        [
            "argmax[[]m=1[]]: PASS: * is not shown to stay inside the band of 5 %, and is not material",
            "note: argmax[[]m=1[]]: not material: at worst +0.0* % of decode_step[[]tp=1,m=1[]], less than*",
        ]
    )
    assert found.ret == pytest.ExitCode.OK
    noisy = run(noisy=("topk[m=1]",))
    assert noisy.ret == pytest.ExitCode.TESTS_FAILED
    noisy.stdout.fnmatch_lines(
        ["topk[[]m=1[]]: INCONCLUSIVE: *", "*of decode_step[[]tp=1,m=1[]]: *% of its time, at worst *"]
    )


def test_the_limit_is_an_ini_option(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nperf_not_material = 0.0001%\n")
    assert run(noisy=("argmax[m=1]",)).ret == pytest.ExitCode.TESTS_FAILED
    pytester.makeini("[pytest]\nperf_not_material = much\n")
    refused = run()
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    refused.stderr.fnmatch_lines(["*ini option perf_not_material: tolerance 'much' is not a percentage*"])


def test_a_percent_on_everything_is_seen_by_what_the_kernels_say_together(run: Run) -> None:
    """Each stays far inside its band of 5 %."""
    found = run(factors={"*": 1.012})
    assert found.ret == pytest.ExitCode.TESTS_FAILED
    found.stdout.fnmatch_lines(["*decode_step[[]tp=1,m=1[]]*+1.2 %*", "answer: NO-GO: *"])
    assert "22 PASS" in found.stdout.str() or "23 PASS" in found.stdout.str()


def test_what_is_slower_stands_in_the_order_of_what_it_costs(run: Run) -> None:
    """argmax is slower by more, and is nothing of a step; the experts are most of it."""
    found = run(factors={"argmax[m=1]": 1.5, "marlin_moe[m=1]": 1.2})
    rows = [line.split()[0] for line in found.stdout.lines if line.startswith("  ") and " step +" in line]
    assert rows.index("marlin_moe[m=1]") < rows.index("argmax[m=1]")
