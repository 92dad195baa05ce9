"""`agentctl agents`: the configured agents."""

from __future__ import annotations

from agentctl.cli.commands.components import build_group

app = build_group("agent")
