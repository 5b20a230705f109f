"""The table of checks: what is looked at, what each fault costs a measurement, and what mends it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from . import card_checks, host_checks, stack_checks
from .check import CheckOutcome, Grade, HostCheck
from .readings import HostReadings

CHECKS: Final = (
    HostCheck(
        "gpus",
        card_checks.gpus,
        "without its GPUs a host measures stand-ins, or a smaller machine class than its baselines are of",
        "see `nvidia-smi` and `dmesg | grep -i -e xid -e nvrm`; a lost card wants a reset or a reboot",
    ),
    HostCheck(
        "memory-errors",
        card_checks.memory_errors,
        "numbers may be wrong, and a server dies when the page is touched; a row that waits costs nothing yet",
        "sudo nvidia-smi -i {gpus} -r   # with the card idle; if they come back the card is to be exchanged",
        early=True,
    ),
    HostCheck(
        "throttling",
        card_checks.throttling,
        "every metric that is measured meanwhile is INVALID",
        "nvidia-smi -i {gpus} -q -d TEMPERATURE,PERFORMANCE   # then look after fans, airflow and power supply",
        early=True,
    ),
    HostCheck(
        "gpu-processes",
        card_checks.gpu_processes,
        "a stranger beside a measurement makes it INVALID; memory that is held is missing to the server under test",
        "nvidia-smi -i {gpus}   # end what runs there: a server by its own means, else `kill PID`",
        early=True,
    ),
    HostCheck(
        "compute-mode",
        card_checks.compute_mode,
        "ranks of several replicates live on a card at once: all but the first die as they start",
        "sudo nvidia-smi -i {gpus} -c DEFAULT",
        early=True,
    ),
    HostCheck(
        "persistence",
        card_checks.persistence,
        "the driver is set up again for each process: seconds a start, and clocks and settings are lost between",
        "sudo nvidia-smi -i {gpus} -pm 1   # for good: systemctl enable --now nvidia-persistenced",
    ),
    HostCheck(
        "power-limit",
        card_checks.power_limit,
        "clocks fall under load: some percent of compute-bound kernels, and baselines of another limit confound",
        "sudo nvidia-smi -i {gpus} -pl WATTS   # the default is in: nvidia-smi -q -d POWER",
    ),
    HostCheck(
        "power-cap",
        card_checks.caps,
        "clocks follow temperature and the card's own silicon, so that runs differ by a few percent",
        "sudo nvidia-smi -i {gpus} -lgc MHZ   # a clock that the limit can keep, for base and candidate alike",
    ),
    HostCheck(
        "clocks",
        card_checks.clocks,
        "times follow the clock; AllReduce and a decode step take as long as the slowest card",
        "nvidia-smi -i {gpus} -q -d CLOCK,PERFORMANCE   # what limits them; `-rgc` frees a lock",
    ),
    HostCheck(
        "memory-clock",
        card_checks.memory_clock,
        "decoding reads weights from memory: TPOT grows as this clock falls",
        "sudo nvidia-smi -i {gpus} -rmc",
    ),
    HostCheck(
        "clock-lock",
        card_checks.clock_lock,
        "locked clocks repeat well and are not those that users get; baselines of other settings confound",
        "sudo nvidia-smi -i {gpus} -rgc && sudo nvidia-smi -i {gpus} -rac   # or keep them, on both sides",
    ),
    HostCheck(
        "pcie",
        card_checks.pcie,
        "without NVLink the rate of AllReduce between cards falls with the link; loading weights does everywhere",
        "lspci -vv | grep LnkSta   # reseat card or riser of GPU {gpus}, and look at its slot in the BIOS",
    ),
    HostCheck(
        "rates",
        card_checks.rates,
        "all ranks wait for the slowest card in each layer",
        "nvidia-smi topo -m   # is GPU {gpus} on another socket or slot, or hotter than the others?",
    ),
    HostCheck(
        "p2p",
        card_checks.peers,
        "NCCL goes through the host's memory: small AllReduces take two to three times as long",
        "nvidia-smi topo -p2p r   # then: IOMMU off (iommu=pt), ACS off, and a driver that allows it",
    ),
    HostCheck(
        "acs-iommu",
        host_checks.peer_path,
        "traffic between cards goes up to the root complex and back: less bandwidth, more latency of AllReduce",
        "ACS off in the BIOS or by `setpci`, and `iommu=pt` on the kernel's command line",
    ),
    HostCheck(
        "mig",
        card_checks.mig,
        "a slice has a part of the memory's bandwidth and no peers: its figures are not a card's",
        "sudo nvidia-smi -i {gpus} -mig 0",
    ),
    HostCheck(
        "ecc",
        card_checks.ecc,
        "ECC takes some bandwidth of GDDR memory: baselines of the other setting confound, and a reboot changes it",
        "sudo nvidia-smi -i {gpus} -e 1   # or -e 0; then a reboot",
    ),
    HostCheck(
        "numa",
        host_checks.numa,
        "a rank that runs far from its card, or whose pages move, is late by microseconds in each step",
        "sudo sysctl kernel.numa_balancing=0   # and let this process use the cores near each card (taskset, cpuset)",
    ),
    HostCheck(
        "governor",
        host_checks.governor,
        "the thread that launches kernels starts slow: eager times and TPOT spread, collectives wait for it",
        "sudo cpupower frequency-set -g performance",
    ),
    HostCheck(
        "cores",
        host_checks.cores,
        "what waits for a core is late: TPOT and eager times spread, above a few percent INVALID",
        "end what runs beside (top), or widen the quota of the container (--cpus, cpuset)",
    ),
    HostCheck(
        "cpu-steal",
        host_checks.steal,
        "other machines on this hardware take the cores: times of the host spread with what they do",
        "a host of your own, or dedicated cores, from whoever runs the hypervisor",
    ),
    HostCheck(
        "clock-source",
        host_checks.clock_source,
        "each reading of the time takes microseconds: the client and the ranks are late by it",
        "echo tsc | sudo tee /sys/devices/system/clocksource/clocksource0/current_clocksource",
    ),
    HostCheck(
        "room",
        host_checks.room,
        "what was measured cannot be recorded, kernels cannot be compiled, or ranks die as NCCL starts",
        "df -h   # make room; of a container: --shm-size=8g",
        early=True,
    ),
    HostCheck(
        "file-descriptors",
        host_checks.descriptors,
        "a window of many streams fails as the client or the server cannot open a connection",
        "ulimit -n 65536   # for good: LimitNOFILE= of the service, or /etc/security/limits.conf",
        early=True,
    ),
    HostCheck(
        "packages",
        stack_checks.packages,
        "without torch no rank runs; without vLLM neither its kernels nor TPOT of a server of ours",
        "decodegate doctor --python PYTHON_OF_YOUR_VLLM   # or install them where pytest runs",
    ),
    HostCheck(
        "cuda",
        stack_checks.cuda,
        "ranks do not start, or kernels are compiled again by the driver and are not those that were built",
        "install a driver for that CUDA, or the torch of this one: https://pytorch.org/get-started/locally",
    ),
    HostCheck(
        "nccl",
        stack_checks.nccl,
        "another NCCL is measured than the one that you upgraded",
        "look at LD_PRELOAD, LD_LIBRARY_PATH and VLLM_NCCL_SO_PATH; or name the one you mean: nccl=PATH",
    ),
    HostCheck(
        "vllm-torch",
        stack_checks.vllm_torch,
        "vLLM's kernels were built for another torch: they do not load, or fall back to slower ones",
        "install vLLM again with the torch that it pins: `pip install vllm==VERSION` in a fresh environment",
    ),
    HostCheck(
        "client",
        stack_checks.client,
        "no server can be measured from here",
        "a proxy for 127.0.0.1 or a firewall in between? NO_PROXY=127.0.0.1",
    ),
    HostCheck(
        "baselines",
        stack_checks.baselines,
        "every metric ends NO_BASELINE; comparing two stacks in turn (decodegate upgrade) needs none",
        "pytest -m perf --perf-record   # on the stack that runs today",
    ),
)


def run_checks(readings: HostReadings) -> list[CheckOutcome]:
    """All checks of `readings`."""
    return [check.run(readings) for check in CHECKS]


def early_failures(readings: HostReadings) -> Iterator[CheckOutcome]:
    """What speaks against starting a perf run at all, of the checks that cost nothing."""
    for check in CHECKS:
        if check.early and (outcome := check.run(readings)).grade is Grade.FAIL:
            yield outcome
