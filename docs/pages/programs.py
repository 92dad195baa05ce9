"""`programs.md`: the programs and libraries that were run as clients, from `compat`."""

from __future__ import annotations

import sys
from pathlib import Path

from pages.markdown import made_from

__all__ = ["page"]

_TITLE = "# Programs that were tried"

_OPENAI = """## OpenAI's API

The programs were run unchanged with `enabled = true` in the table `[openai]` alone. An error is due
for a wrong key, or an unknown or failing model. `make compat` repeats them;
`make test` sends the recorded requests of some again. ✓ marks an operation with the right result. A
cell is empty if the program has no such operation, or if the operation was not tried.

Not tried: CAMEL and Langroid load a file from the network at their start; atomic-agents and
fast-agent need Python 3.12; OpenCode failed in a new home folder before its first request; Goose,
LibreChat and CopilotKit were not installed.
"""

_MCP = """## MCP

`make compat` executes the operations of each client on a server with one worker and on one with
two; the results are the same. The title of each number names the operations. The model endpoint is
the witness of a cancel.
"""


def page() -> str:
    """Build `programs.md`."""
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    from compat import mcp_table, openai_table

    parts = [_TITLE, made_from("the results in compat")]
    parts += [_OPENAI.rstrip(), openai_table.build_table()]
    parts += [_MCP.rstrip(), mcp_table.build_table()]
    return "\n\n".join(parts) + "\n"
