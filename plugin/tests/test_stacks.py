"""The grammar of stacks: what is read, what is refused, and what did not come about."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.cause import Cause
from pytest_decodegate.errors import BadInput
from pytest_decodegate.gang.options import GangOptions
from pytest_decodegate.machine.provenance import parse_declared
from pytest_decodegate.measure.source import Taken
from pytest_decodegate.redaction import is_secret_name
from pytest_decodegate.reference.loaded import (
    Loaded,
    as_declared,
    as_loaded,
    of_engines,
    variable_differences,
    without_effect,
)
from pytest_decodegate.settings.stack import THIS, Stack, declared, describe, parse_stack

OPTION = "--perf-base"
ANOTHER = Stack(python="/venv/bin/python")


@pytest.fixture
def nccl(tmp_path: Path) -> Path:
    library = tmp_path / "libnccl.so.2"
    library.write_bytes(b"\x7fELF" + bytes(60) + b"\0ncclGetVersion\0")
    return library


def parsed(*texts: str) -> Stack:
    return parse_stack(texts, OPTION)


def test_everything_at_once(nccl: Path) -> None:
    stack = parsed(f"python={sys.executable},nccl={nccl},env:NCCL_PROTO=LL")
    assert stack == Stack(sys.executable, str(nccl), (("NCCL_PROTO", "LL"),))
    assert parsed(str(stack)) == stack


def test_this_is_what_pytest_runs_with(tmp_path: Path) -> None:
    options = GangOptions(log_root=tmp_path)
    assert str(parsed(THIS)) == THIS
    assert parsed(THIS).applied(options) == options


values = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=20).filter(
    lambda one: one == one.strip()
)
# What a name like NCCL_KEY holds is never written down, and so does not come back.
names = st.from_regex(r"NCCL_[A-Z]{1,6}", fullmatch=True).filter(lambda one: not is_secret_name(one))


@given(st.dictionaries(names, values, min_size=1, max_size=3))
def test_any_variables_come_back_from_one_text_or_several(env: dict[str, str]) -> None:
    stack = Stack(env=tuple(sorted(env.items())))
    assert parsed(*(f"env:{name}={value}" for name, value in env.items())) == stack
    assert parsed(str(stack)) == stack


def test_a_value_may_hold_commas_and_equals() -> None:
    assert parsed("env:A=1,2,x=3,env:B=4").env == (("A", "1,2,x=3"), ("B", "4"))


def test_a_venv_is_as_good_as_its_python_and_is_not_resolved(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    link = tmp_path / "bin" / "python"
    link.symlink_to(sys.executable)
    assert parsed(f"python={tmp_path}").python == str(link)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' in '' is no part of a stack; write python=PATH"),
        ("nccl", "'nccl' in 'nccl' is no part"),
        ("torch=2.11", "'torch=2.11' in 'torch=2.11' is no part"),
        ("nccl=", "'nccl=' in 'nccl=' names nothing"),
        ("python=no/such", "python=no/such is not there"),
        ("python=.", r"python=\. is not there \('.*/bin/python' is no file\)"),
        ("nccl=no/such.so", "nccl=no/such.so is no file; give the libnccl.so.2 itself"),
        ("env:1=2", "'1' is no name of an environment variable"),
        ("env:PYTHONPATH=/x", "env:PYTHONPATH cannot be part of a stack: it brings this plugin"),
        ("env:CUDA_VISIBLE_DEVICES=1", "both stacks must run on the same GPUs"),
        ("env:DECODEGATE_ADDRESS=1", "it belongs to the gang"),
        ("env:A=1,env:A=2", "env:A is given twice, as '1' and '2'"),
        ("tp=two", "tp=two is no number of GPUs; write for example tp=2"),
        ("tp=0", "tp=0 is no number of GPUs"),
        ("model=", "'model=' in 'model=' names nothing"),
        ("flag:max-num-seqs=64", "'max-num-seqs=64' is no flag of vLLM; write for example --max-num-seqs=64"),
        ("flag:--port=80", "--port cannot be part of a stack"),
        ("flag:--seed=1,flag:--seed=2", "--seed is given twice, as --seed=1 and --seed=2"),
        ("flag:--async-scheduling,flag:--no-async-scheduling", "given twice, as --async-scheduling and --no-async-sch"),
        ("tp=2,flag:-tp=4", "--tensor-parallel-size is given twice"),
        ("server=http://a:1,tp=2", "leave out flag:--tensor-parallel-size"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=f"^{OPTION}: .*{message}"):
        parsed(text)


def test_a_python_that_cannot_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("")
    with pytest.raises(BadInput, match="cannot be executed"):
        parsed(f"python={tmp_path / 'python'}")


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"text", "it is no shared library"), (b"\x7fELF" + bytes(9), "it has no ncclGetVersion"), (b"", "no shared")],
)
def test_what_is_no_nccl_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "lib.so").write_bytes(content)
    with pytest.raises(BadInput, match=message):
        parsed(f"nccl={tmp_path / 'lib.so'}")


def test_nccl_sets_the_preload_itself(nccl: Path) -> None:
    with pytest.raises(BadInput, match="nccl= sets LD_PRELOAD itself"):
        parsed(f"nccl={nccl},env:LD_PRELOAD=/x")


def test_vllm_is_a_python_where_environments_can_be_made() -> None:
    stack = parse_stack(["vllm==0.26.0"], OPTION, lambda version: f"/cache/{version}/bin/python")
    assert (stack.python, stack.vllm) == ("/cache/0.26.0/bin/python", "0.26.0")
    given = parse_stack([f"vllm=0.26.0,python={sys.executable}"], OPTION, lambda version: pytest.fail("made one"))
    assert (given.python, given.vllm) == (sys.executable, "0.26.0")
    assert parsed("vllm=0.26.0") == Stack(vllm="0.26.0"), "without a maker of environments it is this Python's"


def test_what_servers_are_told_comes_back_and_is_no_matter_of_ranks() -> None:
    told = 'flag:--max-num-seqs=64,model=org/kimi,tp=2,flag:--enforce-eager,flag:-cc={"mode": 0, "x": [1,2]}'
    stack = parsed(told, "env:A=1")
    assert stack.model == "org/kimi"
    assert dict(stack.flags) == {
        "compilation-config": '{"mode": 0, "x": [1,2]}',
        "enforce-eager": True,
        "max-num-seqs": "64",
        "tensor-parallel-size": "2",
    }
    assert parsed(str(stack)) == stack
    assert stack.of_ranks == Stack(env=(("A", "1"),))
    assert stack.of_ranks.of_servers == ()
    assert stack.of_servers[:2] == ("model=org/kimi", 'flag:--compilation-config={"mode": 0, "x": [1,2]}')
    assert "hf-mine" not in f"{parsed('flag:--hf-token=hf-mine')} {parsed('flag:--hf-token=hf-mine').of_servers}"


def test_a_model_in_a_folder_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kimi").mkdir()
    assert parsed("model=kimi").model == str(tmp_path / "kimi")


def test_a_preloaded_nccl_comes_first_and_is_vllms_copy_too() -> None:
    stack = Stack(nccl="/n/libnccl.so.2", env=(("A", "1"),))
    host = {"LD_PRELOAD": "/jemalloc.so", "VLLM_NCCL_SO_PATH": "/old"}
    assert stack.environment({}) == {"LD_PRELOAD": "/n/libnccl.so.2", "A": "1"}
    assert stack.environment(host) == {
        "LD_PRELOAD": "/n/libnccl.so.2:/jemalloc.so",
        "VLLM_NCCL_SO_PATH": "/n/libnccl.so.2",
        "A": "1",
    }


# --- what two stacks differ in


def test_what_two_stacks_declare_is_what_perf_change_understands() -> None:
    base, candidate = Stack(env=(("A", "1"), ("B", "2"))), Stack("/python", "/nccl", (("A", "3"), ("B", "2")))
    assert (
        declared(base, candidate)
        == declared(candidate, base)
        == parse_declared("python,torch,cuda,vllm,nccl,env:A,env:LD_PRELOAD,env:VLLM_NCCL_SO_PATH")
    )
    assert declared(base, base) == frozenset()
    told = Stack(model="m", flags=(("enforce-eager", True), ("seed", "1"))), Stack(flags=(("seed", "2"),))
    assert declared(*told) == parse_declared("model,flag:enforce-eager,flag:seed")
    assert describe((base, base)) == "base and candidate: env:A=1,env:B=2"


def loaded(env: dict[str, str | None] | None = None, **facts: Any) -> Loaded:
    return Loaded({"python": "3.11.9", "torch": "2.11.0", "executable": "/p", **facts}, env or {})


def test_an_nccl_that_was_not_used_is_named_with_its_path() -> None:
    both = loaded(nccl="2.28.9", nccl_sha256="abc", nccl_path=["/site/libnccl.so.2"])
    assert without_effect((Stack(), Stack(nccl="/new")), (both, both)) == (
        "the candidate NCCL was not used: both sides loaded 2.28.9 from /site/libnccl.so.2",
    )


def test_another_copy_than_the_declared_one_answers_on_either_side() -> None:
    """As when both copies are mapped: that the sets of copies differ says nothing of who answers."""
    stacks = Stack(nccl="/old/libnccl.so.2"), Stack(nccl="/new/libnccl.so.2")
    old = loaded(nccl="2.28.3", nccl_sha256="a", nccl_path=["/old/libnccl.so.2"])
    new = loaded(nccl="2.30.4", nccl_sha256="c", nccl_path=["/site/libnccl.so.2"])
    assert without_effect(stacks, (old, new)) == (
        "the candidate NCCL was not used: 2.30.4 answers, from /site/libnccl.so.2",
    )
    assert without_effect(stacks, (replace_path(old, "/x"), replace_path(new, "/new/libnccl.so.2"))) == (
        "the base NCCL was not used: 2.28.3 answers, from /x",
    )


def replace_path(stack: Loaded, path: str) -> Loaded:
    return replace(stack, facts={**stack.facts, "nccl_path": [path]})


def answered(version: str, file: str | None) -> Taken:
    return Taken("gang", facts={"nccl_answered": {"version": version, "file": file}})


def test_the_copy_that_a_communicator_calls_must_be_the_declared_one() -> None:
    declared_one = Stack(nccl="/new/libnccl.so.2")
    assert as_declared("candidate", declared_one, answered("2.30.4", "/new/libnccl.so.2")).sound
    assert as_declared("base", Stack(), answered("2.28.9", "/site/libnccl.so.2")).sound
    assert as_declared("base", declared_one, Taken("gang")).sound, "a workload without NCCL"
    (broken,) = as_declared("candidate", declared_one, answered("2.28.9", "/site/libnccl.so.2")).broken
    assert broken == ("the candidate's /new/libnccl.so.2 was not used: NCCL 2.28.9 answered, from /site/libnccl.so.2")
    assert broken.cause is Cause.UNUSED_CHANGE


def test_the_engines_log_has_the_last_word_on_their_nccl() -> None:
    probed = loaded(nccl="2.28.3", nccl_sha256="a", nccl_path=["/old"])
    assert of_engines(probed, {"nccl": "2.28.3"}) is probed
    assert of_engines(probed, {}) is probed
    assert of_engines(probed, {"nccl": "2.28.9"}).facts == {
        **loaded().facts,
        "nccl": "2.28.9",
    }
    served = Taken("server", facts={"server": {"nccl": "2.28.9"}})
    (broken,) = as_loaded("base", probed.facts, served).broken
    assert broken == "the base's engines run NCCL 2.28.9 by their own log, a process of the same stack loads 2.28.3"
    assert as_loaded("base", loaded(nccl="2.28.9").facts, served).sound
    assert as_loaded("base", loaded().facts, served).sound
    assert as_loaded("base", probed.facts, Taken("server")).sound


def test_without_any_nccl_no_nccl_was_used() -> None:
    (reason,) = without_effect((Stack(), Stack(nccl="/new")), (loaded(), loaded()))
    assert "neither side loaded a libnccl" in reason


def test_two_pythons_with_one_stack_compare_nothing() -> None:
    (reason,) = without_effect((Stack(), ANOTHER), (loaded(), loaded(executable="/q")))
    assert reason == (
        "the two Pythons run the same stack: both sides loaded python 3.11.9, torch 2.11.0, from /p and /q"
    )


def test_a_variable_that_the_ranks_do_not_see_differently_is_named() -> None:
    stacks = Stack(), Stack(env=(("A", "1"),))
    assert without_effect(stacks, (loaded({"A": "1"}), loaded({"A": "1"}))) == (
        "env:A is '1' in the ranks of both sides",
    )


def test_variables_that_differ_are_listed_whatever_their_names() -> None:
    old, new = loaded({"SLOWER": None, "SAME": "1"}), loaded({"SLOWER": "2", "SAME": "1"})
    (difference,) = variable_differences(old, new)
    assert (str(difference), difference.declarable) == ("env:SLOWER: absent -> 2", True)


def test_what_took_effect_is_no_reason() -> None:
    stacks = Stack(), Stack("/q", "/new", (("A", "1"),))
    old = loaded({"A": None}, nccl_sha256="a")
    new = loaded({"A": "1"}, nccl_sha256="b", nccl_path=["/new"], vllm="0.26.0")
    assert without_effect(stacks, (old, new)) == ()
    assert without_effect((Stack(), Stack()), (old, old)) == ()


def test_a_stack_is_what_the_ranks_get(tmp_path: Path) -> None:
    options = GangOptions(log_root=tmp_path, env={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    applied = Stack("/q", env=(("A", "1"),)).applied(options)
    assert applied.python == "/q"
    assert applied.env == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "A": "1"}
    assert os.environ.get("A") is None
