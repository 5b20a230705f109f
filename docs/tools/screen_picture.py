"""Draws docs/pictures/no-go.svg, the last screen of a recorded run: `python docs/tools/screen_picture.py`.

It needs rich. The run is that of an H200 whose Marlin kernels were slowed by 2 % on purpose. The text is made by the
code that makes it in a run.
"""

from __future__ import annotations

import io
import re
import shlex
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "plugin" / "tests"))

from recorded_upgrades import SLOWED, recorded_run  # noqa: E402 - a support module of the tests

from pytest_decodegate.report.screen import WIDTH, About, screen  # noqa: E402 - after the path
from pytest_decodegate.report.upgrade import text  # noqa: E402 - after the path

PICTURE: Final = ROOT / "docs" / "pictures" / "no-go.svg"

TYPED: Final = ("decodegate", "upgrade", "--candidate", "env:DECODEGATE_SLOWDOWN=marlin*=2%")

COLOURS: Final = {"": "#d8dbd9", "red": "#ff9aa0", "yellow": "#f0cf65", "green": "#9fdc90"}
"""On rich's dark ground: each with a contrast of 7 or more."""


def lines() -> list[tuple[str, str]]:
    """The command as typed, and what it prints at the end, each line with its colour as pytest's terminal names it."""
    run, about = recorded_run(SLOWED), About(TYPED, width=WIDTH)
    colours = {line.text: line.colour for line in screen(run, about)}
    printed = [(line, colours.get(line, "")) for line in text(run, about).splitlines()]
    return [(f"$ {shlex.join(TYPED)}", ""), *printed]


def main() -> None:
    """Write the picture; fonts are the reader's own, so that it fetches nothing."""
    from rich._export_format import CONSOLE_SVG_FORMAT
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line, colour in lines():
        console.print(Text(line, style=COLOURS[colour]), soft_wrap=True)

    form = re.sub(r"@font-face {{.*?}}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    drawn = console.export_svg(title="decodegate upgrade", unique_id="decodegate", code_format=form)
    PICTURE.write_text("\n".join(line.rstrip() for line in drawn.splitlines()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
