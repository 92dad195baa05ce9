"""Tests of agents in code that wait for decisions."""
