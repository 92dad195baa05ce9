"""Runners: the ways to execute an agent, by the kind of its object."""
