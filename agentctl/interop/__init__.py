"""Interfaces of other systems, one package each."""
