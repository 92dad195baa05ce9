"""The scenario of failures: each is followed by a message in the same session."""
