"""Transcripts of sessions and runs for people; rich is imported only by commands that draw one.

What is drawn, and the timeline of a run, are in `transcripts`, which needs no terminal.
"""
