"""`agentctl keys`: one module for each command, and the group."""
