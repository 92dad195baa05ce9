"""What `agentctl doctor` looks at: one module a subject, each a function that gives findings.

It reads files and databases themselves and asks no policy: only the local command line has it.
"""
