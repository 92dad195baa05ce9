"""The checks and repairs of `agentctl doctor --runs`: inconsistent runs and dead workers."""
