"""The provenance of numbers, as pure data: what must match, what may be declared as the change, what is reported."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Final, TypeAlias

from ..errors import BadInput
from ..metric import Json
from ..printable import as_on_disk, printable
from ..redaction import redact_value

COMPONENTS: Final = (
    *("driver", "vbios", "kernel", "cuda", "torch", "nccl", "vllm", "python"),
    *("sglang", "tensorrt", "llamacpp"),  # of attached servers
    "model",  # of two attached servers that call one model by two names
)
"""Parts of a stack that an upgrade may change on purpose. `nccl` also stands for `nccl_sha256`, and so on."""

FLAG: Final = "flag:"
SETTINGS: Final = ("env:", FLAG)
"""Prefixes of single settings that may be the change: environment variables and flags of the server."""

UNKNOWN: Final = "unknown"
"""What stands in an imported file where nobody said it; a recording has null where it could not be read."""

_TOLD_SINCE: Final = "driver_p2p"
_RECORDED_LATER: Final = frozenset(
    {
        _TOLD_SINCE,
        "nccl_conf_sha256",
        "nccl_system_conf_sha256",
        "nccl_graph_file_sha256",
        "nccl_topo_file_sha256",
        "nccl_plugins",
    }
)
"""Fields that files of an older decodegate lack; what such a side does not know is no difference.

It is known by _TOLD_SINCE, which came with the others and is told wherever two GPUs are: a file of NCCL's that is not
there is not told of either, and on a side that looked for it that is a difference.
"""

_PREFIXES = ("NCCL_", "VLLM_", "TORCH_NCCL_", "FLASHINFER_", "TORCHINDUCTOR_", "OMP_", "KMP_")
_NAMES = {
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_FORCE_PTX_JIT",
    "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "MKL_NUM_THREADS",
    "LD_PRELOAD",
}
# Ports, addresses, ranks, caches and logs change from run to run and move no number: recording them would confound
# every comparison.
_VOLATILE = re.compile(
    r".*(_PORT|_IP|_COMM_ID|_HOSTID|_DP_RANK|_DP_RANK_LOCAL|_DEBUG_FILE|_DUMP_FILE|_DUMP_PATH|_TEMP_FILE"
    r"|_ROOT|_ASSETS_CACHE|_CACHE_PATH|_CACHE_DIR|_WORKSPACE_BASE|_BASE_PATH|_PROFILER_DIR)"
    r"|VLLM_LOGGING_(CONFIG_PATH|PREFIX|STREAM|COLOR)|VLLM_USAGE_.*|VLLM_(NO_USAGE_STATS|DO_NOT_TRACK)"
)
_SETTING_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class _Absent:
    """One side has no such field; `null` is a value that could not be read, which is something else."""

    def __repr__(self) -> str:
        return "absent"


ABSENT: Final = _Absent()
Leaf: TypeAlias = "Json | _Absent"


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of a measurement, in three lists.

    machine: must match. stack: may be declared as the change. telemetry: reported, never compared.
    """

    machine: Mapping[str, Json]
    stack: Mapping[str, Json]
    telemetry: Mapping[str, Json]

    def to_json(self) -> dict[str, Json]:
        """The three lists as a JSON object."""
        return {field.name: dict(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_json(cls, obj: Json) -> Provenance:
        """Read what `to_json` wrote; raises BadInput naming the field that is wrong."""
        names = [field.name for field in fields(cls)]
        if not isinstance(obj, dict):
            raise BadInput(f"provenance: expected an object with {', '.join(names)}, found {obj!r}")
        if strange := sorted(set(obj) - set(names)):
            raise BadInput(f"provenance: unknown field {strange[0]!r}; known fields are {', '.join(names)}")

        return cls(**{name: _section(obj, name) for name in names})


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that is not the same on both sides; ABSENT where a side has no such field."""

    field: str
    base: Leaf
    new: Leaf
    declarable: bool

    def __str__(self) -> str:
        return f"{self.field}: {_show(self.base)} -> {_show(self.new)}"


def differences(base: Provenance, new: Provenance) -> tuple[Difference, ...]:
    """Differences in machine, then in stack, leaf by leaf: "gpus[3].power_limit_w: 600 -> 300"."""
    return (
        *_differ(base.machine, new.machine, _silence_of_driver),
        *_differ(base.stack, new.stack, lambda difference: _can_be_declared(_component(difference.field))),
    )


def unknown_on_both(base: Provenance, new: Provenance) -> tuple[str, ...]:
    """Fields of machine and stack that neither side knows: they are equal, and nobody compared them."""
    sides = [{**dict(_leaves(side.machine)), **dict(_leaves(side.stack))} for side in (base, new)]
    return tuple(
        field for field, value in sides[0].items() if _unknown(value) and _unknown(sides[1].get(field, ABSENT))
    )


def unsaid(base: Provenance, new: Provenance) -> tuple[str, ...]:
    """Settings that `new`'s attached server says and `base`'s did not: nobody compared them."""
    names = (name for name, value in new.stack.items() if name.startswith(FLAG) and value is not None)
    return tuple(name.removeprefix(FLAG) for name in names if base.stack.get(name, ABSENT) is None)


def undeclared(differences: Collection[Difference], declared: Collection[str]) -> tuple[Difference, ...]:
    """The differences that `declared` (from `parse_declared`) does not name; these confound a comparison."""
    return tuple(found for found in differences if not (found.declarable and _owner(found.field) in declared))


def parse_declared(text: str) -> frozenset[str]:
    """Read "driver,nccl,env:NCCL_PROTO,flag:max-num-seqs"; raises BadInput for an empty or unknown name."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if not _can_be_declared(name):
            raise BadInput(
                f"declared change {name!r} in {text!r} is unknown; known are {', '.join(COMPONENTS)}, "
                "env:NAME (an environment variable) and flag:NAME (a flag of the server), joined by commas"
            )

    return frozenset(_component(name) for name in names)


def redact(environ: Mapping[str, str]) -> dict[str, Json]:
    """The variables that can move a number, by allow-list and sorted; values of secrets become "redacted"."""
    return {
        name: printable(as_on_disk(redact_value(name, environ[name]))) for name in sorted(environ) if _matters(name)
    }


def _matters(name: str) -> bool:
    return (name in _NAMES or name.startswith(_PREFIXES)) and not _VOLATILE.fullmatch(name)


def _can_be_declared(name: str) -> bool:
    for prefix in SETTINGS:
        if name.startswith(prefix):
            return bool(_SETTING_NAME.fullmatch(_component(name).removeprefix(prefix)))

    return name in COMPONENTS


def _component(field: str) -> str:
    """What a user would declare to allow `field`: nccl for nccl_sha256, flag:max-num-seqs for flag:--max_num_seqs."""
    if field.startswith(FLAG):
        return FLAG + field.removeprefix(FLAG).lstrip("-").replace("_", "-")
    if field.startswith("env:"):
        return field

    return re.split(r"[_.\[]", field, maxsplit=1)[0]


def _owner(field: str) -> str:
    """The component that answers for a declarable difference; of the machine only the driver's silence is one."""
    return "driver" if field.startswith("gpus[") else _component(field)


def _silence_of_driver(difference: Difference) -> bool:
    # What NVML can say of a GPU changes with the driver: a limit that was 600 and is now unknown is no proof of another
    # machine, and without this rule no such driver upgrade could ever be gated.
    return difference.field.startswith("gpus[") and None in (difference.base, difference.new)


def _differ(
    base: Mapping[str, Json], new: Mapping[str, Json], declarable: Callable[[Difference], bool]
) -> Iterator[Difference]:
    old, young = dict(_leaves(base)), dict(_leaves(new))
    for field in old | young:
        found = Difference(field, old.get(field, ABSENT), young.get(field, ABSENT), declarable=False)
        silent = _recorded_before_asked(found, old, young) or _unsaid(found)
        if not silent and not _same(found.base, found.new):
            yield replace(found, declarable=declarable(found))


def _recorded_before_asked(found: Difference, old: Mapping[str, Json], young: Mapping[str, Json]) -> bool:
    """Whether one side lacks the field because it was recorded before anybody looked."""
    sides = ((found.base, old, young), (found.new, young, old))
    return found.field.split(".")[0] in _RECORDED_LATER and any(
        value is ABSENT and _TOLD_SINCE not in own and _TOLD_SINCE in other for value, own, other in sides
    )


def _unsaid(found: Difference) -> bool:
    """Whether an attached server does not say this setting: newer pages say more, and silence is no difference."""
    return found.field.startswith(FLAG) and None in (found.base, found.new)


def _leaves(value: Json | Mapping[str, Json], field: str = "") -> Iterator[tuple[str, Json]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{field}.{key}" if field else key)
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{field}[{index}]")
    elif field:
        # An empty list or object is a leaf, so that a machine without GPUs differs from one that was not asked.
        yield field, dict(value) if isinstance(value, Mapping) else value


def _unknown(value: Leaf) -> bool:
    return value is None or value == UNKNOWN


def _same(base: Leaf, new: Leaf) -> bool:
    # True == 1 in Python, not in JSON.
    return base == new and isinstance(base, bool) == isinstance(new, bool)


def _show(value: Leaf) -> str:
    if value is None:
        return "unknown"

    return str(value).lower() if isinstance(value, bool) else str(value)


def _section(obj: Mapping[str, Json], name: str) -> dict[str, Json]:
    section = obj.get(name)
    if not isinstance(section, dict):
        raise BadInput(f"provenance: field {name!r} must be an object, found {section!r}")

    for field, value in _leaves(section, name):
        if isinstance(value, float) and not math.isfinite(value):
            raise BadInput(f"provenance: field {field!r} is {value!r}, which is no JSON number")

    return section
