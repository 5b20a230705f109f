"""Hooks of mkdocs: pages that lie at the top of the repository, where their readers look, are part of the site, too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT: Final = Path(__file__).parents[2]

TOP: Final = {"index.md": "README.md", **{name: name for name in ("SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")}}
"""Files at the top by the page that they are."""

FILES: Final = re.compile(r"\[([^]]*)\]\((?:\.\./)?(?:plugin|perf_tests|baselines|LICENSE)[^)]*\)")
"""A link to a file of the repository that is no page."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of TOP."""
    for page, name in TOP.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))

    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Links as they are on the site, where all pages lie in one folder; files that are no page lose theirs."""
    text = FILES.sub(r"\1", markdown)
    return (
        text.replace("](docs/", "](")
        .replace("](../README.md", "](index.md")
        .replace("](../", "](")
        .replace("](README.md", "](index.md")
    )
