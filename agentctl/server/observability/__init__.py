"""The log, the metrics and the event loop lag of a server."""
