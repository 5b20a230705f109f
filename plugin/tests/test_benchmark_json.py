"""Baselines as other tools read them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.stats import Stats
from stored import sealed

from pytest_decodegate.baseline.benchmark_json import dumps
from pytest_decodegate.baseline.condensed import rounded
from pytest_decodegate.baseline.reader import parse
from pytest_decodegate.baseline.schema import Baseline, Session, StoredMetric
from pytest_decodegate.errors import BadInput
from pytest_decodegate.machine.provenance import Provenance
from pytest_decodegate.metric import Json, Metric, Replicate

MOE = Metric("marlin_moe[m=8]", "s", "kernel", 0.02, {"clock": "cuda_event"})
TPOT = Metric("decode[c=8]", "tok/s", "serving", 0.03)
GPUS: list[Json] = [{"name": "H200", "power_limit_w": 700}]


def baseline(moe_us: float, tokens_per_second: float) -> Baseline:
    """Three processes of four samples that scatter by 1 % around the given values."""

    def stored(metric: Metric, value: float) -> StoredMetric:
        replicates = tuple(Replicate(tuple(value * (1 + i / 300 + j / 500) for j in range(4))) for i in range(3))
        return StoredMetric(metric, (Session("s1", "2026-01-01T12:00:00+00:00", "gang", replicates),))

    metrics = {MOE.name: stored(MOE, moe_us * 1e-6), TPOT.name: stored(TPOT, tokens_per_second)}
    provenance = Provenance({"gpus": GPUS, "cpu": "EPYC"}, {"nccl": "2.28.9"}, {})
    return Baseline(Path("b.json"), "H200-x2", "vllm", provenance, metrics)


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(some: Baseline) -> Any:
    return json.loads(dumps(some), parse_constant=pytest.fail)


def test_stats_are_what_pytest_benchmark_computes(outside: Path) -> None:
    some = baseline(78.1, 82.4)
    moe, tpot = written(some)["benchmarks"]

    stats = Stats()
    for sample in some.metrics[MOE.name].sessions[0].samples:
        stats.update(sample)

    assert moe["stats"] == rounded({**stats.as_dict(), "iterations": 1})
    assert moe["stats"]["rounds"] == 12
    assert tpot["stats"]["max"] == pytest.approx(1 / 82.4, rel=1e-5)
    assert tpot["extra_info"]["values"][0] == pytest.approx(82.4 * 1.003, rel=1e-6)


def test_the_rest_is_what_readers_ask_for(outside: Path) -> None:
    document = written(baseline(78.1, 82.4))
    moe = document["benchmarks"][0]

    assert (moe["name"], moe["fullname"], moe["group"]) == (MOE.name, MOE.name, "kernel")
    assert document["decodegate"]["metrics"][MOE.name]["contract"] == {"clock": "cuda_event"}
    assert document["commit_info"]["id"] == "unversioned"
    assert document["machine_info"]["gpus"] == GPUS
    assert document["machine_info"]["cpu"] == {"brand_raw": "EPYC"}
    assert document["datetime"] == "2026-01-01T12:00:00+00:00"


def test_machine_info_stays_the_same(outside: Path) -> None:
    assert written(baseline(1.0, 1.0))["machine_info"] == written(baseline(2.0, 3.0))["machine_info"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()])
def test_what_is_no_json_is_not_written(outside: Path, value: Any) -> None:
    some = baseline(78.1, 82.4)

    with pytest.raises(BadInput, match=r"b\.json: something to record is no JSON value"):
        dumps(replace(some, provenance=replace(some.provenance, stack={"nccl": value})))


def test_pytest_benchmark_compare_shows_a_slowdown_as_a_slowdown(outside: Path) -> None:
    (outside / "0001_old.json").write_bytes(dumps(baseline(78.1, 82.4)))
    (outside / "0002_new.json").write_bytes(dumps(baseline(78.1 * 1.05, 82.4 / 1.05)))

    command = [sys.executable, "-m", "pytest_benchmark", "compare", "0001_old.json", "0002_new.json"]
    done = subprocess.run(
        [*command, "--columns=median", "--sort=fullname"], capture_output=True, text=True, cwd=outside, check=False
    )

    assert done.returncode == 0, done.stderr
    # "decode[c=8] (0001_old)   12,136.8932 (1.0)": the parenthesis is the ratio to the best of the group.
    ratios = dict(re.findall(r"^(\S+ \(000\d_\w+\)).*\((\d+\.\d+)\)", done.stdout, re.MULTILINE))
    assert ratios == {
        "marlin_moe[m=8] (0001_old)": "1.0",
        "marlin_moe[m=8] (0002_new)": "1.05",
        "decode[c=8] (0001_old)": "1.0",
        "decode[c=8] (0002_new)": "1.05",
    }


def test_an_edit_keeps_the_python_that_recorded_it(outside: Path) -> None:
    some = baseline(78.1, 82.4)
    recorded = written(replace(some, provenance=replace(some.provenance, stack={"python": "3.12.3"})))
    assert recorded["machine_info"]["python_version"] == "3.12.3"

    recorded["machine_info"] |= {"python_version": "3.12.9", "machine": "aarch64", "others": {"key": 1}}
    info = written(parse(Path("b.json"), sealed(recorded)))["machine_info"]
    assert (info["python_version"], info["machine"]) == ("3.12.9", "aarch64")
    assert info["system"] == recorded["machine_info"]["system"]
