"""What the tests of the store record: one metric of one stack."""

from __future__ import annotations

from pytest_decodegate.machine.provenance import Provenance
from pytest_decodegate.metric import Measurement, Metric, Replicate

H200 = "NVIDIA-H200-x2-NVLink"
GEMM = Metric("gemm", "s", "kernel", 0.02, {"clock": "cuda_event"})
OLD = Provenance({"gpus": ["H200", "H200"]}, {"nccl": "2.28.3", "torch": "2.11"}, {"temperature_c": 40})


def measured(metric: Metric = GEMM, value: float = 1e-5) -> Measurement:
    return Measurement(metric, (Replicate((value, value * 1.01)), Replicate((value * 1.02,))), "process")
