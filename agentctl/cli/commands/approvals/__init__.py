"""`agentctl approvals`: one module for each command."""
