"""The commands of `agentctl users`, one module for each."""
