"""`agentctl runs doctor`: find inconsistent runs and repair them."""
