"""Transcripts of sessions and runs, without a terminal: what a run shows, and Markdown."""
