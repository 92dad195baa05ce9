"""The checks and repairs of `agentctl runs doctor`: inconsistent runs and dead workers."""
