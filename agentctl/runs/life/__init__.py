"""The life of a run in the process that executes it, from its admission to its final status.

Members, legs, files and the work after a run belong to it. What a run leaves in the database is in
`runs/log`, what waits there in `runs/desk`, and all runs of a process in `runs/engine`.
"""
