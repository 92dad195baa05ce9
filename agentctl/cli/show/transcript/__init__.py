"""Transcripts of sessions and runs for people; rich is imported only by commands that draw one."""
