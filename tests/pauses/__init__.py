"""Tests of agents in code that wait for decisions, with real server processes."""
