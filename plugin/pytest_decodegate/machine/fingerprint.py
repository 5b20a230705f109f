"""The fingerprint of a machine: its GPUs and host, its class, and the provenance of a run on it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import DecodegateError
from ..metric import Json
from .classes import machine_class
from .gpus import Gpu, Survey, hides_all
from .host import Host, read_host
from .nvidia_hardware import nvidia_hardware
from .nvml import NvmlSilence, open_nvml
from .provenance import Provenance, redact
from .stack import REPORTED
from .topology import Topology, read_topology


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A machine as seen by this process.

    no_gpu_reason: why `gpus` is empty, "" otherwise. problems: what NVML refused to say, other than "not supported".
    topology: how the GPUs are connected. nodes: machines like this one that ranks are spread over.
    hidden: GPUs of the machine that CUDA_VISIBLE_DEVICES keeps from this process.
    """

    host: Host
    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    no_gpu_reason: str = ""
    problems: tuple[str, ...] = ()
    topology: Topology = field(default_factory=Topology)
    nodes: int = 1
    hidden: int = 0

    @property
    def link(self) -> str | None:
        """The slowest link between two of the GPUs: "NVLink", "PCIe-SYS" ...; None below two GPUs."""
        return self.topology.link

    @property
    def machine(self) -> dict[str, Json]:
        """What must match between two runs; see `machine.provenance`."""
        return {
            "gpus": [{"name": gpu.sku, **gpu.machine} for gpu in self.gpus],
            "link": self.link,
            **self.host.machine,
            **({"nodes": self.nodes} if self.nodes > 1 else {}),
        }

    @property
    def machine_class(self) -> str:
        """The class of the machine as a whole; a metric that uses a part of it has that part's."""
        return machine_class(self.machine)

    def part(self, gpus: int) -> Fingerprint:
        """The machine as work on its first `gpus` GPUs meets it, with the CPU around them; 0 is work on the CPU."""
        return replace(self, gpus=self.gpus[:gpus], topology=self.topology.part(gpus))

    @property
    def parts(self) -> tuple[Fingerprint, ...]:
        """Everything here that a metric may run on: one GPU, two, ... all of them, and the CPU by itself."""
        return tuple(self.part(count) for count in (*range(1, len(self.gpus) + 1), 0))


def machine(environ: Mapping[str, str] | None = None, nvml: Any = None, root: Path = Path("/")) -> Fingerprint:
    """Take the fingerprint. Without a driver or a visible GPU the machine is a CPU and the reason is kept.

    environ: read for CUDA_VISIBLE_DEVICES, os.environ by default. nvml, root: doubles for tests.
    Raises BadInput when CUDA_VISIBLE_DEVICES names a GPU that is not there, DecodegateError when NVML does not answer
    although there is NVIDIA hardware, or breaks half-way: a broken GPU host must not pass for one without GPUs, unless
    CUDA_VISIBLE_DEVICES hides the GPUs on purpose.
    """
    host = read_host(root)
    setting = (os.environ if environ is None else environ).get("CUDA_VISIBLE_DEVICES")
    binding = open_nvml(nvml)
    if isinstance(binding, NvmlSilence):
        return Fingerprint(host, no_gpu_reason=_without_nvml(binding, setting, nvidia_hardware(root)))

    try:
        found = _survey(host, binding, setting, root)
    except binding.NVMLError as error:
        raise DecodegateError(
            f"NVML failed while the GPUs were read ({error}); see what `nvidia-smi` says, a GPU may need a reset"
        ) from error

    if not (found.gpus or found.hidden or hides_all(setting)) and (hardware := nvidia_hardware(root)):
        raise _broken(hardware, found.no_gpu_reason, "see what `nvidia-smi` and `dmesg` say")

    return found


def _without_nvml(silence: NvmlSilence, setting: str | None, hardware: str) -> str:
    """Why the machine counts as one without GPUs; raises DecodegateError where it is a broken one with them."""
    if hides_all(setting):
        return f"CUDA_VISIBLE_DEVICES={setting!r} hides every GPU; {silence.reason}"
    if silence.no_driver:
        return silence.reason + (f", although this host has {hardware}" if hardware else "")
    if silence.not_loaded and not hardware:
        return silence.reason

    raise _broken(hardware or "an NVIDIA driver", silence.reason, silence.mend)


def _broken(hardware: str, reason: str, mend: str) -> DecodegateError:
    return DecodegateError(
        f"this host has {hardware}, but {reason}; {mend}. It does not pass for a machine without GPUs: to measure on "
        "its CPU on purpose, set CUDA_VISIBLE_DEVICES to nothing"
    )


def provenance(fingerprint: Fingerprint, stack_facts: Mapping[str, Json], environ: Mapping[str, str]) -> Provenance:
    """Sort what is known into the three lists.

    stack_facts: from `stack.agree`, plus "flag:NAME" entries. environ: the environment of the ranks, not yet redacted.
    """
    gpus = fingerprint.gpus
    return Provenance(
        machine=fingerprint.machine,
        stack={
            **_installed_on_machine(fingerprint),
            **{name: value for name, value in stack_facts.items() if name not in REPORTED},
            **{f"env:{name}": value for name, value in redact(environ).items()},
        },
        telemetry={
            # Cards of one SKU differ by 2-5 %, but a baseline tied to the card would end with the first repair.
            "gpus": [{"uuid": gpu.uuid, "bus_id": gpu.bus_id, "name": gpu.name, **gpu.telemetry} for gpu in gpus],
            "topology": fingerprint.topology.facts if gpus else None,
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
        driver=nvml.nvmlSystemGetDriverVersion(),
        no_gpu_reason="" if seen else survey.why_none(),
        problems=tuple(survey.problems),
        topology=topology,
        hidden=len(survey.devices) - len({device.bus_id for device in seen}),
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
