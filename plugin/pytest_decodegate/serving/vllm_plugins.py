"""Plugins of ours in a vLLM server: files that lie in a folder which that server alone has on its path."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType


def write_plugin(folder: Path, name: str, source: ModuleType) -> None:
    """Put the code of `source` into `folder`, which is created, as the plugin and module `name`.

    It has a function register(), which vLLM calls in each of its processes. Raises OSError.
    """
    info = folder / f"{name}-1.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{name} = {name}:register\n")
    (folder / f"{name}.py").write_bytes(Path(str(source.__file__)).read_bytes())


def plugin_variables(environment: Mapping[str, str], folder: Path, name: str) -> dict[str, str]:
    """What a server with `environment` needs so that its vLLM finds the plugin `name` in `folder`, and loads it."""
    variables = {"PYTHONPATH": ":".join(filter(None, (str(folder), environment.get("PYTHONPATH"))))}
    if "VLLM_PLUGINS" in environment:  # a list of those allowed
        variables["VLLM_PLUGINS"] = ",".join(filter(None, (environment["VLLM_PLUGINS"], name)))

    return variables
