"""`agentctl runs`: one module for each command."""
