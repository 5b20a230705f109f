"""vLLM's Marlin functions, called by keyword on every release from 0.20: found by import, fitted by signature."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...errors import BadInput

_LAYERS = "vllm.model_executor.layers"
_OPS = "vllm._custom_ops"
_UTILS = f"{_LAYERS}.quantization.utils.marlin_utils"


@dataclass(frozen=True, slots=True)
class VllmFunction:
    """One function of vLLM as decodegate calls it.

    homes: modules that may hold it, newest first. passed: keywords that every known release takes. dropped: keywords of
    older releases, left out where the function no longer takes them.
    """

    name: str
    homes: tuple[str, ...]
    passed: tuple[str, ...]
    dropped: tuple[str, ...] = ()

    def keywords(self, signature: inspect.Signature) -> frozenset[str]:
        """Those of our keywords to pass to a function of this signature; raises BadInput if they do not fit it."""
        parameters = signature.parameters
        keywords = {*self.passed, *(set(self.dropped) & set(parameters))}
        if unknown := sorted(keywords - set(parameters)):
            raise BadInput(f"vLLM's {self.name} no longer takes {', '.join(unknown)}: {_NEWER}")

        required = {name for name, each in parameters.items() if each.default is each.empty}
        if missing := sorted(required - keywords):
            raise BadInput(f"vLLM's {self.name} now also wants {', '.join(missing)}: {_NEWER}")

        return frozenset(keywords)

    def load(self) -> AdaptedFunction:
        """Import the function from the first home that has it; raises BadInput where none has or it does not fit."""
        reasons = []
        for home in self.homes:
            try:
                function = getattr(importlib.import_module(home), self.name)
            except (ImportError, AttributeError) as error:
                reasons.append(str(error))
            else:
                return AdaptedFunction(self, home, function, self.keywords(inspect.signature(function)))

        raise BadInput(
            f"this vLLM has no {self.name} ({'; '.join(reasons)}); decodegate knows where releases from 0.20 to 0.33 "
            "keep it: serve with one of those, or update decodegate"
        )


_NEWER = "this release is newer than the API generations that decodegate knows, so update decodegate"


@dataclass(frozen=True, slots=True)
class AdaptedFunction:
    """A function of the vLLM that is installed, to be called with all keywords of its op."""

    op: VllmFunction
    home: str
    function: Callable[..., Any]
    keywords: frozenset[str]

    def prepared(self, **values: Any) -> Callable[[], Any]:
        """The call with its arguments bound. `values` are all of the op's keywords; TypeError if they are not."""
        ours = {*self.op.passed, *self.op.dropped}
        if set(values) != ours:
            raise TypeError(f"{self.op.name} is called with {sorted(values)}, its keywords are {sorted(ours)}")

        return partial(self.function, **{name: value for name, value in values.items() if name in self.keywords})

    def __call__(self, **values: Any) -> Any:
        """Call it now; see `prepared`."""
        return self.prepared(**values)()


FUSED_MOE = VllmFunction(
    "fused_marlin_moe",
    (f"{_LAYERS}.fused_moe.experts.marlin_moe", f"{_LAYERS}.fused_moe.fused_marlin_moe"),
    (
        *("hidden_states", "w1", "w2", "bias1", "bias2", "w1_scale", "w2_scale", "topk_weights", "topk_ids"),
        *("quant_type_id", "global_num_experts", "moe_sum", "workspace", "intermediate_cache13"),
        *("intermediate_cache2", "output"),
    ),
)
GROUPED_GEMM = VllmFunction(
    "moe_wna16_marlin_gemm",
    (_OPS,),
    (
        *("input", "output", "b_qweight", "b_bias", "b_scales", "a_scales", "global_scale", "b_qzeros", "workspace"),
        *("sorted_token_ids", "expert_ids", "num_tokens_past_padded", "topk_weights", "moe_block_size", "top_k"),
        *("mul_topk_weights", "b_q_type", "size_m", "size_n", "size_k"),
        *("use_atomic_add", "use_fp32_reduce", "is_zp_float"),
    ),
    dropped=("g_idx", "perm", "is_k_full"),
)
LINEAR = VllmFunction(
    "apply_gptq_marlin_linear",
    (_UTILS,),
    (
        *("input", "weight", "weight_scale", "weight_zp", "workspace", "wtype"),
        *("output_size_per_partition", "input_size_per_partition"),
    ),
    dropped=("g_idx", "g_idx_sort_indices", "is_k_full"),
)
REPACK = VllmFunction("gptq_marlin_repack", (_OPS,), ("b_q_weight", "size_k", "size_n", "num_bits"), dropped=("perm",))
PERMUTE_SCALES = VllmFunction("marlin_permute_scales", (_UTILS,), ("s", "size_k", "size_n", "group_size"))
MAKE_WORKSPACE = VllmFunction("marlin_make_workspace_new", (_UTILS,), ("device", "max_blocks_per_sm"))
ALIGN = VllmFunction(
    "moe_align_block_size",
    (f"{_LAYERS}.fused_moe.moe_align_block_size",),
    ("topk_ids", "block_size", "num_experts", "expert_map", "ignore_invalid_experts"),
)
MOE_SUM = VllmFunction("moe_sum", (_OPS,), ("input", "output"))

MOE_BLOCKS_PER_SM = 4
"""Size of the workspace of the grouped GEMM, as every release makes it."""

KEPT_WORKSPACE = "get_marlin_workspace"
"""Function of the releases in which a server keeps the experts' workspace; before, each call made and zeroed one."""


@dataclass(frozen=True, slots=True)
class MarlinApi:
    """The Marlin functions of one vLLM. uint4b8: its ScalarType of symmetric int4. name: which generation it is."""

    fused_moe: AdaptedFunction
    grouped_gemm: AdaptedFunction
    linear: AdaptedFunction
    repack: AdaptedFunction
    permute_scales: AdaptedFunction
    make_workspace: AdaptedFunction
    align: AdaptedFunction
    moe_sum: AdaptedFunction
    uint4b8: Any
    keeps_workspace: bool
    name: str

    @property
    def dense_blocks_per_sm(self) -> int:
        """Size of the workspace of a linear layer: its own, or since it is kept, the one of the experts too."""
        return MOE_BLOCKS_PER_SM if self.keeps_workspace else 1


def load() -> MarlinApi:
    """Find all of them in the vLLM that is installed; raises BadInput if one is missing or does not fit."""
    from vllm.scalar_type import scalar_types

    fused_moe, grouped_gemm = FUSED_MOE.load(), GROUPED_GEMM.load()
    return MarlinApi(
        fused_moe=fused_moe,
        grouped_gemm=grouped_gemm,
        linear=LINEAR.load(),
        repack=REPACK.load(),
        permute_scales=PERMUTE_SCALES.load(),
        make_workspace=MAKE_WORKSPACE.load(),
        align=ALIGN.load(),
        moe_sum=MOE_SUM.load(),
        uint4b8=scalar_types.uint4b8,
        keeps_workspace=hasattr(importlib.import_module(_UTILS), KEPT_WORKSPACE),
        name=generation(fused_moe.home, grouped_gemm.keywords),
    )


def generation(fused_home: str, grouped_keywords: frozenset[str]) -> str:
    """Which of the API generations it is, told by where it lives and what it takes."""
    path = fused_home.removeprefix(f"{_LAYERS}.")
    return f"{path}, {'with' if 'g_idx' in grouped_keywords else 'without'} g_idx"
