"""The reads of components, sessions, runs and halts: the configuration and a database suffice.

A server has them among its other operations. A command that only reads opens them alone
(`reader.open_reads`): nothing here imports what executes runs.
"""
