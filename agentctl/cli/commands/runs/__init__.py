"""`agentctl runs`: one module for each command, and the group."""
