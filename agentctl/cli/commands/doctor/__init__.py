"""`agentctl doctor`: check an installation, a server, databases and runs."""
