import importlib.metadata
import json
from pathlib import Path

import pytest

from pytest_decodegate.errors import BadInput
from pytest_decodegate.measure.sweep import MOST_STREAMS
from pytest_decodegate.serving import fixed_plugin
from pytest_decodegate.serving.fixed_plugin import FORMAT
from pytest_decodegate.serving.models import (
    LocalModel,
    slice_depths,
    slice_layers,
    write_rank_slice,
    write_tiny_model,
)
from pytest_decodegate.workloads.kimi import KIMI_K25


@pytest.fixture(params=["tiny", "slice"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> LocalModel:
    if request.param == "tiny":
        return write_tiny_model(tmp_path / "new" / "tiny")

    return write_rank_slice(tmp_path / "slice", world_size=1, layers=2)


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_each_rank_of_a_slice_holds_what_a_rank_of_eight_holds(tmp_path: Path, ranks: int) -> None:
    model = write_rank_slice(tmp_path, world_size=ranks, layers=4)
    config = json.loads((tmp_path / "config.json").read_text())
    per_rank = {
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "moe_intermediate_size": 256,
        "intermediate_size": 2304,
        "vocab_size": 20480,
    }
    assert {name: config[name] / ranks for name in per_rank} == per_rank
    assert (config["num_hidden_layers"], config["hidden_size"]) == (4, 7168)
    assert model.vocabulary == config["vocab_size"]


def test_a_slice_at_eight_is_the_model_itself(tmp_path: Path) -> None:
    write_rank_slice(tmp_path, world_size=8, layers=KIMI_K25.layers)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["num_attention_heads"] == KIMI_K25.heads
    assert config["moe_intermediate_size"] == KIMI_K25.expert_intermediate
    assert config["intermediate_size"] == KIMI_K25.dense_intermediate
    assert config["vocab_size"] == KIMI_K25.vocabulary


def test_only_routed_experts_are_int4(tmp_path: Path) -> None:
    write_rank_slice(tmp_path, world_size=1, layers=2)
    quantization = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    weights = quantization["config_groups"]["group_0"]["weights"]
    assert (weights["num_bits"], weights["group_size"], weights["symmetric"]) == (4, 32, True)
    assert "lm_head" in quantization["ignore"]


def test_slices_on_several_gpus_keep_the_allreduce_in_nccl(tmp_path: Path) -> None:
    one, two = (write_rank_slice(tmp_path, world_size=n, layers=2) for n in (1, 2))
    assert "--tensor-parallel-size" not in one.arguments
    assert all(json.loads(model.arguments[-1])["cudagraph_capture_sizes"][-1] == MOST_STREAMS for model in (one, two))
    assert two.arguments[two.arguments.index("--tensor-parallel-size") + 1] == "2"
    assert json.loads(two.arguments[-1])["pass_config"] == {"fuse_allreduce_rms": False}


def test_a_slice_brings_the_plugin_that_fills_its_weights_and_takes_routing_from_nobody(tmp_path: Path) -> None:
    model = write_rank_slice(tmp_path, world_size=1, layers=2)
    assert model.plugins == tmp_path / "vllm_plugins"
    assert (model.plugins / f"{FORMAT}.py").read_text() == Path(str(fixed_plugin.__file__)).read_text()
    found = importlib.metadata.distributions(path=[str(model.plugins)])
    assert [entry.value for one in found for entry in one.entry_points] == [f"{FORMAT}:register"]
    assert model.arguments[:2] == ("--load-format", FORMAT)
    given = {"PYTHONPATH": "/theirs", "VLLM_PLUGINS": "lora", "VLLM_MOE_ROUTING_SIMULATION_STRATEGY": "uniform_random"}
    variables = model.variables(given)
    assert variables["PYTHONPATH"] == f"{model.plugins}:/theirs"
    assert variables["VLLM_PLUGINS"] == f"lora,{FORMAT}"
    assert variables["VLLM_MOE_ROUTING_SIMULATION_STRATEGY"] == ""
    write_rank_slice(tmp_path, world_size=1, layers=2)  # into the same folder, as it is no stranger's
    assert write_tiny_model(tmp_path / "tiny").variables(given).keys() & {"PYTHONPATH", "VLLM_PLUGINS"} == set()


@pytest.mark.parametrize(("ranks", "layers"), [(1, 1), (1, 62), (0, 4), (-1, 4)])
def test_impossible_slices_are_refused(tmp_path: Path, ranks: int, layers: int) -> None:
    with pytest.raises(BadInput, match="rank-slice"):
        write_rank_slice(tmp_path / "x", world_size=ranks, layers=layers)

    assert not (tmp_path / "x").exists()


def test_another_models_folder_is_not_overwritten(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_text("weights")
    with pytest.raises(BadInput, match=r"holds 'model.safetensors', so it is another model's"):
        write_rank_slice(tmp_path, world_size=1, layers=2)

    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match=f"model folder '{tmp_path / name}' cannot be written: (File exists|Not a dir)"):
        write_rank_slice(tmp_path / name, world_size=1, layers=2)


def test_every_id_becomes_text(model: LocalModel) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="the tokenizers package is not in this environment")
    tokenizer = tokenizers.Tokenizer.from_file(str(model.folder / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == model.vocabulary
    assert all(tokenizer.decode([index]).strip() for index in range(model.vocabulary))
    assert tokenizer.decode(tokenizer.encode("Hello").ids) == "Hello"


def test_no_generation_config_changes_the_sampling(model: LocalModel) -> None:
    files = {file.name for file in model.folder.iterdir() if file != model.plugins}
    assert files == {"config.json", "tokenizer.json", "tokenizer_config.json"}


@pytest.mark.parametrize(("memory_gib", "layers"), [(141, 61), (96, 61), (80, 52), (24, 12), (8, 2), (0, 2)])
def test_the_slice_takes_the_layers_that_a_gpu_holds(memory_gib: int, layers: int) -> None:
    assert slice_layers(memory_gib) == layers


@pytest.mark.parametrize(("memory_gib", "layers"), [(141, 42), (96, 26), (48, 9), (0, 2)])
def test_two_slices_share_a_gpu(memory_gib: int, layers: int, tmp_path: Path) -> None:
    """Weights, cache and what is fixed of both fit, and each finds at its start what it says it may take."""
    assert slice_layers(memory_gib, servers=2) == layers
    model = write_rank_slice(tmp_path, world_size=1, layers=layers, servers=2)
    place = model.arguments.index("--gpu-memory-utilization")
    assert model.arguments[place : place + 4] == (
        "--gpu-memory-utilization",
        "0.4",
        "--kv-cache-memory-bytes",
        str(4 * 2**30),
    )
    assert "--gpu-memory-utilization 0.4" in str(model.facts["arguments"])


@pytest.mark.parametrize(("memory_gib", "depths"), [(141, (24, 48)), (48, (14, 29)), (24, (6, 12)), (0, (2, 2))])
def test_the_depths_to_extrapolate_from(memory_gib: int, depths: tuple[int, int]) -> None:
    assert slice_depths(memory_gib) == depths
