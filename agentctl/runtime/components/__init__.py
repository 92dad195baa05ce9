"""Agents, teams and workflows: their catalog, and the execution of a run."""
