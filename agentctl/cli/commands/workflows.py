"""`agentctl workflows`: the configured workflows."""

from __future__ import annotations

from agentctl.cli.commands.components import build_group

app = build_group("workflow")
