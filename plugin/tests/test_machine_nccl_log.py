"""Logs as NCCL writes them: each line is a format string of its sources with values put in, the file named beside."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.machine.nccl_log import NcclCall, NcclLog, contract, read_nccl_log

PREFIX = "node7:4711:4799 [0] NCCL INFO "
"""debug.cc, ncclDebugLog: "%s:%d:%d " host, pid, tid, then "[%d] NCCL INFO "; the same in 2.21 and in 2.31."""

V2_28_9 = [
    "NCCL version 2.28.9+cuda13.0",  # init.cc, VERSION_STRING
    "NCCL_PROTO set by environment to LL",  # misc/param.cc and graph/tuning.cc, ENV
    "ncclCommInitRankConfig comm 0x55d0 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 18000 commId 0x9 - Init START",
    "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read",  # transport/p2p.cc, p2pSendSetup
    "Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
    "24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels, 32 p2p channels per peer",  # init.cc
    "ncclCommInitRankConfig comm 0x55d0 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 18000 commId 0x9 - Init COMPLETE",
    "AllReduce: 14336 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}",  # enqueue.cc, scheduleCollTasksToPlan
]
V2_31 = [
    "NCCL version 2.31.2+cuda13.1",
    "NCCL git version master 493c241a",  # init.cc, showVersion, new in 2.31
    # init.cc, ncclCommInitRankFunc: "[Rank %d] " is new in 2.31
    "[Rank 1] ncclCommInitRank comm 0x1 rank 1 nranks 8 cudaDev 1 nvmlDev 1 busId 2a000 commId 0x7 - Init START",
    "ncclCommInitRank comm 0x1 rank 1 nranks 8 cudaDev 1 nvmlDev 1 busId 2a000 commId 0x7 - Init COMPLETE",
    "Channel 03 : 1[1] -> 2[2] via SHM/direct",  # transport/shm.cc; below 2.31 "via SHM/direct/CE"
    "Channel 00/0 : 7[7] -> 0[0] [receive] via NET/IB/0/GDRDMA",  # transport/net.cc, recvSetup
    "Channel 00/0 : 1[1] -> 0[0] [send] via NET/Socket/0(1)/Shared",  # transport/net.cc, sendSetup through a proxy rank
    "Best tuning, algorithm, TREE, protocol, LL128",  # enqueue.cc, new in 2.31
    "AllReduce: 14336 Bytes -> Algo TREE proto LL128 channel{Lo..Hi}={0..7}",
    # scheduler/symmetric_sched.cc, ncclSymmetricTaskScheduler
    "AllReduce [Symmetric]: 14336 Bytes -> Kernel AllReduce_AGxLL_R nchannels 4 nthreads 512 nWorks 1",
    "AllGather [Copy Engine]: 7340032 Bytes -> cudaMemcpy; CE synchronization with NVLS",  # ce_coll.cc
]


def log(*messages: str, prefix: str = PREFIX) -> str:
    return "".join(f"{prefix}{message}\n" for message in messages)


def test_a_log_of_2_28() -> None:
    assert read_nccl_log(log(*V2_28_9)) == NcclLog(
        versions=("2.28.9",),
        nranks=(2,),
        transports=("P2P/CUMEM",),
        channels={"collectives": 24, "nvls": 16, "p2p": 32, "p2p_per_peer": 32},
        issued=(NcclCall("AllReduce", 14336, "RING", "LL", 2),),
    )


def test_a_log_of_2_31() -> None:
    assert read_nccl_log(log(*V2_31)) == NcclLog(
        versions=("2.31.2",),
        nranks=(8,),
        transports=("NET/IB/GDRDMA", "NET/Socket", "SHM/direct"),
        channels={},
        issued=(
            NcclCall("AllReduce", 14336, "TREE", "LL128", 8),
            NcclCall("AllReduce", 14336, "SYMMETRIC", "AllReduce_AGxLL_R", 4),
            NcclCall("AllGather", 7340032, "COPY_ENGINE", "none", None),
        ),
    )


@pytest.mark.parametrize(
    ("line", "function"),
    [
        ("AllReduce: 14336 Bytes -> Algo 1 proto 0 time 12.320000", "AllReduce"),  # 2.23.4, enqueue.cc, topoGetAlgoInfo
        ("14336 Bytes -> Algo 1 proto 0 time 12.320000", ""),  # 2.21.5, enqueue.cc
    ],
)
def test_old_numbers_are_the_names_of_today(line: str, function: str) -> None:
    (issued,) = read_nccl_log(log(line)).issued
    assert issued == NcclCall(function, 14336, "RING", "LL", None)
    assert contract([issued]) == {"nccl_algorithm": "RING", "nccl_protocol": "LL"}


@pytest.mark.parametrize(
    ("line", "transport"),
    [
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer/read", "P2P/direct pointer"),
        ("Channel 00/1 : 0[0] -> 1[1] via P2P/IPC/CE", "P2P/IPC"),
        ("Channel 00/0 : 0[0] -> 3[3] via P2P/indirect/1[1]/read", "P2P/indirect"),
        ("Channel 00 : 0[0] -> 1[1] via SHM/CE/direct", "SHM/CE"),
    ],
)
def test_transports_by_kind(line: str, transport: str) -> None:
    assert read_nccl_log(log(line)).transports == (transport,)


def test_a_version_without_the_prefix_and_lines_with_a_timestamp() -> None:
    # The level VERSION has no prefix; NCCL_DEBUG_TIMESTAMP_LEVELS puts "[%F %T] " before it.
    stamped = log(V2_28_9[-1], prefix=f"[2026-11-29 21:47:04] {PREFIX}")
    found = read_nccl_log(f"NCCL version 2.29.7+cuda13.0\n{stamped}")
    assert found.versions == ("2.29.7",)
    assert found.issued == (NcclCall("AllReduce", 14336, "RING", "LL", 2),)


def test_two_copies_in_one_file_are_both_read() -> None:
    found = read_nccl_log(log(V2_28_9[0]) + "\0" * 300 + log(*V2_31))
    assert found.versions == ("2.28.9", "2.31.2")


@pytest.mark.parametrize("calls", [1, 122])
def test_the_collective_of_the_burst_names_the_metric_and_not_what_is_exchanged_beside_it(calls: int) -> None:
    barrier = "AllReduce: 2 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}"
    assert contract(read_nccl_log(log(barrier, *[V2_28_9[-1]] * calls, *[barrier] * 9)).issued) == {
        "nccl_algorithm": "RING",
        "nccl_protocol": "LL",
        "nccl_channels": 2,
    }


def test_one_size_issued_in_several_ways_says_all_of_them() -> None:
    issued = read_nccl_log(log(V2_28_9[-1], V2_31[8], V2_31[9])).issued
    assert contract(issued) == {
        "nccl_algorithm": "RING+SYMMETRIC+TREE",
        "nccl_protocol": "AllReduce_AGxLL_R+LL+LL128",
        "nccl_channels": "2+4+8",
    }


@given(st.text())
def test_what_is_no_log_says_nothing(text: str) -> None:
    found = read_nccl_log(text)
    assert found == NcclLog((), (), (), {}, ())
    assert contract(found.issued) == {}


strange = st.text(st.characters(exclude_categories=["C", "Zl", "Zp"])).filter(lambda line: "NCCL" not in line)


@given(st.lists(st.tuples(st.sampled_from(V2_28_9 + V2_31), strange)))
def test_unknown_lines_between_known_ones_change_nothing(pairs: list[tuple[str, str]]) -> None:
    alone = log(*(known for known, _ in pairs))
    mixed = log(*(line for pair in pairs for line in pair))
    assert read_nccl_log(mixed) == read_nccl_log(alone)


@given(st.text(alphabet="0123456789 Bytes->Algproto{Lo..Hi}=:[]/via P2PChannel", max_size=200))
def test_almost_a_line_is_no_crash(text: str) -> None:
    read_nccl_log(PREFIX + text)


@given(
    st.sampled_from(["AllReduce", "AllGather", "ReduceScatter"]),
    st.integers(1, 1 << 40),
    st.sampled_from(["TREE", "RING", "NVLS", "NVLS_TREE", "PAT", "COLLNET_DIRECT"]),
    st.sampled_from(["LL", "LL128", "SIMPLE"]),
    st.integers(0, 31),
    st.integers(0, 31),
)
def test_what_is_written_is_read_back(
    function: str, size: int, algorithm: str, protocol: str, low: int, more: int
) -> None:
    line = f"{function}: {size} Bytes -> Algo {algorithm} proto {protocol} channel{{Lo..Hi}}={{{low}..{low + more}}}"
    assert read_nccl_log(log(line)).issued == (NcclCall(function, size, algorithm, protocol, more + 1),)


@pytest.mark.parametrize(
    ("via", "transport"),
    [
        ("NET/AWS Libfabric/0/GDRDMA", "NET/AWS Libfabric/GDRDMA"),  # NVIDIA/nccl#527
        ("NET/AWS Libfabric/1", "NET/AWS Libfabric"),
        ("NET/IBext_v8/2(3)/GDRDMA/Shared", "NET/IBext_v8/GDRDMA"),
        ("NET/IB/0/GDRDMA(PCI)", "NET/IB/GDRDMA(PCI)"),
        ("P2P/direct pointer", "P2P/direct pointer"),
    ],
)
def test_what_goes_around_the_memory_of_the_host(via: str, transport: str) -> None:
    assert read_nccl_log(log(f"Channel 00/0 : 19[201d0] -> 26[201c0] [send] via {via}")).transports == (transport,)


@pytest.mark.parametrize("prefix", ["[1,0]<stdout>:", "0: ", "(Worker_TP0 pid=9) ", "2026-01-02T03:04:05Z ", "\x1b[0m"])
@pytest.mark.parametrize("ending", ["", "\r", "\x1b[0m"])
def test_lines_behind_prefixes(prefix: str, ending: str) -> None:
    lines = [V2_28_9[0], *(f"{PREFIX}{message}" for message in V2_28_9[1:])]
    text = "".join(f"{prefix}{line}{ending}\n" for line in lines)
    assert read_nccl_log(text) == read_nccl_log(log(*V2_28_9))
