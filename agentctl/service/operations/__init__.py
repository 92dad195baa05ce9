"""The operations on every noun but runs: a module for each, as in `interface/operations`.

Reads of sessions, components and halts that need no engine are in `service/reads`.
"""
