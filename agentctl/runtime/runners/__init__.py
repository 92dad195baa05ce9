"""Runners: the ways to execute an agent, by the kind of its object.

The interface that all of them have is `runner.py`, and what they share `hosted_run.py`.
"""
