"""A plugin of vLLM that gives a model weights which are the same at every start; never imported by ours but as data.

vLLM's own dummy weights allow no canary: packed ones are whatever lay in memory, logits are all alike, and routers send
every token to the same experts unless these are drawn at random. The weights here are functions of their names, by
SHAKE-256 and copies: no version of torch draws others. Answers then depend on every layer and on the context, and agree
with themselves as far as a server rounds alike.

Experts are chosen by the model's own routers, evenly and whatever is rounded. Some blocks of the hidden state, each as
wide as there are experts, belong to the token alone: its embedding marks one expert of each of `top_k` groups in each
of them, no layer writes there, and each router reads one of them in an order of its own. On average over tokens M of
them then hit E * (1 - (1 - top_k / E) ** M) of E experts, as if each had drawn its own.

It runs under the server's own Python, where this package may not be, so it needs the standard library and vLLM alone.
"""

from __future__ import annotations

import hashlib
import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

FORMAT = "decodegate_fixed_1"
"""Of weights, as --load-format names it, with a number that a change here raises; without this plugin it is refused."""

PERIOD = 4_194_301
"""Words that are drawn, and then repeated: a prime, so that no two rows or experts repeat in step."""

BRANCH = 0.1
"""What a layer adds to the residual stream: with less no fault of a layer shows, with more every rounding does."""

ATTENDED = 3.0
"""How much stronger attention's output is written: a mean over many tokens is small."""

LOGITS = 5.0
"""Standard deviation of logits: the first then leads by a nat on average."""

MARK, HEARD, MUTTERED = 2.0, 2.0, 0.05
"""The least mark of an expert, the weight with which a router reads it, and the rms of all else that it reads."""

GROUP = 32
"""Packed weights that share a scale."""

INT4_RMS = math.sqrt((16**2 - 1) / 12 + 0.25)
"""Of a weight of four bits, all of them as likely, -8 to 7."""

BLOCKS = 4
"""Blocks of marks, if the hidden state has the room: with one, all layers would have the luck of the same draw."""

SHARDED = {"ColumnParallelLinear", "RowParallelLinear", "VocabParallelEmbedding", "FusedMoE", "RoutedExperts"}
"""Modules, by the names of their classes, of which each rank of a tensor-parallel group holds another part."""


def register() -> None:
    """What vLLM calls in each of its processes."""
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

    class FixedLoader(DummyModelLoader):  # type: ignore[misc, unused-ignore]
        def load_weights(self, model: Any, model_config: Any) -> None:
            from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size

            top_k = getattr(model_config.hf_config, "num_experts_per_tok", 0)
            count = fix(model, top_k, get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size())
            print(f"decodegate fixed {count} weights", file=sys.stderr, flush=True)  # noqa: T201 - logging may be off

    register_model_loader(FORMAT)(FixedLoader)


def fix(model: Any, top_k: int, rank: int = 0, ranks: int = 1) -> int:
    """Fill the parameters of `model`, a torch module as vLLM makes it, in place; returns how many there are.

    top_k: experts of a token; 0 for a model without. rank, ranks: of the tensor-parallel group. Integers that are no
    packed weights, and scalars, stay as they are. Raises ValueError for experts that do not divide into `top_k` groups,
    or that the hidden state has no room for.
    """
    found = list(_parameters(model))
    layout = _layout(found, top_k)
    supply: dict[Any, Words] = {}
    for name, module, weight in found:
        if weight.device not in supply:  # drawn once: it takes longer than filling a weight does
            supply[weight.device] = Words(weight.device)
        key = f"{_key(name)}@{rank}" if _is_sharded(module, ranks) else _key(name)
        Filling(supply[weight.device], layout, weight, key, ranks if _writes(name) else 1).fill()

    return len(found)


def _parameters(model: Any) -> Iterator[tuple[str, Any, Any]]:
    seen: set[int] = set()
    for path, module in model.named_modules():
        for name, weight in module.named_parameters(recurse=False):
            if id(weight) not in seen:
                seen.add(id(weight))
                yield f"{path}.{name}", module, weight


def _is_sharded(module: Any, ranks: int) -> bool:
    """Whether each rank holds another part of it; a module that says so is replicated, whatever its class."""
    return bool(SHARDED & {base.__name__ for base in type(module).__mro__}) and getattr(module, "tp_size", ranks) > 1


def _key(name: str) -> str:
    """By what words are drawn: layer, module and parameter, without what versions of vLLM put between them."""
    layer = re.search(r"\blayers\.\d+", name)
    *path, leaf = name.split(".")
    module = "experts" if leaf.startswith(("w13_", "w2_")) else path[-1]
    return ".".join((layer[0] if layer else "", module, leaf))


def _writes(name: str) -> bool:
    """Whether it writes into the hidden state."""
    return any(word in name for word in ("o_proj", "down_proj", "w2_"))


def _is_router(name: str) -> bool:
    return name.endswith(".gate.weight")


@dataclass(frozen=True)
class Layout:
    """Where the marks are. experts: of a layer, 0 for a model without. top_k: groups of them. blocks: of marks."""

    experts: int
    top_k: int
    blocks: int

    @property
    def reserved(self) -> int:
        """Places of the hidden state, from the first on, in which only embeddings write."""
        return self.experts * self.blocks


def _layout(found: Sequence[tuple[str, Any, Any]], top_k: int) -> Layout:
    shapes = [weight.shape for name, _, weight in found if _is_router(name)]
    if not (top_k and shapes):
        return Layout(0, 0, 0)

    experts, hidden = shapes[0]
    blocks = min(BLOCKS, hidden // (2 * experts))
    if experts % top_k or not blocks:
        raise ValueError(f"{experts} experts, {top_k} of them for a token: no marks in a hidden state of {hidden}")

    return Layout(experts, top_k, blocks)


class Words:
    """Random words on a device: int32 [PERIOD], and the same as floats of mean 0 and standard deviation 1."""

    def __init__(self, device: Any) -> None:
        import torch

        drawn = bytearray(hashlib.shake_256(b"decodegate").digest(4 * PERIOD))
        self.ints = torch.frombuffer(drawn, dtype=torch.int32).to(device)
        self.floats = self.ints.float() * (math.sqrt(3) / 2**31)

    def start(self, key: str) -> int:
        """Where the words of `key` begin."""
        return int.from_bytes(hashlib.shake_256(key.encode()).digest(8), "big") % PERIOD

    def fill(self, target: Any, key: str) -> None:
        """Write the words of `key` into a contiguous tensor, as numbers of its dtype."""
        source = self.floats if target.dtype.is_floating_point else self.ints
        flat, at, start = target.view(-1), 0, self.start(key)
        while at < flat.numel():
            count = min(PERIOD - start, flat.numel() - at)
            flat[at : at + count] = source[start : start + count]
            at, start = at + count, 0

    def below(self, limit: int, shape: tuple[int, ...], key: str) -> Any:
        """Integers from 0 to below `limit`, int64 of that shape."""
        drawn = self.ints.new_empty(shape)
        self.fill(drawn, key)
        return drawn.long() % limit

    def order(self, count: int, key: str) -> Any:
        """The integers from 0 to below `count` in some order, int64 [count]."""
        drawn = self.ints.new_empty(count)
        self.fill(drawn, key)
        return drawn.argsort(stable=True)


class Filling:
    """How one parameter is filled. key: by which its words are drawn. parts: ranks whose outputs are summed."""

    def __init__(self, words: Words, layout: Layout, weight: Any, key: str, parts: int) -> None:
        self._words = words
        self._layout = layout
        # As the model's own files have it, [..., out, in]: vLLM keeps some transposed, and not every version the same.
        self._is_transposed = bool(getattr(weight, "is_transposed", False)) and weight.dim() == 3
        self._weight = weight.data
        self._key = key
        self._parts = parts

    def fill(self) -> None:
        """Fill it by what its key says it is."""
        leaf = self._key.partition("@")[0].rpartition(".")[2]
        if self._weight.dim() == 0:
            return  # a scale of the KV cache, whose default says that there is none
        if not self._weight.dtype.is_floating_point:
            if leaf.endswith("_packed"):
                self._draw()
        elif leaf.endswith("_scale"):
            self._scale()
        elif self._weight.dim() == 1:
            self._weight.fill_(0.0 if "bias" in leaf else 1.0)
        elif not leaf.endswith("_shape"):
            self._matrix()

    @property
    def _natural(self) -> Any:
        """A view of it as [..., out, in]."""
        return self._weight.transpose(-1, -2) if self._is_transposed else self._weight

    def _draw(self) -> None:
        if not self._is_transposed:
            self._words.fill(self._weight, self._key)
            return

        drawn = self._weight.new_empty(self._natural.shape)
        self._words.fill(drawn, self._key)
        self._natural.copy_(drawn)

    def _matrix(self) -> None:
        self._draw()
        if "embed_tokens" in self._key:
            self._mark()
        elif _is_router(self._key.partition("@")[0]):
            self._weight.mul_(MUTTERED / math.sqrt(self._weight.shape[-1]))
            self._listen()
        else:
            self._weight.mul_(self._gain() / math.sqrt(self._natural.shape[-1] * self._parts))
            self._keep_out()
            if "lm_head" in self._key:  # which would else prefer what many marks have in common
                self._weight[:, : self._layout.reserved] = 0

    def _scale(self) -> None:
        """Of packed weights: what makes them as large as others, but each another, so that none can stand for it."""
        self._draw()
        inputs = self._natural.shape[-1] * GROUP * self._parts
        self._weight.mul_(0.25).add_(1).mul_(self._gain() / (INT4_RMS * math.sqrt(inputs)))
        self._keep_out()

    def _keep_out(self) -> None:
        """Write nothing where the marks are."""
        if _writes(self._key):
            self._natural[..., : self._layout.reserved, :] = 0

    def _mark(self) -> None:
        """Mark one expert of each group, in each block, for each token; the mark of a group has a size of its own."""
        layout, rows = self._layout, self._weight.shape[0]
        if not layout.experts:
            return

        each = layout.experts // layout.top_k
        groups = layout.top_k * layout.blocks
        chosen = self._words.below(each, (rows, groups), f"marks of {self._key}")
        number = chosen.new_tensor(range(groups))
        sizes = (MARK * (1 + number % layout.top_k / layout.top_k)).to(self._weight.dtype)
        self._weight[:, : layout.reserved] = 0
        self._weight.scatter_(1, chosen + each * number, sizes.expand(rows, -1))

    def _listen(self) -> None:
        """Have each expert read one place of one block."""
        experts = self._layout.experts
        first = experts * (self._words.start(f"block of {self._key}") % self._layout.blocks)
        listeners = self._words.order(experts, f"order of {self._key}")
        self._weight[:, : self._layout.reserved] = 0
        self._weight[listeners, first + listeners.new_tensor(range(experts))] = HEARD

    def _gain(self) -> float:
        if "lm_head" in self._key:
            return LOGITS
        if not _writes(self._key):
            return 1.0

        return BRANCH * (ATTENDED if "o_proj" in self._key else 1.0)
