"""`agentctl sessions`: one module for each command, and the group."""
