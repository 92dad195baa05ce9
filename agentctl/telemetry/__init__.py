"""Export of traces and metrics with OpenTelemetry; imported only if that is configured.

The interface for runs is `runs/life/observability.py`, the metrics page of the server in `server`.
"""
