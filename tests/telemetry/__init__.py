"""Traces and metrics: what a collector receives."""
