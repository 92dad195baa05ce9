"""The core works without extensions, and each extension has what it registers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from agentctl.config.tables import SECTIONS, list_sections
from agentctl.extensions import BUILT_IN, load_extensions
from tests.kit.conditions import PATIENCE
from tests.kit.process import without_coverage

WITHOUT = """
import asyncio, json, sys
from pathlib import Path
import agentctl.extensions
agentctl.extensions.BUILT_IN = ()
from agentctl.cli.app import main
from agentctl.config import load_settings
from agentctl.server import create_app
file = Path(sys.argv[1])
codes = [main([*words, "--help"]) for words in ((), ("db",), ("sessions", "list"), ("doctor",))]
app = create_app(load_settings(file))
loaded = [name for name in sys.modules if name.startswith("agentctl.interop")]
print(json.dumps([codes, len(app.routes), loaded]))
"""


def test_core_works_without_extensions(tmp_path: Path) -> None:
    file = tmp_path / "agentctl.toml"
    file.write_text("[server]\nport = 0\n")
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(file)],
        env=without_coverage(os.environ) | {"COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    codes, routes, loaded = json.loads(ended.stdout.rstrip().rpartition("\n")[2])
    assert (codes, routes > 50, loaded) == ([0, 0, 0, 0], True, [])


def test_registered_tables_exist() -> None:
    extensions = load_extensions()
    assert len({extension.name for extension in extensions}) == len(BUILT_IN)
    assert list_sections().keys() - SECTIONS.keys() == {"openai", "mcp_endpoint", "agui", "ai_sdk"}
