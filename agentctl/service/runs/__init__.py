"""The operations on runs: their start, their messages, their parts, and runs that repeat others.

Reads of runs that need no engine are in `service/reads`.
"""
