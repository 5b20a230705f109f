"""The JSON that nccl-tests writes with -J (src/util.cu of NVIDIA/nccl-tests 2.19.6, JSON_FILE_VERSION 3)."""

from __future__ import annotations

from collections.abc import Iterator

from ..machine.provenance import redact
from ..metric import Json
from .found import Fields, Found, SourceFile, instant
from .nccl_run import DATE, IN, OUT, Row, TableRun, found, nccl_version
from .nccl_world import Printed, RankLine, Rates


def is_nccl_tests(fields: Fields) -> bool:
    """Whether a JSON file is of this tool."""
    return {"nccl_version", "results", "config"} <= fields.values.keys()


def read_json(source: SourceFile, fields: Fields, *, number: int = 1) -> Found:
    """Times of every size of a -J file; raises BadInput naming file, field and value."""
    config = fields.object("config")
    args = fields.values.get("args")
    if not isinstance(args, list) or not args:
        raise fields.wrong("args", "the command line is needed: it names the collective")

    _refuse_failed(fields)
    date = instant(str(fields.values.get("start_time")), DATE)
    run = TableRun(
        where=fields.where,
        program=str(args[0]),
        settings=_json_settings(config),
        blocking=config.values.get("blocking_collectives") in ("true", True),
        ranks=[_json_rank(device) for device in config.objects("devices")],
        recorded=date.isoformat(timespec="seconds") if date else "",
        stack={"nccl": nccl_version(fields.count("nccl_version")), **_environment(fields)},
    )
    run.rows = [row for result in fields.objects("results") for row in _json_rows(result)]
    return found(source, [run], first=number, one_rank_a_process=True)


def _refuse_failed(fields: Fields) -> None:
    errors = fields.values.get("errors") or []
    # writeErrors of util.cu writes NCCL's last error whatever it is: "" where there was none.
    if not isinstance(errors, list) or any(errors):
        raise fields.wrong("errors", "the run failed")

    for name in ("out_of_bounds", "average_bus_bandwidth"):
        if isinstance(fields.values.get(name), dict) and (outcome := fields.object(name)).values.get("okay") == "false":
            raise outcome.wrong("okay", "the run failed by nccl-tests' own check")


def _json_settings(config: Fields) -> dict[str, int]:
    names = {
        "threads": "nthreads",
        "gpus": "ngpus",
        "iterations": "iterations",
        "aggregated": "aggregated_iterations",
        "graph": "graph",
    }
    return {ours: round(config.number(name, least=-1)) for ours, name in names.items() if name in config.values}


def _json_rank(device: Fields) -> RankLine:
    said = device.values.get
    return RankLine(str(said("hostname")), str(said("pid")), str(said("group", 0)), device.text("device_info"))


def _json_rows(result: Fields) -> Iterator[Row]:
    if result.values.get("size") == 0:  # -b 8 of a collective that cuts its buffer into a part for each rank
        return

    for place in (OUT, IN):
        if result.values.get(place) is None:
            continue

        timed = result.object(place)
        if "cpu_time" in timed.values:
            raise timed.wrong("cpu_time", "run without -C: the CPU time of a collective is not its duration")
        if timed.values.get("nwrong"):
            raise timed.wrong("nwrong", "the collective gave wrong data")

        size, time_us = result.count("size"), timed.number("time")
        # %lf writes six decimals.
        algbw, busbw = (Printed(timed.number(name, least=-1), 5e-7) for name in ("alg_bw", "bus_bw"))
        yield Row(
            where=timed.where,
            bytes=size,
            dtype=result.text("type"),
            op=result.text("redop"),
            root=str(result.values.get("root", "-1")).strip(),
            place=place,
            seconds=time_us / 1e6,
            rates=Rates(size, Printed(time_us, 5e-7), algbw, busbw),
        )


def _environment(fields: Fields) -> dict[str, Json]:
    """The variables that can move a number: the file holds all of them, secrets too."""
    said = fields.values.get("env")
    pairs = (str(setting).partition("=") for setting in said) if isinstance(said, list) else ()
    return {f"env:{name}": value for name, value in redact({name: value for name, _, value in pairs}).items()}
