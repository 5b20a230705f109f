"""`decodegate ledger` on stored metrics: the table, the what-ifs, and what it refuses."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest
import traces
from stored import baseline, stored, write

from pytest_decodegate.cli import main
from pytest_decodegate.metric import Metric
from pytest_decodegate.profile import documents
from pytest_decodegate.profile.ledger import parts
from pytest_decodegate.profile.measured import time_of

PROFILES = Path(__file__).parent / "data" / "profiles"
US = 1e-6
EQUAL = (1.0, 1.0)


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    """Every part of a step of one token on one rank at 2 us, AllReduces at 7 and 4, and a TPOT."""
    metrics = {part.metric: 2 * US for part in parts(2, 1)}
    metrics["allreduce_pynccl_graph[world=2]"] = 7 * US
    metrics["allreduce_custom_graph[world=2]"] = 4 * US
    metrics["tpot[c=1]"] = 6e-3
    kept = (stored(Metric.of(name, "kernel"), value, factors=EQUAL) for name, value in metrics.items())
    return write(tmp_path, baseline(*kept))


def run(*arguments: str) -> int:
    return main(["ledger", *arguments])


def test_the_step_is_added_up_beside_the_measured_one(kernels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(kernels)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "decode step of 1 token(s) on 1 rank(s), context 1024"
    assert any(line.split()[:5] == ["add_rms_norm[m=1]", "norm/activation", "123", "2.00", "0.246"] for line in lines)
    (tpot,) = (line for line in lines if line.startswith("measured TPOT 6.000 ms"))
    (step,) = (line for line in lines if line.startswith("predicted step "))
    assert float(step.split()[2]) + float(tpot.split()[4]) == pytest.approx(6.0, abs=2e-3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "allreduce_pynccl_graph[world=2]:60=alltoall@19us",
            "60 allreduce_pynccl_graph[world=2] of 7 us become 60 alltoall of 19 us: costs 0.72 ms, 12%; predicted",
        ),
        ("allreduce_pynccl_graph[world=2]=allreduce_custom_graph[world=2]", "saves 0.37 ms, 6%; predicted"),
        ("allreduce_pynccl_graph[world=2]=5us", "saves 0.25 ms, 4%; predicted"),
        (
            "silu_mul_shared[m=1]=1us",
            "61 silu_mul_shared[m=1] of 2 us become 61 silu_mul_shared[m=1] of 1 us: saves 0.06 ms, 1%; predicted",
        ),
        ("no:allreduce", "no AllReduce: saves 0.86 ms, 14%; predicted"),
        ("ranks=1", "1 ranks: saves 0.86 ms, 14%; predicted"),
    ],
)
def test_what_would_change_the_step_is_predicted(
    kernels: Path, capsys: pytest.CaptureFixture[str], change: str, said: str
) -> None:
    assert run(str(kernels), "--ranks", "2", "--what-if", change) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(said)


def test_a_step_that_is_not_whole_says_so_and_fails(kernels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(kernels), "--ranks", "4") == 1
    assert "NOT WHOLE: nothing measured allreduce_pynccl_graph[world=4], logits_gather[m=1,world=4]" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--streams", "8"],
            "no metric of a step of 8 token(s) is stored there; the first that it needs is embedding[m=8]",
        ),
        (["--what-if", "faster please"], "--what-if 'faster please' is not understood: write METRIC:COUNT=NAME@19us"),
        (["--what-if", "no:luck"], "no category 'luck'; one of allreduce,"),
        (["--what-if", "topk[m=1]=topk[m=2]"], "no file holds 'topk[m=2]'"),
        (["--what-if", "mlp[m=1]=3us"], "the step has no 'mlp[m=1]'; it has embedding[m=1]"),
        (["--what-if", "speculative:3,70%,900us"], "no file holds embedding[m=4], add_rms_norm[m=4]"),
    ],
)
def test_what_cannot_be_predicted_is_refused(
    kernels: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert run(str(kernels), *arguments) != 0
    assert said in capsys.readouterr().err


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a real step of eight layers on two ranks, one token."""
    file = tmp_path_factory.mktemp("profile") / "step.json"
    assert main(["profile", *map(str, traces.SLICE), "--layers", "8", "--json", str(file)]) == 0
    return file


def test_what_the_step_holds_beyond_the_sum_is_named(
    kernels: Path, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(str(kernels), "--ranks", "2", "--layers", "8", "--profile", str(profile)) == 0
    lines = capsys.readouterr().out.splitlines()
    named = lines[lines.index(f"as {profile} has the step:") + 2 : -1]
    beyond = {line[:23].strip(): float(line[23:].split()[0]) for line in named}
    # 17 AllReduces of 7.01 us for 7, 14 Marlin launches of 11.79 us for seven marlin_moe of 2 us.
    assert beyond["AllReduce"] == pytest.approx(0.0, abs=1e-3)
    assert beyond["MoE GEMM"] == pytest.approx(0.165 - 7 * 0.002, abs=1e-3)
    assert beyond["gaps"] == pytest.approx(2.296, abs=1e-3)
    (predicted,) = (float(line.split()[2]) for line in lines if line.startswith("predicted step "))
    assert lines[-1] == "profiled step 5.336 ms"
    assert predicted + sum(beyond.values()) == pytest.approx(5.336, abs=0.01)


@pytest.mark.parametrize(
    ("tpot_ms", "gaps", "profiled", "unnamed"),
    [
        (5.0, "+1.960", "5.336 ms, in which the profiler makes gaps longer by 0.336 ms", "+0.000 ms (+0.0% of TPOT)"),
        (6.0, "+2.296", "5.336 ms", "+0.664 ms (+11.1% of TPOT)"),
        (3.0, "", "5.336 ms, in which the profiler makes gaps longer by 2.296 ms", "-0.040 ms (-1.3% of TPOT)"),
    ],
)
def test_what_tpot_holds_beyond_all_names_is_said(
    tmp_path: Path,
    profile: Path,
    capsys: pytest.CaptureFixture[str],
    tpot_ms: float,
    gaps: str,
    profiled: str,
    unnamed: str,
) -> None:
    """Kernels take 3.04 ms of the profiled step. TPOT is that of eight layers, not of 61."""
    metrics = {part.metric: 2 * US for part in parts(2, 1)} | {"tpot[c=1,layers=8]": tpot_ms / 1e3, "tpot[c=1]": 1.0}
    kept = (stored(Metric.of(name, "kernel"), value, factors=EQUAL) for name, value in metrics.items())
    file = write(tmp_path, baseline(*kept))
    assert run(str(file), "--ranks", "2", "--layers", "8", "--profile", str(profile)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith(f"measured TPOT {tpot_ms:.3f} ms") for line in lines)
    assert [line.split()[1] for line in lines if line.startswith("gaps ")] == ([gaps] if gaps else [])
    assert lines[-2:] == [f"profiled step {profiled}", f"without a name: {unnamed}"]


def test_what_tokens_wait_for_prompts_of_other_streams_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As stored: the median time between tokens is a step that serves no prompt."""
    rows = [stored(Metric.of(part.metric, "kernel"), 2 * US, factors=EQUAL) for part in parts(1, 8)]
    tpot = stored(Metric.of("tpot[c=8,layers=42]", "serving"), 8e-3, factors=EQUAL)
    (session,) = tpot.sessions
    known = replace(session, telemetry={"medians": {"itl_s": {"p50": 6.8e-3}}})
    file = write(tmp_path, baseline(*rows, replace(tpot, sessions=(known,))))
    step = str(PROFILES / "h200_42_layers_8.json")
    assert run(str(file), "--layers", "42", "--streams", "8", "--profile", step) == 0
    assert any(line.split()[:5] == ["prefills", "of", "other", "streams", "+1.200"] for line in told(capsys))


@pytest.mark.parametrize(
    ("streams", "measured", "prefills"),
    [(1, ("--tpot", "4.40ms", "--itl", "4.415ms"), 0.0), (8, ("--tpot", "7.48ms", "--itl", "6.69ms"), 0.79)],
)
def test_tpot_on_an_h200_is_explained_by_name(
    capsys: pytest.CaptureFixture[str], streams: int, measured: tuple[str, ...], prefills: float
) -> None:
    """Kernels, TPOT of a rank-slice of 42 layers and a profile of it, all of one card within half an hour."""
    files = sorted(map(str, (Path(__file__).parents[2] / "baselines" / "NVIDIA-H200-x1").glob("000[34]_*.json")))
    step = str(PROFILES / f"h200_42_layers_{streams}.json")
    assert run(*files, "--layers", "42", "--streams", str(streams), *measured, "--profile", step) == 0
    lines = told(capsys)
    assert lines[-1].startswith("without a name: ")
    assert abs(float(lines[-1].split("(")[1].split("%")[0])) < 5
    waited = [float(line.split()[4]) for line in lines if line.startswith("prefills of other streams")]
    assert sum(waited) == pytest.approx(prefills)
    (experts,) = (float(line.split()[3].rstrip("%")) for line in lines if line.startswith("MoE GEMM"))
    assert abs(experts) < 3, "Marlin takes as long in a server as its metric says"


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tpot", "4.4"], "'4.4' is no time above zero in milliseconds; write for example '4.41ms'"),
        (["--tpot", "0ms"], "'0ms' is no time above zero"),
        (["--itl", "4ms"], "--itl 4ms: what is between tokens is part of a TPOT; give --tpot, too"),
    ],
)
def test_a_tpot_that_cannot_be_is_refused(
    kernels: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    with contextlib.suppress(SystemExit):
        assert run(str(kernels), *arguments) != 0

    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--ranks", "2"], "17 AllReduces a step, and 61 layers need 123"),
        (["--ranks", "1", "--layers", "8"], "is of 1 token(s) a step on 2 rank(s), and the ledger of 1 on 1"),
        (["--ranks", "4", "--layers", "8"], "is of 1 token(s) a step on 2 rank(s), and the ledger of 1 on 4"),
    ],
)
def test_a_profile_of_another_step_is_refused(
    kernels: Path, profile: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert run(str(kernels), *arguments, "--profile", str(profile)) != 0
    assert said in capsys.readouterr().err


def test_a_speculative_or_partial_profile_is_no_step_of_that_ledger(
    kernels: Path, profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = documents.read(profile)
    for changed, said in (
        (replace(whole, streams=1, tokens=4), "is of 4 token(s) a step on 2 rank(s), and the ledger of 1 on 2"),
        (replace(whole, missing=(2,)), "is partial, without rank(s) 2"),
    ):
        file = tmp_path / "other.json"
        documents.write(file, documents.dumps(changed))
        assert run(str(kernels), "--ranks", "2", "--layers", "8", "--profile", str(file)) != 0
        out, err = capsys.readouterr()
        assert said in err
        assert out == "", "nothing is shown beside what is refused"


def test_a_profile_beside_half_a_sum_is_refused(
    tmp_path: Path, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, baseline(stored(Metric.of("topk[m=1]", "kernel"), US, factors=EQUAL)))
    assert run(str(file), "--ranks", "2", "--layers", "8", "--profile", str(profile)) != 0
    assert f"--profile {profile}: no file holds embedding[m=1]" in capsys.readouterr().err


def test_the_error_is_of_sessions_where_there_are_several() -> None:
    one = time_of([[1.0, 1.1, 0.9]])
    two = time_of([[1.0, 1.1, 0.9], [1.2, 1.3, 1.1]])
    assert two.seconds > one.seconds
    assert two.error > one.error > 0
    assert time_of([[2.0]]).error == 0.0
