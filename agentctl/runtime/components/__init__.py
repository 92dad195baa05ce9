"""Agents, teams and workflows: their catalog, and the execution of a run.

Agents in code are executed by `runtime/runners`.
"""
