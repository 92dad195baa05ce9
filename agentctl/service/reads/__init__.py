"""The reads of components, sessions and runs, which need the configuration and a database only.

A server has them among its other operations. A command that only reads opens them alone
(`reader.open_reads`): nothing here imports what executes runs.
"""
