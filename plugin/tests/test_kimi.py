"""The dims against the published ledger of the decode step: geometry, bytes, floors and counts by shard."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.errors import BadInput
from pytest_decodegate.workloads.kimi import KIMI_K25

DEGREES = (1, 2, 4, 8)
REPLICATED = ("fused_qkv_a", "router_gate")
BYTES_S = 1.792e12  # nominal, of the table's GPU

degrees = st.sampled_from([1, 2, 4, 8, 16, 32, 64])
tokens_up_to_500 = st.integers(1, 500)


@pytest.mark.parametrize(
    ("tensor_parallel", "w13", "w2", "heads", "vocabulary"),
    [
        (1, 16_515_072, 8_257_536, 64, 163_840),
        (2, 8_257_536, 4_128_768, 32, 81_920),
        (4, 4_128_768, 2_064_384, 16, 40_960),
        (8, 2_064_384, 1_032_192, 8, 20_480),
    ],
)
def test_shard_matches_the_published_geometry(
    tensor_parallel: int, w13: int, w2: int, heads: int, vocabulary: int
) -> None:
    shard = KIMI_K25.shard(tensor_parallel)
    assert (shard.w13_bytes, shard.w2_bytes, shard.expert_bytes) == (w13, w2, w13 + w2)
    assert (shard.heads, shard.vocabulary, shard.logits_bytes) == (heads, vocabulary, 2 * vocabulary)
    assert shard.expert_intermediate == shard.shared_intermediate == 2048 // tensor_parallel


@pytest.mark.parametrize(
    ("op", "shape"),
    [
        ("fused_qkv_a", (1, 7168, 2112)),
        ("q_b", (1, 1536, 1536)),
        ("w_uk", (8, 128, 512)),
        ("w_uv", (8, 512, 128)),
        ("o_proj", (1, 1024, 7168)),
        ("dense_gate_up", (1, 7168, 4608)),
        ("dense_down", (1, 2304, 7168)),
        ("router_gate", (1, 7168, 384)),
        ("shared_gate_up", (1, 7168, 512)),
        ("shared_down", (1, 256, 7168)),
        ("lm_head", (1, 7168, 20480)),
    ],
)
def test_projections_have_the_published_shapes_at_tp_8(op: str, shape: tuple[int, int, int]) -> None:
    projection = KIMI_K25.shard(8).projections[op]
    assert (projection.batch, projection.inputs, projection.outputs) == shape


@pytest.mark.parametrize(
    ("ops", "gigabytes"),
    [
        (["fused_qkv_a"], (1.847, 1.847, 1.847, 1.847)),
        (["o_proj"], (7.164, 3.582, 1.791, 0.895)),
        (["shared_gate_up", "shared_down"], (5.285, 2.642, 1.321, 0.660)),
        (["router_gate"], (0.330, 0.330, 0.330, 0.330)),
        (["lm_head"], (2.349, 1.174, 0.587, 0.294)),
        (["q_b"], (2.303, 1.151, 0.576, 0.288)),
        (["w_uk", "w_uv"], (1.023, 0.512, 0.256, 0.128)),
        (["dense_gate_up", "dense_down"], (0.793, 0.396, 0.198, 0.099)),
    ],
)
def test_weight_bytes_of_a_step_match_the_published_table(ops: list[str], gigabytes: tuple[float, ...]) -> None:
    for tensor_parallel, expected in zip(DEGREES, gigabytes, strict=True):
        projections = KIMI_K25.shard(tensor_parallel).projections
        assert sum(projections[op].step_bytes for op in ops) / 1e9 == pytest.approx(expected, abs=1e-3)


def test_weight_bytes_that_do_not_depend_on_the_batch_match_the_published_sums() -> None:
    sums = [KIMI_K25.shard(tensor_parallel).fixed_bytes / 1e9 for tensor_parallel in DEGREES]
    assert sums == pytest.approx([21.09, 11.64, 6.91, 4.54], abs=6e-3)


@pytest.mark.parametrize(
    ("tokens", "unique", "routed", "floors_ms", "layer_us"),
    [
        (1, 8.0, 1.49, (18.4, 9.81, 5.51, 3.36), (110.6, 55.3, 27.6, 13.8)),
        (2, 15.8, 2.94, (24.9, 13.1, 7.14, 4.18), (218.9, 109.4, 54.7, 27.4)),
        (4, 31.0, 5.76, (37.5, 19.4, 10.3, 5.75), (428.7, 214.4, 107.2, 53.6)),
        (8, 59.5, 11.1, (61.1, 31.2, 16.2, 8.71), (822.8, 411.4, 205.7, 103)),
        (16, 110, 20.4, (102.9, 52.0, 26.6, 13.9), (1518, 759, 379.5, 190)),
        (32, 188, 35.0, (167.9, 84.6, 42.9, 22.1), (2602, 1301, 650.5, 325)),
        (64, 284, 52.8, (247.5, 124.4, 62.8, 32.0), (3929, 1964, 982, 491)),
        (128, 358, 66.5, (308.8, 155.0, 78.1, 39.7), (4950, 2475, 1238, 619)),
    ],
)
def test_floors_match_the_published_table(
    tokens: int, unique: float, routed: float, floors_ms: tuple[float, ...], layer_us: tuple[float, ...]
) -> None:
    assert KIMI_K25.shard(8).unique_experts(tokens) == pytest.approx(unique, rel=5e-3)
    assert KIMI_K25.shard(8).routed_bytes(tokens) / 1e9 == pytest.approx(routed, rel=5e-3)
    for tensor_parallel, floor, layer in zip(DEGREES, floors_ms, layer_us, strict=True):
        shard = KIMI_K25.shard(tensor_parallel)
        assert shard.step_floor_seconds(tokens, BYTES_S) * 1e3 == pytest.approx(floor, rel=5e-3)
        per_layer = shard.routed_bytes(tokens) / KIMI_K25.moe_layers / BYTES_S
        assert per_layer * 1e6 == pytest.approx(layer, rel=5e-3)


def test_allreduce_is_the_14_kb_message_and_122_a_step() -> None:
    assert KIMI_K25.shard(8).allreduce_bytes == 14_336
    assert KIMI_K25.layer_allreduces == 122


def test_allreduces_of_a_step_are_a_range_that_holds_the_ledger_and_the_reference_host() -> None:
    expected = KIMI_K25.shard(8).allreduces
    assert {122, 123, 127} <= set(expected)
    assert 121 not in expected
    assert 128 not in expected


def test_one_rank_communicates_nothing() -> None:
    alone = KIMI_K25.shard(1)
    assert list(alone.allreduces) == list(alone.alltoalls) == [0]
    assert alone.logits_gathers == 0


def test_expert_parallelism_may_turn_the_moe_allreduces_into_alltoalls() -> None:
    shard = KIMI_K25.shard(8, expert_parallel=8)
    assert 62 in shard.allreduces  # one per layer, and the dense layer's second
    assert 120 in shard.alltoalls
    assert shard.logits_gathers == 1


def test_a_step_launches_what_the_ledger_says() -> None:
    launches = KIMI_K25.launches
    assert launches["marlin"] == 120
    assert launches["mla_decode"] == launches["rope"] == launches["kv_write"] == 61
    assert launches["rms_norm"] + launches["add_rms_norm"] == 2 * 61 + 1
    assert launches["topk"] == launches["moe_align"] == launches["moe_sum"] == 60
    assert launches["cast"] == 0
    # About 25 to 28 kernels a layer, the ledger says, of which these and the projections are all but the elementwise.
    projections = sum(projection.per_step for projection in KIMI_K25.shard(8).projections.values())
    assert 15 * 61 < sum(launches.values()) + projections < 28 * 61


def test_softmax_scale_is_yarns() -> None:
    assert KIMI_K25.softmax_scale == pytest.approx(192**-0.5 * 1.4159**2, rel=1e-4)


@given(degrees)
def test_shards_together_are_the_whole(tensor_parallel: int) -> None:
    whole, shard = KIMI_K25.shard(1), KIMI_K25.shard(tensor_parallel)
    assert shard.expert_bytes * tensor_parallel == whole.expert_bytes
    for op, projection in shard.projections.items():
        times = 1 if op in REPLICATED else tensor_parallel
        assert projection.step_bytes * times == whole.projections[op].step_bytes, op


@given(tokens_up_to_500, st.sampled_from([(1, 1), (8, 1), (8, 8), (4, 8), (2, 16)]))
def test_unique_experts_grow_and_never_pass_what_there_is(tokens: int, degree: tuple[int, int]) -> None:
    shard = KIMI_K25.shard(*degree)
    fewer, more = shard.unique_experts(tokens), shard.unique_experts(tokens + 1)
    assert fewer < more <= min(shard.local_experts, 8 * (tokens + 1))


@given(tokens_up_to_500, degrees, st.floats(1e11, 1e13))
def test_floors_grow_with_the_batch_and_fall_with_bandwidth(tokens: int, tensor_parallel: int, bytes_s: float) -> None:
    shard = KIMI_K25.shard(tensor_parallel)
    floor = shard.step_floor_seconds(tokens, bytes_s)
    assert shard.fixed_bytes / bytes_s < floor < shard.step_floor_seconds(tokens + 1, bytes_s)
    assert shard.step_floor_seconds(tokens, 2 * bytes_s) == pytest.approx(floor / 2)


@given(tokens_up_to_500, st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_whole_experts_and_parts_of_all_weigh_the_same(tokens: int, degree: int) -> None:
    dealt, cut = KIMI_K25.shard(degree, expert_parallel=degree), KIMI_K25.shard(degree)
    assert dealt.local_experts * degree == dealt.experts
    assert dealt.routed_bytes(tokens) == pytest.approx(cut.routed_bytes(tokens))
    assert dealt.fixed_bytes == cut.fixed_bytes


@pytest.mark.parametrize("tensor_parallel", [0, 3, 5, 7, 128])
def test_a_dim_that_does_not_divide_is_named(tensor_parallel: int) -> None:
    with pytest.raises(BadInput, match=rf"[a-z_]+ \d+ does not divide into {tensor_parallel} shards"):
        KIMI_K25.shard(tensor_parallel)


@pytest.mark.parametrize(("expert_parallel", "words"), [(4, "no multiple of tensor_parallel 8"), (40, "experts 384")])
def test_experts_that_cannot_be_dealt_out_are_named(expert_parallel: int, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        KIMI_K25.shard(8, expert_parallel)
