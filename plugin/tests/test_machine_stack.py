from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import json
import platform
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_decodegate.errors import BadInput
from pytest_decodegate.machine import nccl_library, stack
from pytest_decodegate.machine.provenance import Provenance, differences, parse_declared, undeclared
from pytest_decodegate.metric import Json

MAPS = """\
7f10a0000000-7f10a0021000 rw-p 00000000 00:00 0
7f10b0000000-7f10b4000000 r--p 00000000 fe:00 123 /venv/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2
7f10b4000000-7f10b8000000 r-xp 04000000 fe:00 123 /venv/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2
7f10c0000000-7f10c4000000 r--p 00000000 fe:00 456 /opt/my nccl/libnccl.so.2.30.4
7f10d0000000-7f10d4000000 r--p 00000000 fe:00 789 /opt/plugin/libnccl-net.so
7f10e0000000-7f10e4000000 r--p 00000000 fe:00 790 /old/libnccl.so.2 (deleted)
7ffd6e5d2000-7ffd6e5f3000 rw-p 00000000 00:00 0                          [stack]
"""
LIBNCCL = re.compile(r"libnccl\.so(\.[0-9.]+)?")


def test_every_mapped_copy_of_nccl_is_found_once_with_blanks_in_its_path() -> None:
    assert stack.mapped_libraries(MAPS, LIBNCCL) == [
        "/venv/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2",
        "/opt/my nccl/libnccl.so.2.30.4",
        "/old/libnccl.so.2 (deleted)",
    ]


def test_a_library_that_is_really_mapped_is_found_and_can_be_opened_without_loading() -> None:
    maps = Path("/proc/self/maps").read_text()
    (libc,) = stack.mapped_libraries(maps, re.compile(r"libc\.so\.6|libc-2\.\d+\.so"))
    assert stack.sha256(libc) == hashlib.sha256(Path(libc).read_bytes()).hexdigest()
    assert ctypes.CDLL(libc).getpid


def test_files_that_nccl_reads_are_hashed_where_they_are(tmp_path: Path) -> None:
    def write(name: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        return path

    home, root = tmp_path / "home", tmp_path / "root"
    assert stack.nccl_settings("", {}, home, root) == {}

    write("home/.nccl.conf")
    write("root/etc/nccl.conf")
    hashes = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("home/.nccl.conf", "root/etc/nccl.conf")}
    assert stack.nccl_settings("", {}, home, root) == {
        "nccl_conf_sha256": hashes["home/.nccl.conf"],
        "nccl_system_conf_sha256": hashes["root/etc/nccl.conf"],
    }

    environ = {
        "NCCL_GRAPH_FILE": str(write("graph.xml")),
        "NCCL_TOPO_FILE": str(tmp_path / "gone.xml"),
        "NCCL_CONF_FILE": str(tmp_path),  # a folder
    }
    assert stack.nccl_settings("", environ, home, root) == {
        "nccl_graph_file_sha256": hashlib.sha256(b"graph.xml").hexdigest(),
        "nccl_topo_file_sha256": "missing",
        "nccl_conf_sha256": "unreadable",  # and the user's own is not read
        "nccl_system_conf_sha256": hashes["root/etc/nccl.conf"],
    }


def test_an_empty_variable_names_no_file(tmp_path: Path) -> None:
    assert stack.nccl_settings("", {"NCCL_GRAPH_FILE": "", "NCCL_CONF_FILE": ""}, tmp_path, tmp_path) == {}


def test_plugins_that_are_mapped_are_hashed_also_under_a_name_of_their_own(tmp_path: Path) -> None:
    for name in ("libnccl-net-ofi.so", "libnccl-tuner.so.1", "libmine.so", "libother.so", "libnccl.so.2"):
        (tmp_path / name).write_text(name)

    lines = [f"7f10-7f20 r--p 00000000 fe:00 1 {path}\n" for path in sorted(tmp_path.iterdir())]
    facts = stack.nccl_settings("".join(lines), {"NCCL_TUNER_PLUGIN": str(tmp_path / "libmine.so")}, tmp_path, tmp_path)
    assert facts == {
        "nccl_plugins": {
            name: hashlib.sha256(name.encode()).hexdigest()
            for name in ("libmine.so", "libnccl-net-ofi.so", "libnccl-tuner.so.1")
        }
    }


def test_what_nccl_reads_belongs_to_nccl() -> None:
    facts: dict[str, Json] = {"nccl_graph_file_sha256": "a", "nccl_plugins": {"libnccl-net.so": "b"}}
    found = differences(Provenance({}, {}, {}), Provenance({}, facts, {}))
    assert len(found) == 2
    assert undeclared(found, parse_declared("nccl")) == ()


def test_a_library_that_is_not_loaded_is_not_loaded_by_asking(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"libnccl\.so\.2"):
        nccl_library.nccl_version(str(tmp_path / "libnccl.so.2"))


@pytest.mark.parametrize(
    ("code", "version"),
    [(22809, "2.28.9"), (23004, "2.30.4"), (21805, "2.18.5"), (20906, "2.9.6"), (2804, "2.8.4"), (2708, "2.7.8")],
)
def test_nccl_codes_are_decoded_by_either_scheme(code: int, version: str) -> None:
    assert nccl_library.decode_nccl(code) == version


def test_two_copies_are_both_told_and_the_same_file_twice_is_one(tmp_path: Path) -> None:
    torchs, vllms, again = (tmp_path / name for name in ("torch.so", "vllm.so", "again.so"))
    torchs.write_bytes(b"one")
    vllms.write_bytes(b"two")
    again.write_bytes(b"one")
    versions = {str(torchs): "2.28.9", str(vllms): "2.30.4", str(again): "2.28.9"}
    facts = stack.nccl_facts([str(torchs), str(vllms), str(again)], None, versions.__getitem__)
    assert facts["nccl"] == "2.28.9+2.30.4"
    one, two = (hashlib.sha256(content).hexdigest() for content in (b"one", b"two"))
    assert facts["nccl_sha256"] == f"{one}+{two}"


def test_the_copy_that_answers_is_the_stack_and_the_others_are_reported(tmp_path: Path) -> None:
    torchs, preloaded, link = (tmp_path / name for name in ("torch.so", "preloaded.so", "link.so"))
    torchs.write_bytes(b"one")
    preloaded.write_bytes(b"two")
    link.symlink_to(preloaded)
    versions = {str(torchs): "2.28.9", str(preloaded): "2.28.3"}
    facts = stack.nccl_facts([str(torchs), str(preloaded)], str(link), versions.__getitem__)
    assert facts == {
        "nccl": "2.28.3",
        "nccl_sha256": hashlib.sha256(b"two").hexdigest(),
        "nccl_path": [str(preloaded)],
        "nccl_unused": [str(torchs)],
    }
    assert {"nccl_path", "nccl_unused"} <= set(stack.REPORTED)
    elsewhere = stack.nccl_facts([str(torchs)], str(preloaded), versions.__getitem__)
    assert elsewhere["nccl"] == "2.28.9", "what is mapped is all that can be told"


def test_a_copy_that_was_replaced_under_the_process_is_not_asked() -> None:
    def never(path: str) -> str:
        raise AssertionError(path)

    assert stack.nccl_facts(["/gone/libnccl.so.2 (deleted)"], None, never) == {
        "nccl": "unknown",
        "nccl_sha256": "replaced",
        "nccl_path": ["/gone/libnccl.so.2 (deleted)"],
    }


def test_no_copy_gives_no_fact() -> None:
    assert stack.nccl_facts([]) == {}


def test_the_probe_names_what_this_python_has() -> None:
    if not importlib.util.find_spec("torch"):
        pytest.skip("the probe needs torch in the rank's Python, and this one has none")

    # In a process of its own, as in a rank: torch has no place in the process of pytest.
    code = "import json, pytest_decodegate.machine.stack as stack; print(json.dumps(stack.probe()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    facts = json.loads(done.stdout)
    assert facts["torch"] == importlib.metadata.version("torch")
    assert facts["python"] == platform.python_version()
    assert facts["executable"] == sys.executable
    assert None not in facts.values()


def test_a_torch_with_nccl_inside_is_asked_for_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    built_in = SimpleNamespace(
        __version__="2.11.0+cu130",
        version=SimpleNamespace(cuda="13.0"),
        distributed=SimpleNamespace(is_nccl_available=lambda: True),
        cuda=SimpleNamespace(nccl=SimpleNamespace(version=lambda: (2, 28, 9))),
    )
    monkeypatch.setitem(sys.modules, "torch", built_in)
    monkeypatch.setattr(stack, "mapped_libraries", lambda maps, name: [])
    facts = stack.probe()
    assert (facts["nccl"], facts["cuda"]) == ("2.28.9", "13.0")


def test_a_python_without_torch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(BadInput, match=re.escape(repr(sys.executable)) + r" cannot import torch"):
        stack.probe()


def test_importing_the_module_loads_only_the_standard_library() -> None:
    heavy = "{'torch', 'numpy', 'vllm', 'pynvml', 'msgspec', 'pytest'}"
    code = f"import sys, pytest_decodegate.machine.stack; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_ranks_of_one_stack_agree_wherever_their_files_lie() -> None:
    first: dict[str, Json] = {"torch": "2.11.0", "executable": "/a/python", "nccl_path": ["/a"]}
    second: dict[str, Json] = {"torch": "2.11.0", "executable": "/b/python", "nccl_path": ["/b"]}
    assert stack.agree([first, second]) == first


def test_a_rank_with_another_stack_is_named_with_what_differs() -> None:
    first: dict[str, Json] = {"nccl": "2.28.9", "torch": "2.11.0", "executable": "/a/python"}
    third: dict[str, Json] = {"nccl": "2.30.4", "executable": "/b/python"}
    with pytest.raises(BadInput) as caught:
        stack.agree([first, first, third])

    text = str(caught.value)
    assert "rank 0 and rank 2" in text
    assert "nccl 2.28.9 and 2.30.4, torch 2.11.0 and absent" in text
    assert "/b/python" in text


@pytest.mark.parametrize(
    ("facts", "label"),
    [
        (
            {"vllm": "0.26.0", "torch": "2.11.0+cu130", "nccl": "2.28.9", "driver": "580.159.03", "python": "3.12.3"},
            "vllm0.26.0_torch2.11.0_nccl2.28.9_driver580.159.03",
        ),
        ({"torch": "2.13.0+cpu", "driver": None}, "torch2.13.0"),
        ({"nccl": "2.28.9+2.30.4"}, "nccl2.28.9-2.30.4"),
        ({"nccl": "unknown"}, "ncclunknown"),
        ({"vllm": "0.26.1.dev5+g12ab/34"}, "vllm0.26.1.dev5"),
        ({"python": "3.12.3"}, "python3.12.3"),
        ({}, "pythonunknown"),
    ],
)
def test_labels_are_file_names(facts: dict[str, Json], label: str) -> None:
    assert stack.stack_label(facts) == label
