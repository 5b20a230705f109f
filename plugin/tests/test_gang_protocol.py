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
from pytest_decodegate.gang import protocol
from pytest_decodegate.gang.protocol import Call, Function, Note, Reply


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
