"""Results of perf tests, for the tests of what is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_decodegate.gate.verdict import Judgement, Verdict
from pytest_decodegate.metric import Metric
from pytest_decodegate.report.result import Result


def result(verdict: Verdict, recorded: Path | None = None, **more: Any) -> Result:
    metric = Metric.of("allreduce[world=8]", "collective")
    judgement = Judgement(metric, verdict, "gang", 5, 78e-6, **more)
    return Result("perf_tests/test_allreduce.py::test", judgement, recorded)
