"""Machine classes: the name of what a metric runs on, under which its baselines lie."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from ..errors import BadInput
from ..metric import Json
from .host import file_safe, short_cpu


def machine_class(machine: Mapping[str, Json]) -> str:
    """The class of a provenance's `machine`: "NVIDIA-H200-x2-NVLink", or "cpu-Intel-Xeon-2c" without a GPU.

    GPUs by name and number, on each of several nodes, then the slowest link between them. Raises BadInput for a machine
    that names neither GPUs nor a CPU.
    """
    nodes = machine.get("nodes")
    return _of_one_node(machine) + (f"-{nodes}nodes" if nodes else "")


def _of_one_node(machine: Mapping[str, Json]) -> str:
    gpus, link = machine.get("gpus"), machine.get("link")
    if isinstance(gpus, list) and gpus:
        counts = Counter(str(gpu.get("name")) if isinstance(gpu, dict) else str(gpu) for gpu in gpus)
        names = [f"NVIDIA-{file_safe(sku)}-x{count}" for sku, count in sorted(counts.items())]
        return "-".join([*names, str(link)] if link else names)

    cpu, cores = machine.get("cpu"), machine.get("cores")
    if not (isinstance(cpu, str) and isinstance(cores, int)):
        raise BadInput(
            f"provenance: machine names neither GPUs nor cpu and cores (it has {', '.join(machine) or 'nothing'}), so "
            "its machine class is unknown; make it with machine.fingerprint.provenance"
        )

    return f"cpu-{short_cpu(cpu)}-{cores}c"


def gpus_of_server(facts: Mapping[str, Json]) -> int | None:
    """GPUs that a server uses by the ranks that its facts tell of, tensor x pipeline x data parallel; None if none."""
    if not isinstance(facts.get("tensor_parallel"), int):
        return None

    degrees = (facts.get(name) for name in ("tensor_parallel", "pipeline_parallel", "data_parallel"))
    return math.prod(degree for degree in degrees if isinstance(degree, int) and degree > 0)


def is_of_class(published: str, machine_class: str) -> bool:
    """Whether figures that were published for a class are of `machine_class`.

    A published class may end before the kind of its link, which the publication then does not say.
    """
    return machine_class == published or machine_class.startswith(f"{published}-")
