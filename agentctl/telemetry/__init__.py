"""The log, the metrics and the traces of a server.

`tracer` and `metrics` import libraries that few servers need, and are imported only if they are
configured.
"""
