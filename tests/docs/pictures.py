"""Pictures of a terminal, from the output of the commands of a page.

AGENTCTL_TEST_SCREENSHOTS writes them.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

__all__ = ["PICTURES", "write_picture"]

PICTURES = "AGENTCTL_TEST_SCREENSHOTS"
WIDTH = 90
_LEFT_OUT = re.compile(r"@font-face \{\{.*?\}\}\s*|<!--.*?-->\s*", re.DOTALL)
"""The fonts of another server, and a comment."""


def write_picture(file: Path, output: str) -> None:
    """Write the output of commands, with its colors, as an SVG without a font of another server."""
    from rich._export_format import CONSOLE_SVG_FORMAT
    from rich.console import Console
    from rich.text import Text

    # Without a height rich assumes 80 columns if TERM is dumb.
    console = Console(
        record=True, width=WIDTH, height=25, file=io.StringIO(), color_system="standard"
    )
    for line in output.splitlines():
        console.print(Text.from_ansi(line), soft_wrap=True)
    style = _LEFT_OUT.sub("", CONSOLE_SVG_FORMAT).replace("Fira Code", "ui-monospace")
    file.write_text(
        console.export_svg(title="agentctl", code_format=style, unique_id="agentctl"),
        encoding="utf-8",
    )
