"""The checks of `agentctl doctor`, one module for each subject.

The checks read files and databases directly and ask no policy: only the local command line uses
them.
"""
