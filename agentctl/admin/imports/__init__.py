"""The import of sessions: `agentctl sessions import`.

It reads a file and writes a database directly and asks no policy: only the local command line uses
it.
"""
