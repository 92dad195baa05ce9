"""Transcripts of sessions and runs, without a terminal: what a run shows, and Markdown.

The command line draws them with rich in `cli/show/transcript`.
"""
