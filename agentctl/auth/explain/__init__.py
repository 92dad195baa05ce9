"""Explanations of authorization decisions: checks, causes, remedies, suggestions."""
