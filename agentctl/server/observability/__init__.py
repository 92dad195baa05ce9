"""Logs, metrics and the lag of the event loop."""
