"""What `agentctl db` does with databases as a whole: look, migrate, check, copy.

It works on files and servers themselves and asks no policy: only the local command line has it.
"""
