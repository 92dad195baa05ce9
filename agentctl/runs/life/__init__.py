"""The life of a run in the process that executes it, from its admission to its final status.

Cancels, budgets, members, legs and the work after a run belong to it. What a run leaves in the
database is in `runs/log`, and what waits there in `runs/desk`.
"""
