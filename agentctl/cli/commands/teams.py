"""`agentctl teams`: the configured teams."""

from __future__ import annotations

from agentctl.cli.commands.components import build_group

app = build_group("team")
