"""The interface for pages with AG-UI (docs/agui.md)."""
