"""Processes as workers: their rows, locks and heartbeats, their deaths, and the runs of dead ones.

How a worker takes runs is in `runs/engine`, how it gives them to others in `runs/life`, and the
sweep in `runs/jobs`.
"""
