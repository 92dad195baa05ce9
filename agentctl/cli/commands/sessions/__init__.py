"""`agentctl sessions`: one module for each command with code of several functions."""
