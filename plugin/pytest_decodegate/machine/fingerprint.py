"""The fingerprint of a machine: its GPUs and host, its class, and the provenance of a run on it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import DecodegateError
from ..metric import Json
from .gpus import Gpu, Survey
from .host import Host, file_safe, read_host, short_cpu
from .nvml import open_nvml
from .provenance import Provenance, redact
from .stack import REPORTED
from .topology import Topology, read_topology


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A machine as seen by this process.

    link: "NVLink", "PCIe-SYS" ..., None below two GPUs. no_gpu_reason: why `gpus` is empty, "" otherwise.
    problems: what NVML refused to say, other than "not supported". topology: how the GPUs are connected.
    """

    host: Host
    gpus: tuple[Gpu, ...] = ()
    link: str | None = None
    driver: str | None = None
    no_gpu_reason: str = ""
    problems: tuple[str, ...] = ()
    topology: Topology = field(default_factory=lambda: Topology(None, {}))

    @property
    def machine_class(self) -> str:
        """The folder of this machine's baselines: "NVIDIA-H200-x2-NVLink", or "cpu-Intel-Xeon-2c" without a GPU."""
        if not self.gpus:
            return f"cpu-{short_cpu(self.host.cpu)}-{self.host.cores}c"

        counts = Counter(gpu.sku for gpu in self.gpus)
        names = [f"NVIDIA-{file_safe(sku)}-x{count}" for sku, count in sorted(counts.items())]
        return "-".join([*names, self.link] if self.link else names)


def machine(environ: Mapping[str, str] | None = None, nvml: Any = None, root: Path = Path("/")) -> Fingerprint:
    """Take the fingerprint. Without NVML, a driver or a visible GPU the machine is a CPU and the reason is kept.

    environ: read for CUDA_VISIBLE_DEVICES, os.environ by default. nvml, root: doubles for tests.
    Raises BadInput when CUDA_VISIBLE_DEVICES names a GPU that is not there, DecodegateError when NVML breaks half-way:
    a broken GPU host must not pass for a machine without GPUs.
    """
    host = read_host(root)
    binding, reason = open_nvml(nvml)
    if binding is None:
        return Fingerprint(host, no_gpu_reason=reason)

    setting = (os.environ if environ is None else environ).get("CUDA_VISIBLE_DEVICES")
    try:
        return _survey(host, binding, setting, root)
    except binding.NVMLError as error:
        raise DecodegateError(
            f"NVML failed while the GPUs were read ({error}); see what `nvidia-smi` says, a GPU may need a reset"
        ) from error


def provenance(fingerprint: Fingerprint, stack_facts: Mapping[str, Json], environ: Mapping[str, str]) -> Provenance:
    """Sort what is known into the three lists.

    stack_facts: from `stack.agree`, plus "flag:NAME" entries. environ: the environment of the ranks, not yet redacted.
    """
    gpus = fingerprint.gpus
    return Provenance(
        machine={
            "gpus": [{"name": gpu.sku, **gpu.machine} for gpu in gpus],
            "link": fingerprint.link,
            **fingerprint.host.machine,
        },
        stack={
            **_installed_on_machine(fingerprint),
            **{name: value for name, value in stack_facts.items() if name not in REPORTED},
            **{f"env:{name}": value for name, value in redact(environ).items()},
        },
        telemetry={
            # Cards of one SKU differ by 2-5 %, but a baseline tied to the card would end with the first repair.
            "gpus": [{"uuid": gpu.uuid, "bus_id": gpu.bus_id, "name": gpu.name, **gpu.telemetry} for gpu in gpus],
            "topology": dict(fingerprint.topology.facts) or None,
            "no_gpu_reason": fingerprint.no_gpu_reason or None,
            "nvml_problems": list(fingerprint.problems),
            **{name: stack_facts[name] for name in REPORTED if name in stack_facts},
            **fingerprint.host.telemetry,
        },
    )


def _survey(host: Host, nvml: Any, setting: str | None, root: Path) -> Fingerprint:
    survey = Survey(nvml)
    seen = survey.visible(setting)
    topology = read_topology(nvml, seen, survey.problems, root)

    return Fingerprint(
        host,
        gpus=tuple(survey.describe(device) for device in seen),
        link=survey.link(seen),
        driver=nvml.nvmlSystemGetDriverVersion(),
        no_gpu_reason="" if seen else survey.why_none(),
        problems=tuple(survey.problems),
        topology=topology,
    )


def _installed_on_machine(fingerprint: Fingerprint) -> dict[str, Json]:
    """The parts of the stack that belong to the machine and not to a Python environment."""
    facts: dict[str, Json] = {"kernel": fingerprint.host.kernel}
    if fingerprint.gpus:
        facts["driver"] = fingerprint.driver
        facts["vbios"] = [gpu.vbios for gpu in fingerprint.gpus]
    if fingerprint.topology.p2p is not None:
        # A driver upgrade may switch it off, and NCCL then goes through the host's memory: the driver answers for it.
        facts["driver_p2p"] = fingerprint.topology.p2p

    return facts
