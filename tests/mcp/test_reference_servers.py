"""Two servers of other authors, from PyPI: mcp-server-time and mcp-server-git."""

from __future__ import annotations

import subprocess
from pathlib import Path

from agentctl.config.mcp_table import McpServer
from tests.mcp.hosting import host


async def test_tools_of_reference_servers_are_called(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "notes.txt").write_text("x")
    clock = McpServer("files", command="mcp-server-time")
    git = McpServer("git", command="mcp-server-git", args=("--repository", str(tmp_path)))
    references = ("mcp:files", "mcp:git.git_status")
    async with host(clock, git, references=references) as hosted:
        names = await hosted.names()
        assert names == ["files_get_current_time", "files_convert_time", "git_git_status"]
        assert '"timezone": "UTC"' in await hosted.text("get_current_time", timezone="UTC")
        text, failed = await hosted.call("get_current_time", timezone="Nowhere")
        assert failed
        assert "Nowhere" in text
        actions = await hosted.catalog.mcp.build_actions(references, hosted.nobody, ())
        assert "working tree" in actions["git_git_status"].record()["description"]
