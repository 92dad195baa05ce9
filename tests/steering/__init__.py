"""Messages to runs that work."""
