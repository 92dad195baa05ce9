"""The log of a run: its events, their stream and rows, its journal, checkpoints and results.

Reads of stored events, also of runs of other processes, are here. Nothing here starts or ends a
run, and followers read it in `runs/follow`.
"""
