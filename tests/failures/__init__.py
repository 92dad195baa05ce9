"""Failures of runs, each followed by a message in the same session that must be answered.

`python -m tests.failures` runs all of them with every kind of agent and prints the table.
"""
