"""Kill test of approvals: servers are killed while they execute approved calls of a real program."""
