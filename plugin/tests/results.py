"""Results of perf tests, for the tests of what is reported."""

from __future__ import annotations

from pathlib import Path

from pytest_decodegate.cause import Finding
from pytest_decodegate.gate.result import Result
from pytest_decodegate.gate.verdict import Basis, Judgement, Numbers, Verdict
from pytest_decodegate.metric import Metric

MEASURED = Numbers(78e-6)


def result(
    verdict: Verdict, recorded: Path | None = None, numbers: Numbers = MEASURED, reasons: tuple[Finding, ...] = ()
) -> Result:
    metric = Metric.of("allreduce[world=8]", "collective")
    judgement = Judgement(metric, verdict, Basis("gang", 5, sessions=5), numbers, reasons)
    return Result("perf_tests/test_allreduce.py::test", judgement, recorded)
