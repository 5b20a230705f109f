"""Whether a profile can be true: the counts that the model's own structure demands, and names that no rule knows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ..workloads.kimi import Model
from .categories import Category
from .step_profile import KernelTime, StepProfile

UNKNOWN_SHARE: Final = 0.02
"""Of the kernel time: a kernel above it that no rule knows is named."""

MOE_KIND: Final = "Marlin"
"""Of the MoE GEMMs that are counted."""


@dataclass(frozen=True, slots=True)
class ExpectedCounts:
    """Launches a step that a model needs. moe_gemms: of kind MOE_KIND."""

    layers: int
    allreduces: int
    moe_gemms: int
    casts_in_layers: int = 0


def expected(model: Model, tensor_parallel: int) -> ExpectedCounts:
    """What a step of `model` launches on each of `tensor_parallel` ranks; of its AllReduces the least of the shard.

    With one AllReduce for the vocabulary-parallel embedding where there is more than one rank.
    """
    reductions = model.shard(tensor_parallel).allreduces
    embedding = int(tensor_parallel > 1)
    return ExpectedCounts(
        layers=model.layers,
        allreduces=reductions.start + embedding if tensor_parallel > 1 else 0,
        moe_gemms=model.launches["marlin"],
        casts_in_layers=model.launches["cast"],
    )


def problems(profile: StepProfile, counts: ExpectedCounts | None) -> list[str]:
    """What shows that the profile is not what it is taken for, in sentences; none if nothing does.

    counts: of the model; without them only a profile of several ranks without any AllReduce is refused.
    """
    if counts is None:
        return list(_no_allreduce(profile))

    return [*_allreduces(profile, counts), *_moe_gemms(profile, counts), *_casts(profile, counts)]


def unknown(profile: StepProfile) -> list[KernelTime]:
    """Kernels that no rule knows and that take more than UNKNOWN_SHARE of the step."""
    return [kernel for kernel in profile.kernels if kernel.category == Category.REST and kernel.share > UNKNOWN_SHARE]


def _no_allreduce(profile: StepProfile) -> Iterator[str]:
    if len(profile.ranks) + len(profile.missing) > 1 and not profile.of(Category.ALLREDUCE).calls:
        yield _renamed(profile)


def _renamed(profile: StepProfile) -> str:
    longest = profile.kernels[0]
    return (
        "no AllReduce kernel recognised: names changed? Add a rule for it with --categories; the longest kernel is "
        f"{longest.name[:80]!r}, {longest.calls:g} a step"
    )


def _allreduces(profile: StepProfile, counts: ExpectedCounts) -> Iterator[str]:
    calls = profile.of(Category.ALLREDUCE).calls
    if counts.allreduces and not calls:
        yield _renamed(profile)
    elif calls < counts.allreduces:
        yield (
            f"{calls:g} AllReduces a step, and {counts.layers} layers need {counts.allreduces}: some are not "
            f"recognised (see `rest`), or the model has other layers{_layers_that_fit(calls)}"
        )


def _layers_that_fit(calls: float) -> str:
    """A hint for a slice: two AllReduces a layer and one for the embedding."""
    return f": {calls:g} fit --layers {(calls - 1) / 2:g}" if calls >= 5 and calls % 2 == 1 else ""


def _moe_gemms(profile: StepProfile, counts: ExpectedCounts) -> Iterator[str]:
    calls = profile.launches(Category.MOE_GEMM, MOE_KIND)
    if calls == counts.moe_gemms:
        return

    others = sorted({kernel.kind for kernel in profile.kernels if kernel.category == Category.MOE_GEMM})
    instead = f"; the MoE GEMMs are of {', '.join(others)}" if others and not calls else ""
    yield (
        f"{calls:g} {MOE_KIND} launches a step, and {counts.layers} layers need {counts.moe_gemms}{instead}: "
        "names changed, another MoE backend (--moe-backend marlin), or other layers (--layers)"
    )


def _casts(profile: StepProfile, counts: ExpectedCounts) -> Iterator[str]:
    if profile.casts_in_layers > counts.casts_in_layers:
        cast = next(kernel for kernel in profile.kernels if kernel.category == Category.CAST)
        yield (
            f"{profile.casts_in_layers:g} dtype casts a step inside the layers, and the model needs "
            f"{counts.casts_in_layers}: the router left its path, or a weight is of another type ({cast.name[:80]!r})"
        )
