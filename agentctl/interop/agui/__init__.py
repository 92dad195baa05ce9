"""The face for clients of AG-UI, the protocol between agents and pages (docs/agui.md)."""

from agentctl.interop.routes import build_extension

EXTENSION = build_extension("agui", "AgUi")
