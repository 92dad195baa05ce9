"""`agentctl db`: one module for each command, and the group."""
