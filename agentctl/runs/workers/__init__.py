"""Processes as workers: their rows, locks and heartbeats, their deaths, and the runs of dead ones.

How a worker takes runs and gives them to others is in `runs/life`, the sweep in `runs/jobs`.
"""
