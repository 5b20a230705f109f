"""Weights that are the same at every start: how they are drawn, and what routers make of them.

A real server that has them, the same architecture cut small, is in test_real_servers.py; a GPU says more.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import pytest
import wheels
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.serving import fixed_plugin
from pytest_decodegate.serving.fixed_plugin import HEARD, INT4_RMS, PERIOD, Words, fix

torch = pytest.importorskip("torch", reason="weights are tensors")

EXPERTS, TOP_K, HIDDEN, INNER, VOCABULARY = 32, 4, 512, 64, 640
RESERVED = 4 * EXPERTS


def holder(kind: str = "Linear", **weights: Any) -> Any:
    """A module of class `kind` with these tensors as parameters."""
    module = type(kind, (torch.nn.Module,), {})()
    for name, weight in weights.items():
        module.register_parameter(name, torch.nn.Parameter(weight, requires_grad=False))

    return module


def empty(*shape: int, dtype: Any = torch.bfloat16) -> Any:
    """What nobody has filled: its numbers are wild."""
    return torch.full(shape, 77, dtype=dtype)


def model(layers: int = 3, *, transposed: bool = False, tp_size: int = 1) -> Any:
    """A model with the parameters of the rank-slice, by their names, small; experts packed, as vLLM keeps them."""
    found = torch.nn.Module()
    found.embed_tokens = holder("VocabParallelEmbedding", weight=empty(VOCABULARY, HIDDEN))
    found.lm_head = holder("VocabParallelEmbedding", weight=empty(VOCABULARY, HIDDEN))
    found.layers = torch.nn.ModuleList(layer(transposed=transposed, tp_size=tp_size) for _ in range(layers))
    return found


def layer(*, transposed: bool, tp_size: int) -> Any:
    found, attention = torch.nn.Module(), torch.nn.Module()
    attention.fused_qkv_a_proj = holder("ColumnParallelLinear", weight=empty(96, HIDDEN))
    attention.fused_qkv_a_proj.tp_size = 1
    attention.o_proj = holder("RowParallelLinear", weight=empty(HIDDEN, INNER))
    attention.o_proj.tp_size = tp_size
    attention.attn = holder("MLAAttention", k_scale=torch.tensor(77.0))
    found.self_attn = attention
    found.norm = holder(weight=empty(HIDDEN))
    found.gate = holder(weight=empty(EXPERTS, HIDDEN), e_score_correction_bias=empty(EXPERTS, dtype=torch.float32))
    found.experts = holder("RoutedExperts", **packed("w13", 2 * INNER, HIDDEN), **packed("w2", HIDDEN, INNER))
    if transposed:
        for name, weight in list(found.experts.named_parameters()):
            if not name.endswith("_shape"):
                turned = torch.nn.Parameter(weight.data.transpose(1, 2).contiguous(), requires_grad=False)
                turned.is_transposed = True
                setattr(found.experts, name, turned)

    return found


def packed(name: str, out: int, inputs: int) -> dict[str, Any]:
    return {
        f"{name}_weight_packed": empty(EXPERTS, out, inputs // 8, dtype=torch.int32),
        f"{name}_weight_scale": empty(EXPERTS, out, inputs // 32),
        f"{name}_weight_shape": empty(EXPERTS, 2),
    }


def fixed(**options: Any) -> Any:
    found = model(**options)
    fix(found, TOP_K)
    return found


@pytest.fixture(scope="module")
def three_layers() -> Any:
    """For tests that only read them: a layer takes a fifth of a second."""
    return fixed()


@pytest.fixture(scope="module")
def twelve_layers() -> Any:
    return fixed(layers=12)


def weights(found: Any) -> dict[str, Any]:
    return dict(found.named_parameters())


def test_weights_are_functions_of_their_names_alone(three_layers: Any) -> None:
    """A shallower model has the same ones, and they are the words of SHAKE-256, whatever torch is here."""
    deep, shallow = weights(three_layers), weights(fixed(layers=1))
    assert all(torch.equal(weight, deep[name]) for name, weight in shallow.items())

    name = "layers.0.experts.w13_weight_packed"
    start = struct.unpack(">Q", hashlib.shake_256(name.encode()).digest(8))[0] % PERIOD
    drawn = hashlib.shake_256(b"decodegate").digest(4 * PERIOD)
    words = struct.unpack_from("<100i", drawn, 4 * start)
    assert deep[name].flatten()[:100].tolist() == list(words)


def test_words_are_drawn_once_for_all_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing them takes a tenth of a second, and 61 layers have 1333 weights."""
    drawn = []
    monkeypatch.setattr(
        fixed_plugin,
        "Words",
        lambda device: drawn.append(device) or Words(device),  # type: ignore[func-returns-value]
    )
    fix(model(), TOP_K)
    assert len(drawn) == 1


def test_no_two_layers_have_the_same_weights(three_layers: Any) -> None:
    found = weights(three_layers)
    for name in ("self_attn.o_proj.weight", "experts.w13_weight_packed", "gate.weight"):
        assert not torch.equal(found[f"layers.0.{name}"], found[f"layers.1.{name}"])


def test_modules_that_a_version_puts_in_between_change_nothing() -> None:
    """Versions keep experts at mlp.experts or mlp.experts.routed_experts, and wrap attention."""
    inner, outer = model(1), model(1)
    for each in outer.layers:
        each.mlp = torch.nn.Module()
        each.mlp.experts = torch.nn.Module()
        each.mlp.experts.routed_experts = each.experts
        each.mlp.gate = each.gate
        del each.experts, each.gate

    fix(inner, TOP_K)
    fix(outer, TOP_K)
    assert torch.equal(inner.layers[0].gate.weight, outer.layers[0].mlp.gate.weight)
    assert torch.equal(
        inner.layers[0].experts.w2_weight_packed, outer.layers[0].mlp.experts.routed_experts.w2_weight_packed
    )


def test_layouts_of_versions_hold_the_same_weights(three_layers: Any) -> None:
    natural, turned = three_layers.layers[2].experts, fixed(transposed=True).layers[2].experts
    for name, weight in natural.named_parameters():
        if not name.endswith("_shape"):
            assert torch.equal(weight, turned.get_parameter(name).transpose(1, 2))


def test_every_parameter_is_filled_to_its_size_and_what_is_no_weight_is_left(three_layers: Any) -> None:
    found = weights(three_layers)
    for name, weight in found.items():
        assert (weight == 77).all() == name.endswith(("_shape", "k_scale")), name

    assert (found["layers.0.norm.weight"] == 1).all()
    assert (found["layers.0.gate.e_score_correction_bias"] == 0).all()
    assert found["layers.0.self_attn.fused_qkv_a_proj.weight"].float().std() == pytest.approx(HIDDEN**-0.5, rel=0.05)
    assert found["embed_tokens.weight"][:, RESERVED:].float().std() == pytest.approx(1, rel=0.02)


def unpacked(experts: Any, name: str) -> Any:
    """Experts as floats [experts, out, in], from words of eight numbers of four bits and the scales of 32."""
    words, scales = (experts.get_parameter(f"{name}_weight_{kind}") for kind in ("packed", "scale"))
    nibbles = torch.stack([(words >> shift) & 15 for shift in range(0, 32, 4)], dim=-1).flatten(-2)
    return (nibbles - 8).float() * scales.float().repeat_interleave(32, dim=-1)


def test_packed_experts_are_as_large_as_other_weights(three_layers: Any) -> None:
    experts = three_layers.layers[0].experts
    assert unpacked(experts, "w13").square().mean().sqrt() == pytest.approx(HIDDEN**-0.5, rel=0.1)
    assert pytest.approx(INT4_RMS) == (sum(value**2 for value in range(-8, 8)) / 16) ** 0.5


def test_no_layer_writes_where_the_marks_are(three_layers: Any) -> None:
    for each in three_layers.layers:
        for written in (each.self_attn.o_proj.weight, *unpacked(each.experts, "w2")):
            assert (written[:RESERVED] == 0).all()
            assert (written[RESERVED:] != 0).float().mean() > 0.9


def hidden(found: Any, tokens: list[int], seed: int, written: float) -> Any:
    """The normed hidden states of `tokens`, of which layers have written `written` rms where they may."""
    state = found.embed_tokens.weight[tokens].float()
    noise = torch.randn(state[:, RESERVED:].shape, generator=torch.Generator().manual_seed(seed))
    state[:, RESERVED:] += written * noise
    return (state * state.square().mean(-1, keepdim=True).rsqrt()).bfloat16()


TOKENS = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40)


@given(tokens=TOKENS, seed=st.integers(0, 9), written=st.floats(0, 3))
def test_a_token_has_the_same_experts_one_of_each_group_whatever_layers_wrote(
    three_layers: Any, tokens: list[int], seed: int, written: float
) -> None:
    for each in three_layers.layers:
        first, second = (
            (hidden(three_layers, tokens, seed, amount) @ each.gate.weight.T).topk(TOP_K).indices.sort().values
            for amount in (0.0, written)
        )
        assert torch.equal(first, second)
        listeners = (each.gate.weight == HEARD).nonzero()  # expert, and the place that it reads
        groups = {int(expert): int(place) % EXPERTS // (EXPERTS // TOP_K) for expert, place in listeners}
        assert all(len({groups[expert] for expert in row}) == TOP_K for row in first.tolist())


@pytest.mark.parametrize("tokens", [1, 8, 32])
def test_experts_are_hit_as_evenly_as_if_each_token_drew_its_own(twelve_layers: Any, tokens: int) -> None:
    draw = torch.Generator().manual_seed(tokens)
    hits = []
    for each in twelve_layers.layers:
        for _ in range(20):
            batch = torch.randint(VOCABULARY, (tokens,), generator=draw).tolist()
            chosen = (hidden(twelve_layers, batch, 0, 1.0) @ each.gate.weight.T).topk(TOP_K).indices
            hits.append(chosen.unique().numel())

    expected = EXPERTS * (1 - (1 - TOP_K / EXPERTS) ** tokens)
    assert sum(hits) / len(hits) == pytest.approx(expected, rel=0.03)


def test_ranks_share_what_is_replicated_and_nothing_else() -> None:
    first, second = model(1, tp_size=2), model(1, tp_size=2)
    for rank, found in enumerate((first, second)):
        fix(found, TOP_K, rank, 2)

    same = {name for name, weight in weights(first).items() if torch.equal(weight, weights(second)[name])}
    assert {name for name in same if not name.endswith(("_shape", "k_scale"))} == {
        "layers.0.self_attn.fused_qkv_a_proj.weight",
        "layers.0.norm.weight",
        "layers.0.gate.weight",
        "layers.0.gate.e_score_correction_bias",
    }


@pytest.mark.parametrize("top_k", [3, 5])
def test_experts_that_do_not_divide_are_refused(top_k: int) -> None:
    with pytest.raises(ValueError, match=rf"32 experts, {top_k} of them for a token: no marks"):
        fix(model(1), top_k)


@pytest.mark.parametrize("version", [*wheels.VERSIONS, wheels.INSTALLED])
def test_vllm_is_extended_where_we_think(version: str) -> None:
    loaders = "vllm/model_executor/model_loader"
    register = wheels.signature(wheels.source(version, f"{loaders}/__init__.py"), "register_model_loader")
    assert list(register.parameters) == ["load_format"]
    dummy = wheels.source(version, f"{loaders}/dummy_loader.py")
    assert "class DummyModelLoader(BaseModelLoader):" in dummy
    assert "def load_weights(self, model: nn.Module, model_config: ModelConfig) -> None:" in dummy
    assert "self.load_weights(model, model_config)" in wheels.source(version, f"{loaders}/base_loader.py")
    linear = wheels.source(version, "vllm/model_executor/layers/linear.py")
    assert all(f"class {name}(" in linear for name in ("ColumnParallelLinear", "RowParallelLinear"))
