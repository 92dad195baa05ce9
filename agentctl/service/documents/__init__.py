"""The bytes of responses, built from rows: documents of runs and sessions, and pages of lists."""
