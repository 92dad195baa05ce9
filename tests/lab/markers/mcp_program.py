"""An MCP server over stdio whose tool `note` writes the ledger; all users share its process."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from tests.lab.markers.text import find_markers, write_entry
from tests.mcp import stdio_server


def tool_note(arguments: dict[str, Any], _: threading.Event) -> dict[str, Any]:
    """Keep a text, and repeat it after a moment, so that calls of several users overlap."""
    text = str(arguments.get("text"))
    write_entry("mcp over stdio", find_markers(text))
    time.sleep(0.02)
    return stdio_server.text(f"kept {text}")


if __name__ == "__main__":
    stdio_server.TOOLS.clear()
    stdio_server.TOOLS["note"] = tool_note
    stdio_server.main(sys.argv[1:])
