"""Kill test of approvals: servers are killed while they execute calls of a real program."""
