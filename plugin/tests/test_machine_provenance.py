import json
import math

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pytest_decodegate.errors import BadInput
from pytest_decodegate.machine.provenance import (
    ABSENT,
    COMPONENTS,
    Difference,
    Provenance,
    differences,
    parse_declared,
    redact,
    undeclared,
    unknown_on_both,
    unsaid,
)
from pytest_decodegate.metric import Json

# Cores are shared with other work: how long a draw takes says nothing about the code.
relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
names = st.text("abcdefgh", min_size=1, max_size=4)
leaves = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-1, 1) | st.text("xyz", max_size=2)
values: st.SearchStrategy[Json] = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=6
)
stack_names = st.sampled_from([*COMPONENTS, "nccl_sha256", "env:NCCL_PROTO", "flag:max-num-seqs", "stranger"])
provenances = st.builds(
    Provenance,
    machine=st.dictionaries(names, values, max_size=4),
    stack=st.dictionaries(stack_names, values, max_size=4),
    telemetry=st.dictionaries(names, values, max_size=2),
)


def side(
    machine: dict[str, Json] | None = None,
    stack: dict[str, Json] | None = None,
    telemetry: dict[str, Json] | None = None,
) -> Provenance:
    return Provenance(machine or {}, stack or {}, telemetry or {})


@relaxed
@given(provenances)
def test_nothing_differs_from_itself(one: Provenance) -> None:
    assert differences(one, one) == ()


@relaxed
@given(provenances, provenances)
def test_the_same_fields_differ_in_both_directions(one: Provenance, other: Provenance) -> None:
    there = {difference.field for difference in differences(one, other)}
    back = {difference.field for difference in differences(other, one)}
    assert there == back


@relaxed
@given(provenances, provenances)
def test_what_is_not_equal_has_a_difference(one: Provenance, other: Provenance) -> None:
    assume([one.machine, one.stack] != [other.machine, other.stack])
    assert differences(one, other) != ()


@relaxed
@given(provenances)
def test_the_order_of_fields_is_no_difference(one: Provenance) -> None:
    machine, stack = ({name: side[name] for name in reversed(side)} for side in (dict(one.machine), dict(one.stack)))
    assert differences(one, Provenance(machine, stack, {"seen": "later"})) == ()


@relaxed
@given(provenances, provenances, st.sets(st.sampled_from(COMPONENTS)))
def test_undeclared_removes_exactly_what_is_declared(one: Provenance, other: Provenance, declared: set[str]) -> None:
    found = differences(one, other)
    left = undeclared(found, declared)
    assert set(map(str, left)) <= set(map(str, found))
    for difference in found:
        component = difference.field.split("[")[0].split(".")[0].split("_")[0]
        assert (difference not in left) == (difference.declarable and component in declared)


@relaxed
@given(provenances)
def test_round_trip_through_json_text(one: Provenance) -> None:
    assert Provenance.from_json(json.loads(json.dumps(one.to_json()))) == one


def test_one_gpu_of_eight_is_named_with_its_field() -> None:
    gpus: list[Json] = [{"power_limit_w": 600, "ecc": True} for _ in range(8)]
    changed: list[Json] = [*gpus[:3], {"power_limit_w": 300, "ecc": True}, *gpus[4:]]
    (found,) = differences(side({"gpus": gpus}), side({"gpus": changed}))
    assert str(found) == "gpus[3].power_limit_w: 600 -> 300"
    assert not found.declarable
    assert undeclared([found], COMPONENTS) == (found,)


def test_a_version_change_reads_as_one_line_and_a_new_setting_was_absent() -> None:
    base = side(stack={"nccl": "2.28.3"})
    new = side(stack={"nccl": "2.28.9", "env:NCCL_PROTO": "LL"})
    assert [str(found) for found in differences(base, new)] == [
        "nccl: 2.28.3 -> 2.28.9",
        "env:NCCL_PROTO: absent -> LL",
    ]


def test_booleans_and_unknown_values_are_spelled_for_people() -> None:
    assert str(Difference("ecc", True, None, declarable=False)) == "ecc: true -> unknown"
    assert str(Difference("ecc", ABSENT, False, declarable=False)) == "ecc: absent -> false"


def test_true_is_not_one() -> None:
    assert [str(found) for found in differences(side({"ecc": True}), side({"ecc": 1}))] == ["ecc: true -> 1"]


def test_telemetry_never_differs() -> None:
    assert differences(side(telemetry={"host": "a"}), side(telemetry={"host": "b"})) == ()


def test_a_build_of_the_same_version_answers_to_its_component() -> None:
    found = differences(side(stack={"nccl_sha256": "aa"}), side(stack={"nccl_sha256": "bb"}))
    assert undeclared(found, parse_declared("nccl")) == ()
    assert undeclared(found, parse_declared("torch")) == found


def test_a_stack_field_that_nobody_can_declare_stays() -> None:
    found = differences(side(stack={"stranger": 1}), side(stack={"stranger": 2}))
    assert not found[0].declarable
    assert undeclared(found, ["stranger"]) == found


def test_what_a_new_driver_no_longer_tells_is_part_of_the_driver_change() -> None:
    found = differences(side({"gpus": [{"sm_clock_set_mhz": 1980}]}), side({"gpus": [{"sm_clock_set_mhz": None}]}))
    assert undeclared(found, parse_declared("driver")) == ()
    assert undeclared(found, parse_declared("nccl")) == found


def test_an_unknown_host_field_is_not_the_drivers_fault() -> None:
    found = differences(side({"governor": "performance"}), side({"governor": None}))
    assert undeclared(found, parse_declared("driver")) == found


def test_flags_match_however_they_are_spelled() -> None:
    found = differences(side(stack={"flag:--max_num_seqs": 8}), side(stack={"flag:--max_num_seqs": 16}))
    assert undeclared(found, parse_declared("flag:max-num-seqs")) == ()


def test_a_setting_that_one_server_does_not_say_is_no_difference_and_is_told() -> None:
    said, silent = side(stack={"flag:kv-cache-dtype": "fp8"}), side(stack={"flag:kv-cache-dtype": None})
    assert differences(said, silent) == differences(silent, said) == ()
    assert unsaid(silent, said) == ("kv-cache-dtype",)
    assert unsaid(said, said) == unsaid(said, silent) == unsaid(silent, silent) == ()
    (found,) = differences(said, side())
    assert str(found) == "flag:kv-cache-dtype: fp8 -> absent", "a flag that was not given is another setting"


def test_declared_changes_are_read_with_blanks() -> None:
    assert parse_declared(" driver, nccl,env:NCCL_PROTO ") == {"driver", "nccl", "env:NCCL_PROTO"}


@pytest.mark.parametrize("text", ["", "driver,,nccl", "cuDNN", "env:", "env: A", "flag:", "flag:--", "nccl_sha256"])
def test_unknown_names_are_refused_and_the_known_ones_listed(text: str) -> None:
    with pytest.raises(BadInput, match=r"unknown; known are driver, vbios, kernel, cuda.*env:NAME.*flag:NAME"):
        parse_declared(text)


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        (None, "expected an object with machine, stack, telemetry, found None"),
        ({"machine": {}, "stack": {}}, "'telemetry' must be an object, found None"),
        ({"machine": {}, "stack": [], "telemetry": {}}, "'stack' must be an object"),
        ({"machine": {}, "stack": {}, "telemetry": {}, "extra": 1}, "unknown field 'extra'"),
        ({"machine": {"gpus": [{"w": math.nan}]}, "stack": {}, "telemetry": {}}, r"'machine.gpus\[0\].w' is nan"),
    ],
)
def test_a_broken_provenance_is_refused_by_field(obj: Json, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Provenance.from_json(obj)


def test_only_variables_that_move_numbers_are_kept_sorted() -> None:
    environ = {
        "VLLM_MARLIN_USE_ATOMIC_ADD": "1",
        "NCCL_PROTO": "LL",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "LD_PRELOAD": "libnccl.so.2",
        "TORCH_NCCL_AVOID_RECORD_STREAMS": "1",
        "HOME": "somewhere",
        "VLLM_PORT": "8000",
        "VLLM_CACHE_ROOT": "a",
        "VLLM_HOST_IP": "::1",
        "NCCL_DEBUG_FILE": "log",
        "NCCL_COMM_ID": "a:1",
        "AWS_SECRET_ACCESS_KEY": "x",
    }
    assert list(redact(environ)) == [
        "CUDA_VISIBLE_DEVICES",
        "LD_PRELOAD",
        "NCCL_PROTO",
        "TORCH_NCCL_AVOID_RECORD_STREAMS",
        "VLLM_MARLIN_USE_ATOMIC_ADD",
    ]


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("VLLM_API_KEY", "k", True),
        ("VLLM_API_KEY", "123456", True),
        ("NCCL_AUTH", "k", True),
        ("VLLM_S3_SECRET", "k", True),
        ("VLLM_DB_PASSWORD", "k", True),
        ("VLLM_HUB_TOKENS", "abc", True),
        ("VLLM_REGISTRY_URL", "https://me:word@example.org", True),
        ("VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE", "163840", False),
        ("NCCL_ALGO", "Ring", False),
        *((f"VLLM_DB_{name}", "k", True) for name in ("PASS", "PAT", "JWT", "COOKIE", "DSN")),
        ("VLLM_S3_URL", "https://bucket/x?X-Amz-Signature=abc", True),
        ("VLLM_PROXY", "Authorization: Bearer abc", True),
        ("VLLM_HUB", "hf_" + "x1Y" * 9, True),
    ],
)
def test_secrets_are_redacted_and_counts_of_tokens_are_not(name: str, value: str, secret: bool) -> None:
    assert redact({name: value}) == {name: "redacted" if secret else value}


def test_what_neither_side_knows_was_not_compared() -> None:
    base = Provenance(
        {"gpus": [{"name": None}, {"name": "A"}], "link": "unknown"}, {"nccl": "unknown", "driver": "1"}, {}
    )
    new = Provenance(
        {"gpus": [{"name": None}, {"name": None}], "link": "PCIe"}, {"nccl": "unknown", "vllm": "unknown"}, {}
    )
    assert unknown_on_both(base, new) == ("gpus[0].name", "nccl")
    assert unknown_on_both(base, base) == ("gpus[0].name", "link", "nccl")
