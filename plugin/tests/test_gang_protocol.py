from __future__ import annotations

import functools
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import gang_tasks
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.errors import BadInput
from pytest_decodegate.gang import exit_reasons, logs, protocol
from pytest_decodegate.gang.exit_reasons import Roster
from pytest_decodegate.gang.protocol import Call, Failure, Function, Hello, Note, Reply
from pytest_decodegate.process import processes


class Holder:
    def method(self) -> None:
        pass

    @staticmethod
    def static() -> None:
        pass


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper() -> Any:
        return function()

    return wrapper


@decorated
def with_wrapper() -> int:
    return 41


def shadowed() -> int:
    return 1


first_shadowed = shadowed


def shadowed() -> int:  # type: ignore[no-redef]
    return 2


def nested() -> Any:
    def inner() -> None:
        pass

    return inner


@pytest.mark.parametrize(
    ("function", "advice"),
    [
        (lambda: 0, "module level"),
        (nested(), "module level"),
        (Holder.method, "module level"),
        (Holder.static, "module level"),
        (Holder().method, "`def` at module level"),
        (len, "`def` at module level"),
        (Holder, "`def` at module level"),
        (functools.partial(shadowed), "`def` at module level"),
        (first_shadowed, "replaced it"),
    ],
)
def test_what_ranks_could_not_find_again_is_refused_with_advice(function: Any, advice: str) -> None:
    with pytest.raises(BadInput, match=advice):
        Function.of(function)


def test_a_function_of_this_test_module_resolves_to_itself() -> None:
    assert Function.of(shadowed).resolve() is shadowed
    assert Function.of(with_wrapper).resolve()() == 41


def test_an_argument_that_cannot_be_pickled_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(BadInput, match=r"argument of nothing\(\) cannot be pickled"):
        protocol.call(1, gang_tasks.nothing, (lambda: 0,), {})


@given(task=st.integers(0), args=st.lists(st.integers() | st.text()), text=st.text())
def test_frames_come_back_as_they_were_sent(task: int, args: list[int | str], text: str) -> None:
    call = protocol.load(protocol.call(task, gang_tasks.nothing, tuple(args), {"text": text}))
    assert isinstance(call, Call)
    assert call.task == task
    assert protocol.load(call.arguments) == (tuple(args), {"text": text})
    for message in (Note(task, text), Reply(task, skip=text), Reply(task, value=text.encode(errors="replace"))):
        assert protocol.load(protocol.dump(message)) == message


SCRIPT = """
import sys, pickle
function = pickle.load(open(sys.argv[1], "rb"))
print(function.resolve()())
"""


def resolved_elsewhere(function: Any, tmp_path: Path) -> str:
    """What the function returns when another process finds it by its reference alone."""
    (tmp_path / "function.pickle").write_bytes(protocol.dump(Function.of(function)))
    package = Path(protocol.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "function.pickle")],
        env={"PYTHONPATH": str(package)},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or done.stderr


def write_modules(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sibling.py").write_text("VALUE = 7\n")
    (folder / "test_users_own.py").write_text("def value():\n    import sibling\n    return sibling.VALUE\n")


def test_a_module_that_pytest_put_on_the_path_is_found_with_its_siblings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_modules(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "test_users_own", raising=False)
    module = importlib.import_module("test_users_own")
    assert resolved_elsewhere(module.value, tmp_path) == "7"


def test_a_module_of_importlib_mode_is_loaded_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "test_imported.py"
    file.write_text("def value():\n    return __name__\n")
    spec = importlib.util.spec_from_file_location("perf.test_imported", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "perf.test_imported", module)
    spec.loader.exec_module(module)
    assert resolved_elsewhere(module.value, tmp_path) == "perf.test_imported"


def test_of_two_conftests_the_one_that_was_meant_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "conftest.py").write_text(f"def value():\n    return {name!r}\n")

    functions = []
    for name in ("one", "two"):
        monkeypatch.syspath_prepend(tmp_path / name)
        monkeypatch.delitem(sys.modules, "conftest", raising=False)
        functions.append(Function.of(importlib.import_module("conftest").value))

    monkeypatch.delitem(sys.modules, "conftest")
    assert [function.resolve()() for function in functions] == ["one", "two"]


def test_an_import_error_inside_the_users_module_is_not_taken_for_a_missing_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_more.py").write_text("import module_that_nobody_has\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="module_that_nobody_has"):
        Function("needs_more", "value", str(tmp_path / "needs_more.py"), str(tmp_path)).resolve()


TORCHRUN = [
    "TORCHELASTIC_USE_AGENT_STORE",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "GROUP_RANK",
    "ROLE_NAME",
]


@given(st.sets(st.sampled_from([*TORCHRUN, "PET_NNODES", "PYTHON_EXEC", "PYTEST_CURRENT_TEST", "DECODEGATE_KEY_FILE"])))
def test_no_variable_of_torchrun_reaches_a_child(names: set[str]) -> None:
    mine = {"PATH": "/bin", "RANKING": "1", "NCCL_ALGO": "Ring", "MASTER_ADDRESS": "x"}
    assert processes.scrubbed({**mine, **dict.fromkeys(names, "1")}) == mine


@given(content=st.binary(max_size=300), mark=st.integers(0, 300), limit=st.integers(2, 80))
def test_a_log_delta_keeps_both_ends_and_counts_what_it_leaves_out(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, mark: int, limit: int
) -> None:
    content = bytes(32 + byte % 90 for byte in content)
    path = tmp_path_factory.getbasetemp() / "delta.log"
    path.write_bytes(content)
    written = content[mark:]
    text = logs.read_since(path, mark, limit)
    if len(written) <= limit:
        assert text == written.decode()
        return

    half = limit // 2
    assert text.startswith(written[:half].decode() + "\n")
    assert text.endswith("\n" + written[-half:].decode())
    assert f"[... {len(written) - 2 * half} bytes left out;" in text


def test_a_log_that_does_not_exist_is_empty(tmp_path: Path) -> None:
    assert logs.read_since(tmp_path / "none.log", 0) == ""
    assert logs.tail(tmp_path / "none.log") == ""


DUMP = """Thread 0x00007fd3e71ff6c0 (most recent call first):
  File "/run/path/pytest_decodegate/gang/worker.py", line 187 in _watch
  File "/python/threading.py", line 982 in run

Current thread 0x00007fd3e882ab80 (most recent call first):
  File "/tests/tasks.py", line 50 in sleep
  File "/run/path/pytest_decodegate/gang/worker.py", line 131 in _run
  File "<frozen runpy>", line 198 in _run_module_as_main
"""


def test_a_stack_shows_the_users_frames_only() -> None:
    assert logs.clean_stack(DUMP) == (
        'Current thread (most recent call first):\n  File "/tests/tasks.py", line 50 in sleep'
    )


def test_equal_stacks_are_shown_once_and_missing_ones_are_explained() -> None:
    text = exit_reasons.stacks({0: "in barrier", 1: "", 2: "in barrier", 3: ""}, {3: "stopped by a signal"})
    assert text.splitlines() == [
        "--- stack of ranks 0, 2 ---",
        "in barrier",
        "--- no stack of rank 1: it did not react ---",
        "--- no stack of rank 3: stopped by a signal ---",
    ]


def roster(*hosts: str) -> Roster:
    hellos = {rank: Hello(rank, rank, 4710 + rank, host, "/logs", "python") for rank, host in enumerate(hosts)}
    return Roster("w2-3", hellos)


def test_the_earliest_failure_is_the_cause() -> None:
    late = Failure("RuntimeError", "connection closed by peer", "late trace", 20.5)
    failures = {0: late, 1: Failure("ValueError", "bad shape", "first trace", 20.0)}
    text = exit_reasons.raised("work()", failures, roster("n1", "n1"))
    assert text.startswith("rank 1 of w2-3 raised ValueError in work(): bad shape\nrank 0 raised too, 0.500 s later: ")
    assert exit_reasons.earliest(failures) == "rank 1 raised ValueError: bad shape"
    assert text.endswith("first trace")


@pytest.mark.parametrize(("oom_kills", "hint"), [(0, "dmesg"), (1, "out-of-memory killer struck 1 times")])
def test_a_sigkill_points_to_the_out_of_memory_killer(oom_kills: int, hint: str) -> None:
    text = exit_reasons.died("work()", {1: -9}, oom_kills, [], roster("n1", "n1"))
    assert text.startswith("rank 1 of w2-3 (pid 4711) died (SIGKILL) in work()")
    assert hint in text


def test_ranks_on_several_hosts_are_named_with_theirs() -> None:
    failures = {1: Failure("ValueError", "bad shape", "", 20.0)}
    several = roster("n1", "n2")
    who = "rank 1 of w2-3 (host n2, pid 4711)"
    assert exit_reasons.died("work()", {1: 7}, 0, [], several) == f"{who} died (exit code 7) in work()"
    assert exit_reasons.hung("work()", 1, [1], [], "", several).startswith(f"{who} did not answer work()")
    assert exit_reasons.waiting([1], 2, "", several).startswith(f"{who} did not answer within 2 s of that")
    assert exit_reasons.raised("work()", failures, several).startswith("rank 1 of w2-3 (host n2) raised ValueError in ")
    assert exit_reasons.disagreed("work()", {1: "tired"}, [0], several).startswith(
        "rank 1 of w2-3 (host n2) ('tired') skip"
    )


@pytest.mark.parametrize(("refused", "start"), [(1, "1 stranger was refused"), (2, "2 strangers were refused")])
def test_strangers_are_counted(refused: int, start: str) -> None:
    assert exit_reasons.strangers(refused)[0].startswith(start)
    assert exit_reasons.strangers(0) == []
