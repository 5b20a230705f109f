"""The host around the GPUs: CPU, memory policy and kernel, read from /proc and /sys."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from ..metric import Json

_NOISE = re.compile(r"\((?:R|TM|C)\)|@.*|\bCPU\b|\bProcessor\b|\b\d+-Core\b|\bwith Radeon.*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Host:
    """The machine apart from its GPUs.

    machine: must match between two runs. kernel: an upgrade may change it. telemetry: reported only.
    """

    cpu: str
    cores: int
    kernel: str
    machine: dict[str, Json]
    telemetry: dict[str, Json]


def read_host(root: Path = Path("/"), cores: int | None = None) -> Host:
    """Read the host below `root`; `cores` defaults to those this process may run on."""
    info = _cpuinfo(text_of(root / "proc/cpuinfo"))
    cpu = info.get("model name") or platform.machine()
    cores = cores or len(os.sched_getaffinity(0))
    identity = "/".join(info[key] for key in ("cpu family", "model", "stepping") if key in info)

    return Host(
        cpu=cpu,
        cores=cores,
        kernel=text_of(root / "proc/sys/kernel/osrelease") or platform.release(),
        machine={
            "cpu": cpu,
            # Clouds sell different chips under one name such as "Intel Xeon Processor".
            "cpu_family_model_stepping": identity or None,
            "cores": cores,
            # A container may have fewer CPUs than its affinity says; the rank's Python thread feels it.
            "cpu_quota_cores": _quota_cores(text_of(root / "sys/fs/cgroup/cpu.max")),
            # These three moved TPOT with unchanged kernels; they are policy, not the upgrade under test.
            "governor": text_of(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or None,
            "transparent_hugepages": _chosen(text_of(root / "sys/kernel/mm/transparent_hugepage/enabled")),
            "numa_nodes": len(list(root.glob("sys/devices/system/node/node[0-9]*"))) or None,
        },
        telemetry={
            # A few MB less after a kernel upgrade is not another machine; neither is another host name.
            "memory_gb": _memory_gb(text_of(root / "proc/meminfo")),
            "host": platform.node(),
            "container": _in_container(root),
        },
    )


def short_cpu(model: str) -> str:
    """A CPU model as a part of a file name: "Intel(R) Xeon(R) CPU E5-2690 v3 @ 2.60GHz" -> "Intel-Xeon-E5-2690-v3"."""
    return file_safe(_NOISE.sub(" ", model)) or "unknown"


def file_safe(name: str, kept: str = "._") -> str:
    """`name` with everything but letters, digits and the marks `kept` folded into single dashes; never hidden."""
    return re.sub(rf"[^A-Za-z0-9{re.escape(kept)}]+", "-", name).strip("-.")


def text_of(path: Path) -> str:
    """What a file of the kernel says, without the white space around it; "" where there is none."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _cpuinfo(text: str) -> dict[str, str]:
    first_cpu = text.split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in first_cpu.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _quota_cores(text: str) -> float | None:
    quota, _, period = text.partition(" ")
    return round(int(quota) / int(period), 2) if quota.isdigit() and period.isdigit() else None


def _chosen(text: str) -> str | None:
    match = re.search(r"\[(\w+)\]", text)
    return match[1] if match else None


def _memory_gb(text: str) -> int | None:
    match = re.search(r"^MemTotal:\s+(\d+) kB", text, re.MULTILINE)
    return round(int(match[1]) * 1024 / 1e9) if match else None


def _in_container(root: Path) -> bool:
    marks = (root / ".dockerenv", root / "run/.containerenv")
    cgroup = text_of(root / "proc/1/cgroup")
    return any(mark.exists() for mark in marks) or bool(re.search(r"docker|kubepods|containerd|lxc", cgroup))
