"""Imports of sessions: `agentctl db import` and `agentctl sessions import`.

The imports read files and write databases directly and ask no policy: only the local command line
uses them.
"""
