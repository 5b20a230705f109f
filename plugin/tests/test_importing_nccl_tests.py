"""The JSON and the table of nccl-tests, in the formats of src/util.cu of its 2.19.6."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from foreign import PUBLIC, imported, nccl_json, source, timed
from hypothesis import given
from hypothesis import strategies as st
from nccl_printing import FACTORS, Printing

from pytest_decodegate.errors import BadInput
from pytest_decodegate.importing.baseline import UserFacts, joined
from pytest_decodegate.metric import Json

SMALL = (14336, 11.25, 11.5)
LARGE = (28672, 12.0, 12.5)
ROWS = st.lists(
    st.tuples(st.sampled_from([2**n for n in range(4, 36)]), st.floats(0.5, 1e7), st.floats(0.5, 1e7)),
    min_size=1,
    max_size=4,
    unique_by=lambda row: row[0],
)


def points(text: str | bytes, **user: Any) -> dict[str, float]:
    content = text.encode() if isinstance(text, str) else text
    return {name: one.sessions[0].point for name, one in imported(content, user=UserFacts(**user)).items()}


def worlds(text: str | bytes, **user: Any) -> set[str]:
    return {part for name in points(text, **user) for part in name.rstrip("]").split(",") if "world=" in part}


def test_the_json() -> None:
    found = joined([source(nccl_json())], UserFacts())
    out, inside = found.metrics.values()
    assert out.metric.name == "nccl_tests_all_reduce[bytes=14336,type=bfloat16,world=2,op=sum]"
    assert inside.metric.name == "nccl_tests_all_reduce_in_place[bytes=14336,type=bfloat16,world=2,op=sum]"
    assert (out.sessions[0].point, inside.sessions[0].point) == pytest.approx((11.5e-6, 10.5e-6))
    assert out.metric.contract["formula"] == "nccl_tests_time_v1"
    assert out.sessions[0].recorded.startswith("2026-01-02T03:04:05")
    assert found.provenance.stack == {
        "nccl": "2.28.9",
        "driver": "unknown",
        "env:NCCL_ALGO": "Ring",
        "env:NCCL_PROTO": "LL",
    }
    assert found.provenance.machine == {"gpus": [{"name": "NVIDIA H200"}, {"name": "NVIDIA H200"}]}
    assert found.published == "nccl-tests: result.json"


def test_the_table() -> None:
    found = joined([source(Printing(graph=10).table(SMALL, LARGE).encode())], UserFacts())
    values = [one.sessions[0].point for one in found.metrics.values()]
    assert values == pytest.approx([11.25e-6, 11.5e-6, 12.0e-6, 12.5e-6])
    contract = next(iter(found.metrics.values())).metric.contract
    assert (contract["iterations"], contract["graph"]) == (20, True)
    assert found.provenance.stack["nccl"] == "2.28.9"
    assert next(iter(found.metrics)) == "nccl_tests_all_reduce[bytes=14336,type=bfloat16,world=2,op=sum]"


@pytest.mark.parametrize(("gpus", "processes"), [(4, 1), (8, 1), (1, 8), (4, 2)])
def test_json_has_a_device_for_each_process_of_several_gpus(gpus: int, processes: int) -> None:
    found = joined([source(nccl_json(gpus=gpus, processes=processes))], UserFacts())
    assert all(f"world={gpus * processes}," in name for name in found.metrics)
    assert found.provenance.machine["gpus"] == [{"name": "NVIDIA H200"}] * gpus * processes


@given(st.integers(1, 64), st.integers(1, 8), st.sampled_from(sorted(FACTORS)), ROWS)
def test_any_table_is_read_with_its_ranks(processes: int, gpus: int, collective: str, rows: list[Any]) -> None:
    ranks = processes * gpus
    printing = Printing(collective, ranks=ranks, gpus=gpus)
    read = points(printing.table(*rows))
    assert {name.split("[")[0].removesuffix("_in_place") for name in read} == {f"nccl_tests_{collective}"}
    assert all(f"world={ranks}," in name for name in read)
    assert list(read.values()) == pytest.approx([time / 1e6 for row in rows for time in row[1:]], rel=0.05, abs=6e-9)


@given(
    collective=st.sampled_from(sorted(FACTORS)),
    said=st.integers(1, 20),
    true=st.integers(1, 20),
    gpus=st.sampled_from([1, 2, 4]),
    rows=ROWS,
    as_json=st.booleans(),
)
def test_ranks_and_bandwidths_agree_or_the_file_is_refused(
    collective: str, said: int, true: int, gpus: int, rows: list[Any], as_json: bool
) -> None:
    ranks = said * gpus
    if as_json:
        ratio = FACTORS[collective](true)
        results = [
            {"size": size, "type": "float", "redop": "sum", "out_of_place": timed(size, out, ratio)}
            for size, out, _ in rows
        ]
        content = nccl_json(gpus=gpus, processes=said, args=[f"{collective}_perf"], results=results)
        tolerance = 2e-6
    else:
        content = Printing(collective, ranks=ranks, gpus=gpus, bandwidth_ranks=true).table(*rows).encode()
        tolerance = 0.005
    try:
        read = points(content)
    except BadInput as error:
        refused = str(error)
    else:
        refused = ""

    if refused:
        assert ranks != true
        assert "busbw/algbw" in refused
        return

    # So few digits were printed that both are possible, or the collective has the same factor on any number of ranks.
    assert all(f"world={ranks}," in name for name in read)
    for size, *times in rows:
        for time in times[: 1 if as_json else 2]:
            algbw = size / time / 1e3
            # Both are off by half of their last digit, which "%6.0e" leaves with one; the check allows as much again.
            factor = FACTORS[collective](ranks)
            slack = 2.1 * (tolerance + 0.06 * algbw * (algbw > 999)) * (1 + factor) + 2e-4 * algbw
            assert abs(FACTORS[collective](ranks) - FACTORS[collective](true)) * algbw <= slack


def test_bandwidths_of_other_ranks_are_quoted() -> None:
    with pytest.raises(BadInput, match=r"line 1\d: busbw/algbw is 1\.749 .*all_reduce on 4 ranks has 1\.5"):
        points(Printing(ranks=4, bandwidth_ranks=8).table((2**20, 100.0, 100.0)))


def test_a_number_under_a_wrong_title_is_noticed() -> None:
    text = Printing().table((2**20, 100.0, 100.0)).replace(" 100.00 ", " 170.00 ", 1)
    with pytest.raises(BadInput, match=r"1048576 bytes in 170 us are 6\.168 GB/s, but algbw is 10.49"):
        points(text)


@given(
    st.floats(0.5, 9e9),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["0", "N/A", "0e+00"]),
)
def test_any_columns_are_read(time: float, per_iteration: bool, stamped: bool, wrong: str) -> None:
    stamp = "2026-01-02 03:04:05" if stamped else ""
    printing = Printing(per_iteration=per_iteration, stamp=stamp, wrong=wrong)
    metrics = imported(printing.table((2**24, time, 2 * time)).encode())
    values = [one.sessions[0].point for one in metrics.values()]
    assert values == pytest.approx([time / 1e6, 2 * time / 1e6], rel=0.05, abs=6e-9)
    assert {one.sessions[0].recorded[:19] for one in metrics.values()} == {"2026-01-02T03:04:05" if stamped else ""}


NOISE = {
    "Open MPI": "[1,0]<stdout>:",
    "SageMaker": "[1,mpirank:0,algo-1]<stdout>:",
    "PRRTE": "[prterun-node-a-4711@1,0]<stdout>: ",
    "srun -l": "0: ",
    "srun -l of many": " 0: ",
    "MPICH": "[0] ",
    "a pod": "2026-01-02T03:04:05.678901234Z worker-0 ",
}


@pytest.mark.parametrize("prefix", NOISE.values(), ids=NOISE)
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_prefixes_colours_and_line_ends_are_no_part_of_a_table(prefix: str, ending: str) -> None:
    clean = Printing(ranks=4).table(SMALL, LARGE)
    noisy = "".join(f"{prefix}\x1b[32m{line}\x1b[0m{ending}" for line in clean.splitlines())
    assert points(noisy) == points(clean)


@pytest.mark.parametrize("tag", ["[1,0]<stdout>:", "[prterun-a-1@1,0]<stdout>: "])
def test_open_mpi_tags_every_chunk_of_a_row(tag: str) -> None:
    clean = Printing(ranks=4)
    parts = clean.parts([SMALL, LARGE])
    head, rows, foot = parts[0], parts[1:-1], parts[-1]
    tagged = [
        "".join(f"{tag}{line}\n" for line in head.splitlines()),
        *[f"{tag}{part}" for part in rows if part != "\n"],
    ]
    text = "".join(part if index == 0 or index % 3 else f"{part}\n" for index, part in enumerate(tagged))
    assert points(text + foot) == points(clean.table(SMALL, LARGE))


@pytest.mark.parametrize("label", ["0: ", "00: "])
def test_srun_labels_every_chunk_on_a_line_of_its_own_or_inside(label: str) -> None:
    printing = Printing(ranks=4)
    clean, parts = printing.table(SMALL, LARGE), printing.parts([SMALL, LARGE])
    broken = "\n".join(part.rstrip("\n") for part in parts if part != "\n")
    assert points("".join(f"{label}{line}\n" for line in broken.splitlines())) == points(clean)

    inside = "".join(label.rstrip() + part if part.startswith("  ") and "sum" not in part else part for part in parts)
    assert points("".join(f"{label}{line}\n" for line in inside.splitlines())) == points(clean)


DEBUG = st.sampled_from(
    [
        "node-a:4711:4720 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n",
        "[2026-01-02 03:04:05] node-a:4711:4720 [0] NCCL INFO Connected all rings\n",
        "node-a:4711:4720 [0] NCCL INFO a\nnode-a:4712:4721 [1] NCCL INFO b\n",
        "\n[2026-01-02 03:04:05] node-a:4711:4720 [0] transport/net.cc:42 NCCL WARN slow\n",
    ]
)


@given(st.data())
def test_debug_lines_that_cut_rows_are_left_out(data: st.DataObject) -> None:
    printing = Printing(ranks=4)
    parts = printing.parts([SMALL, LARGE])
    for _ in range(data.draw(st.integers(1, 3))):
        parts.insert(data.draw(st.integers(1, len(parts) - 1)), data.draw(DEBUG))

    assert points("".join(parts)) == points(printing.table(SMALL, LARGE))


def test_a_host_that_begins_with_a_digit_is_told_from_the_root() -> None:
    printing = Printing(ranks=2)
    parts = printing.parts([SMALL])
    parts.insert(2, "10-0-0-1:47:48 [0] NCCL INFO x\n")
    text = "".join(parts).replace("node-a", "10-0-0-1")
    assert points(text) == points(printing.table(SMALL))


@given(st.data())
def test_damaged_tables_are_refused_or_what_they_say_is_right(data: st.DataObject) -> None:
    printing = Printing(
        data.draw(st.sampled_from(sorted(FACTORS))),
        ranks=data.draw(st.integers(2, 9)),
        per_iteration=data.draw(st.booleans()),
        stamp=data.draw(st.sampled_from(["", "2026-01-02 03:04:05"])),
    )
    rows = [(2**22, 100.0, 170.0), (2**23, 181.0, 290.0)]
    clean = printing.table(*rows)
    at = data.draw(st.integers(0, len(clean)))
    damage = data.draw(st.sampled_from(["end", "line", "newline", "noise"]))
    if damage == "end":
        text = clean[:at]
    elif damage == "line":
        # Nothing but the lines of ranks says how many took part in a collective that has one factor on all of them.
        kept = clean.splitlines(keepends=True)
        del kept[data.draw(st.sampled_from([n for n, line in enumerate(kept) if "Rank" not in line]))]
        text = "".join(kept)
    else:
        text = clean[:at] + ("\n" if damage == "newline" else "libfabric: warning\n") + clean[at:]

    right = points(clean)
    try:
        read = points(text)
    except BadInput as error:
        read, message = {}, str(error)
    else:
        message = "0.json"

    assert "0.json" in message
    assert read.items() <= right.items()


def test_a_replay_has_one_half() -> None:
    parts = Printing().parts([SMALL])
    parts[2] = " " * 32
    (name,) = points("".join(parts))
    assert "in_place" in name


def test_a_row_of_one_half_that_was_cut_is_no_replay() -> None:
    parts = Printing().parts([SMALL])
    parts[3] = ""
    with pytest.raises(BadInput, match=r"line 12: '14336 .*' has 9 of 13 columns: the row is cut"):
        points("".join(parts))


def test_a_table_in_place_only_as_rccl_tests_prints_it() -> None:
    text = Printing().table(SMALL).replace("out-of-place            ", "")
    lines = text.splitlines()
    titles = next(index for index, line in enumerate(lines) if "algbw" in line)
    lines[titles] = "#       size         count      type   redop    root     time   algbw   busbw #wrong"
    row = next(index for index, line in enumerate(lines) if line.startswith("       14336"))
    lines[row] = lines[row][: 52 + 33]
    (name,) = points("\n".join(lines))
    assert name.startswith("nccl_tests_all_reduce_in_place[")


def test_tables_before_2_13_have_fewer_titles_and_a_deviation() -> None:
    text = """\
# nThread 1 nGpus 2 minBytes 8 maxBytes 128 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
#   Rank  0 Pid  47 on node-a device  0 [0x1b] A100
#   Rank  1 Pid  47 on node-a device  1 [0x1c] A100
#
#                                                     out-of-place                       in-place
#       size         count      type     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        131072     float   100.00   10.49    5.24  1e-06   100.00   10.49    5.24    N/A
"""
    assert points(text, collective="all_gather") == {
        "nccl_tests_all_gather[bytes=1048576,type=float,world=2]": 1e-4,
        "nccl_tests_all_gather_in_place[bytes=1048576,type=float,world=2]": 1e-4,
    }
    with pytest.raises(BadInput, match=r"column 'error' is '1e\+01\*': the collective gave wrong data"):
        points(text.replace("1e-06", "1e+01*"), collective="all_gather")


def test_tables_follow_each_other() -> None:
    sizes = (2**22, 100.0, 170.0)
    text = Printing("all_reduce", ranks=4).table(sizes) + Printing("all_gather", ranks=2, dtype="float").table(sizes)
    assert list(points(text)) == [
        "nccl_tests_all_reduce[bytes=4194304,type=bfloat16,world=4,op=sum]",
        "nccl_tests_all_reduce_in_place[bytes=4194304,type=bfloat16,world=4,op=sum]",
        "nccl_tests_all_gather[bytes=4194304,type=float,world=2,op=sum]",
        "nccl_tests_all_gather_in_place[bytes=4194304,type=float,world=2,op=sum]",
    ]


def test_a_command_that_ran_again_gives_several_sessions() -> None:
    metrics = imported((Printing().table(SMALL) + Printing().table((14336, 12.0, 13.0))).encode())
    for one in metrics.values():
        assert len({session.id for session in one.sessions}) == len(one.sessions) == 2


def test_groups_have_their_own_size() -> None:
    metrics = imported(Printing(ranks=4, groups=2).table(SMALL).encode())
    assert all("world=4," in name for name in metrics)
    assert {one.metric.contract["groups"] for one in metrics.values()} == {2}


@pytest.mark.parametrize(
    "program", ["./build/all_reduce_perf", "all_reduce_perf_mpi", r"C:\nccl\all_reduce_perf.exe", "all_reduce"]
)
def test_a_collective_by_any_name_of_its_program(program: str) -> None:
    assert all(name.startswith("nccl_tests_all_reduce") for name in points(nccl_json(args=[program])))


def test_a_table_without_a_name_is_given_one() -> None:
    text = Printing(named=False).table(SMALL)
    with pytest.raises(BadInput, match=r"line 2: no line '# Collective test starting: NAME'.*--collective all_reduce"):
        points(text)

    assert points(text, collective="all_reduce") == points(Printing().table(SMALL))
    with pytest.raises(BadInput, match="a second table without the name of its collective: split the file"):
        points(text + text, collective="all_reduce")
    with pytest.raises(BadInput, match=r"busbw/algbw is 1 .*all_gather on 2 ranks has 0.5"):
        points(Printing(named=False).table((2**22, 100.0, 100.0)), collective="all_gather")


def without(mark: str, text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if mark not in line)


RESULT = {"size": 8, "type": "float", "redop": "sum"}
CUT = Printing().table(SMALL).partition("   11.50")[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (nccl_json(results=[]), "no results; was the run cut short"),
        (Printing().table()[:94], "no results; was the run cut short"),
        (nccl_json(args=[]), r"field 'args' is \[\]: the command line"),
        (nccl_json(args=["my_perf"]), "collective 'my' .* is unknown"),
        (nccl_json(errors=["Test NCCL failure"]), r"field 'errors' is \['Test NCCL failure'\]: the run failed"),
        (nccl_json(out_of_bounds={"count": 5, "okay": "false"}), "out_of_bounds: field 'okay' is 'false'"),
        (nccl_json(average_bus_bandwidth={"okay": "false"}), "average_bus_bandwidth: field 'okay' is 'false'"),
        (nccl_json(results=[{**RESULT, "out_of_place": {"cpu_time": 1}}]), "without -C"),
        (
            nccl_json(results=[{**RESULT, "out_of_place": {"time": 1, "nwrong": 3}}]),
            r"results\[0\], out_of_place: field 'nwrong' is 3: the collective gave wrong data",
        ),
        (Printing(wrong="2.5e+07").table(SMALL), r"line 12: column '#wrong' is '2.5e\+07'"),
        (Printing().table(SMALL).replace("  11.25", "   0.00"), "line 12: column 'time' is '0.00'"),
        (Printing().table(SMALL, SMALL), r"line 13: .* occurs twice, first in line 12"),
        (Printing().table(SMALL).replace(": 0 OK", ": 5 FAILED"), "Out of bounds values : 5 FAILED': the run failed"),
        (Printing().table(SMALL).replace(": 1.2 ", ": 1.2 FAILED"), "Avg bus bandwidth .* the run failed"),
        (Printing().table(SMALL) + "# error: unhandled cuda error\n", "line 17: '# error: unhandled cuda error'"),
        (CUT + "\nnode-a: Test NCCL failure all_reduce.cu:44 'x'\n", "has 9 of 13 columns"),
        (
            Printing().table() + "node-a: Test NCCL failure a.cu:44 'x'\n",
            "Test NCCL failure a.cu:44 .*: the run failed",
        ),
        (Printing().table(SMALL).replace("  time", "lapse"), "column 'lapse' is unknown"),
        (Printing().table(SMALL).replace("busbw", ""), "no column 'busbw'"),
        (Printing().table(SMALL).replace("# " + "size".rjust(10), "# "), "stands under no titles"),
        (Printing().table(SMALL).replace("concluded: all_", "concluded: "), "'reduce_perf' concluded, but"),
        (
            "".join(f"[1,{rank}]<stdout>:{line}\n" for line in Printing().table(SMALL).splitlines() for rank in (0, 1)),
            "processes 0, 1 each printed a table: this nccl-tests was built without MPI",
        ),
        (Printing().table() + Printing().table(SMALL), r"line 2: no results"),
        (
            without("Rank  7", Printing("reduce", ranks=8, gpus=8).table(SMALL)),
            "8 ranks each, .* give the whole",
        ),
    ],
)
def test_wrong_results_are_named(content: bytes | str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        points(content)


PUBLIC_RIGHT: dict[str, tuple[dict[str, str], int, dict[str, float]]] = {
    "two_collectives.txt": (
        {},
        40,
        {
            "alltoall[bytes=33554432,type=double,world=2]": 1282.93e-6,
            "alltoall_in_place[bytes=17179869184,type=double,world=2]": 631396e-6,
            "sendrecv[bytes=33554432,type=double,world=2,op=sum]": 2513.89e-6,
            "sendrecv_in_place[bytes=17179869184,type=double,world=2,op=sum]": 1262569e-6,
        },
    ),
    "five_collectives.log": (
        {},
        20,
        {
            "all_reduce[bytes=33554432,type=double,world=2,op=sum]": 837.47e-6,
            "sendrecv_in_place[bytes=536870912,type=double,world=2,op=sum]": 12299.3e-6,
        },
    ),
    "alltoall_b8_size0.txt": (
        {},
        52,
        {
            "alltoall[bytes=64,type=float,world=16,root=0]": 89.27e-6,
            "alltoall_in_place[bytes=2147483648,type=float,world=16,root=0]": 24829e-6,
        },
    ),
    "mpi_prefix.txt": (
        {"collective": "all_reduce"},
        64,
        {
            "all_reduce[bytes=8,type=float,world=16,op=sum]": 85.70e-6,
            "all_reduce_in_place[bytes=17179869184,type=float,world=16,op=sum]": 65990e-6,
        },
    ),
    "rccl.txt": (
        {},
        4,
        {
            "all_reduce[bytes=8388608,type=float,world=8,op=sum]": 92.0e-6,
            "all_reduce_in_place[bytes=536870912,type=float,world=8,op=sum]": 2899.0e-6,
        },
    ),
    "g8.json": (
        {},
        12,
        {
            "all_reduce[bytes=8192,type=float,world=8,op=sum]": 14.9e-6,
            "all_reduce_in_place[bytes=8388608,type=float,world=8,op=sum]": 137.592e-6,
        },
    ),
}
"""Public file -> what the user says of it, its metrics, and some of them with their seconds, read by hand."""


@pytest.mark.parametrize("name", PUBLIC_RIGHT)
def test_public_files_are_imported(name: str) -> None:
    told, count, right = PUBLIC_RIGHT[name]
    read = points((PUBLIC / name).read_bytes(), **told)
    assert len(read) == count
    assert {f"nccl_tests_{metric}": pytest.approx(seconds) for metric, seconds in right.items()}.items() <= read.items()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cputime_table.txt", "line 16: column 'cputime': run without -C"),
        ("errors_and_out_of_bounds.json", r"field 'errors' is \['Test NCCL failure'\]"),
        ("mpi_prefix.txt", "prints since June 2025"),
        # These two were made from one file of 8 ranks: its bandwidths still say so.
        ("g4.json", "all_reduce on 4 ranks has 1.5"),
        ("alltoall_b8_size0.json", "alltoall on 8 ranks has 0.875"),
    ],
)
def test_public_files_are_refused(name: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        points((PUBLIC / name).read_bytes())


def test_public_facts_of_the_machine() -> None:
    found = joined([source((PUBLIC / "rccl.txt").read_bytes())], UserFacts())
    assert found.provenance.stack["nccl"] == "RCCL 2.28.3-gfx942-rccl:0000000"
    unnamed: list[Json] = [{"name": None}] * 7
    assert found.provenance.machine["gpus"] == [{"name": "AMD Instinct MI300X"}, *unnamed]
    assert (
        joined([source((PUBLIC / "alltoall_b8_size0.txt").read_bytes())], UserFacts()).provenance.stack["nccl"]
        == "2.18.3"
    )


def test_sizes_of_zero_are_skipped_in_json() -> None:
    document: Mapping[str, Any] = json.loads(nccl_json())
    (result,) = document["results"]
    zero = {**result, "size": 0}
    assert points(nccl_json(results=[zero, zero, result])) == points(nccl_json())


def test_the_card_of_a_larger_run_is_that_of_a_smaller_one() -> None:
    one, other = (Printing(name, ranks=n).table(SMALL) for name, n in (("all_reduce", 2), ("all_gather", 4)))
    found = joined([source(one.encode(), "a"), source(other.encode(), "b")], UserFacts())
    assert found.provenance.machine["gpus"] == [{"name": "NVIDIA H200"}] * 4
    with pytest.raises(BadInput, match=r"b: field 'gpus\[0\]' is \{'name': 'NVIDIA H100'\}"):
        changed = source(other.replace("H200", "H100").encode(), "b")
        joined([source(one.encode(), "a"), changed], UserFacts())


def test_rccl_tests_say_their_version_as_nccl_tests_do() -> None:
    text = Printing().table(SMALL).replace("nccl-", "rccl-")
    found = joined([source(text.encode())], UserFacts())
    assert found.provenance.stack["nccl"] == "RCCL 2.28.9"
    assert {one.metric.contract["client"] for one in found.metrics.values()} == {"rccl-tests"}


@pytest.mark.parametrize("indent", ["    ", "> "])
def test_a_table_in_a_document(indent: str) -> None:
    clean = Printing(ranks=4).table(SMALL, LARGE)
    text = "# A page\n\n```\n" + "".join(f"{indent}{line}\n" for line in clean.splitlines()) + "```\n\n8 16 pages\n"
    assert points(text) == points(clean)


def test_an_error_of_no_text_is_none() -> None:
    assert points(nccl_json(errors=[""])) == points(nccl_json())


def test_times_before_two_tables_are_no_processes() -> None:
    tables = [Printing(name, ranks=4).table(SMALL) for name in ("all_reduce", "all_gather")]
    stamped = [
        f"{hour}:34:56 {line}\n" for hour, text in zip((9, 10), tables, strict=True) for line in text.splitlines()
    ]
    assert points("".join(stamped)) == points("".join(tables))
